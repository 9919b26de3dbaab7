"""The run folder: the only interface between training and all programs that monitor or control a run.

    run.json        description of the run: kind, status, config, seed, versions, hashes, heartbeat
    metrics.jsonl   a record for each step
    rollouts.jsonl  prompts, responses and their scores
    alarms.jsonl    raised alarms, with the settings to change
    checkpoints/    step_000012/, complete once the folder has its final name
    old-1/          files of an earlier attempt, as a separate run folder, after the run started again; or the checkpoints of
                    later steps, after the run was resumed at an earlier step
    control/        files with requests to the run: `stop`
    exporters/      notes on the steps received by each service (docs/exporters.md), and logs; tensorboard/, wandb/: the
                    services' own files
    status.json     of PPO's servers: their current activity, written about once a second
    job/            files of the job dispatch (cluster/)

This module reads; `aligner_lib.run_folder.writer` writes. Both work without torch.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aligner_lib.errors import UserError
from aligner_lib.run_folder.files import UnreadableFileError, read_object
from aligner_lib.run_folder.jsonl import JsonlReader
from aligner_lib.run_folder.ranking import Ranking
from cluster import processes

if TYPE_CHECKING:
    from cluster import Job

logger = logging.getLogger(__name__)
STATUSES = ("running", "finished", "stopped", "failed")
STALE_SECONDS = 120.0
MOST_SECONDS, MOST_PID = 1e15, 2**31 - 1
"""The largest time and the largest number of a process with which the system's functions work."""
NAME_METRICS = ("save_best",)
"""Settings whose values are names of metrics, which have a slash as paths have."""
ARGS = "args"
"""The arguments of an environment, whose keys the environment chooses."""
MODEL_ARG = "args.model"
"""The argument with a model's name on a server, such as Qwen/Qwen2.5-7B-Instruct."""
RUBRIC_ARG = "rubric"
"""The argument with a judge's criteria, which may have a slash, as in "yes/no"."""
PATH_WITHIN = re.compile(r"(?:^|[\s:])(?:~|\.{0,2})/\S")
STEP = re.compile(r"step_\d+")
"""The name of a complete checkpoint."""


class DamagedRunError(UserError, ValueError):
    """run.json is not a JSON object, or has impossible times or an impossible process."""


class RunFolder:
    """A run, read from its folder. The folder may not exist yet; the run is then empty."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path).expanduser()
        self._has_begun = False  # whether this object has read a run.json

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r}, {self.kind or 'empty'}, {self.status})"

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def info(self) -> dict:
        """The content of run.json; empty before the run has written the file."""
        try:
            info = read_object(self.path / "run.json")
        except FileNotFoundError:
            return {}
        except UnreadableFileError:
            info = None
        if info is None or not _is_whole(info):
            raise DamagedRunError(
                f"{self.path / 'run.json'} is damaged, probably by a power cut: remove the file, and the run's next start "
                "goes on from its last checkpoint"
            )
        self._has_begun = True
        return info

    @property
    def kind(self) -> str:
        """The kind of job: sft, rm, ppo, …; "" before run.json exists."""
        return self.info.get("kind", "")

    @property
    def status(self) -> str:
        """The run's status: a value of STATUSES, `waiting` before the run has started, `lost`, or `deleted`.

        `deleted`: the run's folder no longer exists, but existed at an earlier reading. `lost`: the process no longer exists
        and recorded no final status. The process cannot be checked from another machine; there a heartbeat older than
        STALE_SECONDS counts as lost.
        """
        info = self.info
        if not info and self._has_begun and not self.path.exists():
            return "deleted"
        return status_in(info)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended: its status is neither `waiting` nor `running`."""
        return self.status not in ("waiting", "running")

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat; infinite before the first."""
        heartbeat = self.info.get("heartbeat")
        return time.time() - heartbeat["time"] if heartbeat else float("inf")

    def latest_job(self) -> Job | None:
        """The handle of the last job submitted for this folder; None without a job, and for an unreadable record."""
        from cluster import Job
        from cluster.record import Record

        try:
            return Job(self.path, Record(**read_object(self.path / "job" / "job.json")))
        # TypeError: a record of another version, with other fields
        except (OSError, TypeError, ValueError):
            return None

    @property
    def server_status(self) -> dict:
        """The last status.json of a server (PPO's critic in a separate job); empty for other runs."""
        try:
            return json.loads((self.path / "status.json").read_text())
        except FileNotFoundError:
            return {}

    # -- the run's records ----------------------------------------------------------------------------------------

    def metrics_reader(self) -> JsonlReader:
        """A reader that follows metrics.jsonl."""
        return JsonlReader(self.path / "metrics.jsonl")

    def rollouts_reader(self) -> JsonlReader:
        """A reader that follows rollouts.jsonl."""
        return JsonlReader(self.path / "rollouts.jsonl")

    def metrics(self) -> list[dict]:
        """Every metrics record so far, oldest first."""
        return self.metrics_reader().poll()

    def rollouts(self) -> list[dict]:
        """Every rollout record so far, oldest first."""
        return self.rollouts_reader().poll()

    def alarms(self) -> list[dict]:
        """All alarms of the run: {time, name, step, title, meaning, control}."""
        return JsonlReader(self.path / "alarms.jsonl").poll()

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """The logged values of a metric: (steps, values)."""
        pairs = [
            (record["step"], record[metric]) for record in self.metrics() if record.get(metric) is not None
        ]
        return [step for step, _ in pairs], [value for _, value in pairs]

    def follow(self, poll_seconds: float = 0.5) -> Iterator[dict]:
        """Yield new metrics records until the run is over."""
        reader = self.metrics_reader()
        while True:
            over = self.is_over  # checked before reading, so that the last records are still read
            yield from reader.poll()
            if over:
                return
            time.sleep(poll_seconds)

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        folders = (self.path / "checkpoints").glob("step_*")
        return sorted((folder for folder in folders if STEP.fullmatch(folder.name)), key=step_of)

    def latest_checkpoint(self) -> Path | None:
        """The folder of the newest complete checkpoint; None without checkpoints."""
        checkpoints = self.checkpoints()
        return checkpoints[-1] if checkpoints else None

    def best_checkpoint(self) -> Path | None:
        """The checkpoint of the best validation by save_best; None without this setting, and if step 0 was the best."""
        manager = (self.info.get("config") or {}).get("exp_manager") or {}
        ranking = Ranking.of(manager.get("checkpoint_callback_params") or {})
        step = ranking.best_step(self.metrics()) if ranking else None
        return next((folder for folder in self.checkpoints() if step_of(folder) == step), None)

    # -- steering -------------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Ask the run to save a checkpoint and end after the current step."""
        control = self.path / "control"
        control.mkdir(parents=True, exist_ok=True)
        (control / "stop").touch()


def step_name(step: int) -> str:
    """The name of a checkpoint's folder: 12 → step_000012."""
    return f"step_{step:06d}"


def step_of(checkpoint: Path | None) -> int:
    """The number of completed steps in a checkpoint; 0 for None."""
    return int(checkpoint.name.removeprefix("step_")) if checkpoint else 0


def flatten(record: dict, prefix: str = "") -> dict[str, object]:
    """The values of a nested dict by their full names, such as `model.optim.lr`."""
    values: dict[str, object] = {}
    for name, value in record.items():
        values |= (
            flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
        )
    return values


def status_in(info: dict) -> str:
    """The status of a run with this content of run.json. For the statuses, see `RunFolder.status`."""
    status = info.get("status", "waiting")
    if status != "running":
        return status
    alive = _alive(info) if _is_here(info) else time.time() - info["heartbeat"]["time"] < STALE_SECONDS
    return "running" if alive else "lost"


def find_runs(root: str | os.PathLike, report: Callable[[str], object] = logger.warning) -> list[RunFolder]:
    """Find all runs below a folder, up to three levels deep, newest first. Runs in `old-1` and similar folders are left out.

    report: is called with a sentence about each damaged or unreadable run, which is left out too.
    """
    root = Path(root)
    folders = [path.parent for depth in ("", "*/", "*/*/") for path in root.glob(f"{depth}*/run.json")]
    runs = [RunFolder(path) for path in set(folders) if not re.fullmatch(r"old-\d+", path.name)]
    created = {}
    for run in runs:
        try:
            created[run] = run.info.get("created", 0)
        except (DamagedRunError, OSError) as problem:
            # a file that a power cut emptied must not hide the other runs
            report(f"{problem}; the run is left out")
    return sorted(created, key=lambda run: -created[run])


def _is_whole(info: dict) -> bool:
    """Whether the names in a run.json are texts, its times are Unix seconds, and its process can exist."""
    if not all(isinstance(info.get(name, ""), str) for name in ("kind", "status", "host")):
        return False
    heartbeat, pid = info.get("heartbeat") or {}, info.get("pid", 1)
    if not isinstance(heartbeat, dict) or not isinstance(pid, int) or not 0 < pid <= MOST_PID:
        return False
    has_sign_of_life = "pid" in info if _is_here(info) else "time" in heartbeat
    if info.get("status") == "running" and not has_sign_of_life:
        return False
    seconds = info.get("created", 0), heartbeat.get("time", 0)
    return all(isinstance(value, int | float) and 0 <= value < MOST_SECONDS for value in seconds)


def _is_here(info: dict) -> bool:
    """Whether the run's process is, or was, on this machine."""
    return info.get("host") == os.uname().nodename


def _alive(info: dict) -> bool:
    """Whether the process that wrote run.json still exists.

    Old runs have no 'identity'; only their pid is checked.
    """
    now = processes.identity(info["pid"])
    return now is not None and info.get("identity") in (None, "", now)


def without_paths(config, below: str = ""):
    """A run's settings, except paths on the run's machine. below: the key that has these settings."""
    if isinstance(config, dict):
        clean = {
            key: value if _has_no_path(below, key) else without_paths(value, _name_below(below, key))
            for key, value in config.items()
        }
        return {key: value for key, value in clean.items() if value not in ({}, [])}
    if isinstance(config, list):
        return [without_paths(value, below) for value in config if not _is_path(value, below)]
    return None if _is_path(config, below) else config


def _has_no_path(below: str, key: str) -> bool:
    """Whether no value of a key is a path: metrics' names, and the criteria of a judge's rubric."""
    return key in NAME_METRICS or (below == ARGS and key == RUBRIC_ARG)


def _name_below(below: str, key: str) -> str:
    """The name under which `_is_path` judges the values of a key: ARGS and MODEL_ARG for all of an environment's arguments."""
    if below not in (ARGS, MODEL_ARG):
        return key
    return MODEL_ARG if key == "model" else ARGS


def _is_path(value, below: str) -> bool:
    """Whether a value is a path. An environment's arguments may also be texts with a slash, such as a judge's rubric or a
    model's name."""
    if not isinstance(value, str) or "/" not in value:
        return False
    if below == MODEL_ARG:
        return PATH_WITHIN.search(value) is not None
    return below != ARGS or " " not in value or PATH_WITHIN.search(value) is not None
