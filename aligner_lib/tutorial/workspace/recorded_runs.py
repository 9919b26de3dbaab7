"""Recorded runs of a bundle, which a notebook with `start="recorded"` uses instead of training.

    $ALIGNER_CACHE/recorded/PROFILE/NAME/    run folders, with the last checkpoint's weights but without the optimizer

A recorded run replaces a notebook's run only if settings, models and data are the same (`earlier_runs.difference`).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.models.fetch import cache_root
from aligner_lib.run_folder.reader import RunFolder, without_paths
from aligner_lib.tutorial.workspace.earlier_runs import WITHOUT_MODEL
from cluster.states import State, Status

RECORDS = ("run.json", "metrics.jsonl", "rollouts.jsonl", "alarms.jsonl")
# fields of run.json that are meaningless on another machine
OF_THE_MACHINE = ("host", "pid", "identity", "slurm", "warnings")


class RecordedJob:
    """The handle of a recorded run, with the part of `cluster.Job`'s interface that notebooks use."""

    status = Status(State.FINISHED, "recorded")
    state = State.FINISHED
    reason, nodes = "recorded", ()

    def __init__(self, run: Path):
        self.run = run
        self.name = run.name

    def tail(self, n: int = 20) -> str:
        """Always "", because a recording has no log."""
        return ""

    logs = tail

    def wait(self, timeout: float | None = None) -> State:
        """Return immediately, because the run is over."""
        return self.state

    def cancel(self) -> State:
        """Do nothing, because the run is over."""
        return self.state

    def __await__(self):
        return self.state
        yield  # makes the method a generator, as `await` requires


def recorded_root(profile: str) -> Path:
    """The folder of a profile's recorded runs. The folder may not exist."""
    return cache_root() / "recorded" / profile


def recorded(profile: str, name: str) -> RunFolder | None:
    """A recorded run by name; None without such a recording, and for a recording whose model was removed."""
    run = RunFolder(recorded_root(profile) / name)
    return run if run.info and _has_result(run) else None


def packable(tutorial: Path) -> list[RunFolder]:
    """The runs of a tutorial that can replace training: finished runs with a checkpoint, or of a kind without a model."""
    runs = [RunFolder(path.parent) for path in sorted((tutorial / "runs").glob("*/run.json"))]
    return [run for run in runs if run.status == "finished" and _has_result(run)]


def _has_result(run: RunFolder) -> bool:
    """Whether a run has a checkpoint, or is of a kind without a model."""
    return run.latest_checkpoint() is not None or run.kind in WITHOUT_MODEL


def infos_to_pack(run: RunFolder) -> dict[str, dict]:
    """The contents of a run's run.json and of its parts' by their names in a bundle. See `info_to_pack`."""
    return {f"{prefix}run.json": info_to_pack(part) for prefix, part in _with_parts(run)}


def files_of(run: RunFolder) -> Iterator[tuple[str, Path]]:
    """(name, path) of each packed file of a run, except run.json: the records, and the weights of the last checkpoint."""
    for prefix, part in _with_parts(run):
        for name in RECORDS[1:]:
            if (part.path / name).exists():
                yield f"{prefix}{name}", part.path / name
    checkpoint = run.latest_checkpoint()
    for path in sorted(checkpoint.rglob("*")) if checkpoint else ():
        inside = path.relative_to(checkpoint)
        if path.is_file() and not {"optimizer", "critic"} & set(inside.parts):
            yield f"checkpoints/{checkpoint.name}/{inside.as_posix()}", path


def info_to_pack(run: RunFolder) -> dict:
    """The content of run.json for a bundle: marked as recorded, and without fields and paths of the machine."""
    info = {key: value for key, value in run.info.items() if key not in OF_THE_MACHINE}
    ended = (info.get("heartbeat") or {}).get("time")
    seconds = round(ended - info["created"], 1) if ended else 0.0
    return info | {
        "name": f"{info['name']} (recorded)",
        "config": without_paths(info["config"]),
        "recorded": {"commit": info.get("git_commit", ""), "seconds": seconds},
    }


def place(run: RunFolder, into: Path) -> Path:
    """Install a recorded run as the workspace's run `into`: copy the records, and link the checkpoints. See `make_way`.

    run.json gets the time, `recorded.placed`, by which the classroom finds a seat's newest run.
    """
    make_way(into)
    for prefix, part in _with_parts(run):
        (into / prefix).mkdir(parents=True)
        for name in RECORDS:
            if (part.path / name).exists():
                shutil.copyfile(part.path / name, into / prefix / name)
    info = run.info
    origin = info["recorded"] | {"placed": round(time.time(), 3)}
    (into / "run.json").write_text(as_json(info | {"recorded": origin}))
    if run.checkpoints():
        (into / "checkpoints").mkdir()
    for checkpoint in run.checkpoints():
        os.symlink(checkpoint, into / "checkpoints" / checkpoint.name, target_is_directory=True)
    return into


def make_way(folder: Path) -> None:
    """Remove the files that `place` put into a run folder.

    Other files are kept: the folder is renamed to `NAME-kept-1`, `NAME-kept-2` and so on, and the new name is printed.
    Raises UserError if the folder's run is still running.
    """
    run, emptied = RunFolder(folder), []
    if is_recorded(run):
        links = [path for path in folder.glob("checkpoints/*") if path.is_symlink()]
        parts = _with_parts(run)
        for path in (*(folder / prefix / name for prefix, _ in parts for name in RECORDS), *links):
            path.unlink(missing_ok=True)
        emptied = [folder / prefix for prefix, _ in parts[1:]]
    elif run.status == "running":
        raise UserError(f"{folder} is still running: stop the run, or wait for its end, and start again")
    for empty in (*emptied, folder / "checkpoints", folder):
        with suppress(OSError):  # missing, or not empty
            empty.rmdir()
    if folder.exists():
        names = (folder.with_name(f"{folder.name}-kept-{number}") for number in count(1))
        kept = folder.rename(next(name for name in names if not name.exists()))
        print(f"{folder} contained other files, which are now in {kept}")


def _with_parts(run: RunFolder) -> list[tuple[str, RunFolder]]:
    """A run and, if an evaluation has several policies, the run of each, with the prefix of its files' names."""
    policies = (run.info.get("config") or {}).get("evaluation", {}).get("policies") or {}
    inside = [name for name in policies if Path(name).name == name]
    return [("", run), *((f"{name}/", RunFolder(run.path / name)) for name in inside)]


def is_recorded(run: RunFolder) -> bool:
    """Whether a run folder was created by `place`."""
    return "recorded" in run.info


def describe(run: RunFolder) -> str:
    """A sentence for the reader about the origin of a recorded run."""
    origin = run.info["recorded"]
    at = f" at commit {origin['commit']}" if origin["commit"] else ""
    return f"{run.name}: recorded{at} in {origin['seconds']:.0f} s; this cell trains nothing"


def as_json(info: dict) -> str:
    """The text of run.json."""
    return json.dumps(info, indent=1)
