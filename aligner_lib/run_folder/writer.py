"""Writes a run folder: the training process's side of `aligner_lib.run_folder.reader`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.run_folder import control
from aligner_lib.run_folder.alarms import Rule, Thresholds, Watch, as_record, not_finite
from aligner_lib.run_folder.jsonl import JsonlWriter, truncate_after
from aligner_lib.run_folder.reader import RunFolder, flatten, status_in, step_name, step_of
from aligner_lib.run_folder.set_aside import precedes_change, set_aside, way_back
from cluster import processes

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0
CHANGES_SHOWN = 8  # number of changed settings listed in a message
RECORDS = ("metrics.jsonl", "rollouts.jsonl", "alarms.jsonl")
FAILURES = "environment_failures.txt"
CLAIM = ".starting"  # locked by the process that begins a run, and removed once run.json names the process
OF_THE_PROCESS = ("status", "message", "pid", "identity", "host", "slurm", "heartbeat")  # fields of run.json
OF_THE_FIGURES = ("config", "precision", "profile", "seed", "versions", "git_commit", "max_steps")
# settings that change no training step
OF_NO_STEP = re.compile(r"exp_manager\..*|trainer\.\w+\.(val_check|save)_interval")
OF_THE_LENGTH = re.compile(r"trainer\.\w+\.max_(steps|epochs)")
OF_CODE = ("functions.", "model.environments.")  # beginnings of keys of the hashes
ANEW = "begin anew with exp_manager.resume_if_exists=False"
VERSIONED = ("aligner-lab", "torch", "megatron-core", "transformer-engine", "numpy", "tokenizers")


class RunWriter:
    """Writes a run. As a context manager, the writer records the run's final status, also after an exception.

    with RunWriter(path, kind="sft", config=..., ...) as run:
        run.log(step, {"train/loss": 1.5})
    """

    def __init__(
        self,
        path: Path,
        *,
        kind: str,
        config: dict,
        seed: int,
        hashes: dict[str, str],
        max_steps: int,
        precision: str | None = None,
        profile: str | None = None,
        alarms: Iterable[Rule] = (not_finite,),
        limits: Thresholds | None = None,
        warnings: list[str] | None = None,
    ):
        """precision: the precision of the computation, as a value of trainer.precision; None: no model computes. warnings: the
        job's warnings; the caller may add to the list. Raises FileExistsError for the folder of a run in progress, and
        UserError for a folder of another kind of job."""
        self.folder = RunFolder(path)
        self.path = self.folder.path
        self.path.mkdir(parents=True, exist_ok=True)
        attempt = _attempt()
        with contextlib.ExitStack() as claim:
            claim.enter_context(_claimed(self.path))
            before = self._earlier_info(kind, attempt)
            self._claim = claim.pop_all()  # until run.json names this process
        self._info = {
            "name": self.path.name,
            "kind": kind,
            "status": "running",
            "message": "",
            "config": config,
            "precision": precision,
            "profile": profile,
            "seed": seed,
            "versions": _versions(),
            "git_commit": _git_commit(),
            "hashes": hashes,
            "servers": {},  # see `check_server`
            "created": before.get("created", time.time()),
            "resumed": before.get("resumed", -1) + 1,
            "resumed_at": before.get("resumed_at", []),
            "changed_at": before.get("changed_at", []),
            "other_settings_at": before.get("other_settings_at", []),
            "pid": os.getpid(),
            "identity": processes.identity(os.getpid()),
            "host": platform.node(),
            "slurm": attempt,
            "max_steps": max_steps,
            "warnings": [] if warnings is None else warnings,
            "heartbeat": {"time": time.time(), "step": 0},
        }
        if "parent" in before:
            self._info["parent"] = before["parent"]
        self._before = before
        self._begun = False
        self._is_loading = False  # see `start_loading`
        self._after_loading: Callable[[], object] = lambda: None
        # run.json of the earlier attempt, while its checkpoint is loaded
        self._stored_info: bytes | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._beat = threading.Thread(target=self._keep_beating, daemon=True)
        self._files: list[JsonlWriter] = []
        self._noted_failures: set[tuple[str, str]] = set()  # environment, reason
        self._watch = Watch(alarms, limits or Thresholds())

    def _earlier_info(self, kind: str, attempt: dict) -> dict:
        """The run.json of the earlier attempt. Raises FileExistsError and UserError as the constructor does."""
        before = self.folder.info
        is_own = (before.get("pid"), before.get("host")) == (os.getpid(), platform.node())
        is_same_run = is_own or _takes_over(attempt, before)
        if status_in(before) == "running" and not is_same_run:
            raise FileExistsError(
                f"{self.path} belongs to a run in progress (pid {before['pid']}): stop the run first "
                f"(`aligner stop {self.path}`) or choose another folder"
            )
        if before.get("kind", kind) != kind:
            raise UserError(
                f"{self.path} is the run folder of a job of another kind ({before['kind']}), which this job ({kind}) would "
                "overwrite: choose another folder (--run)"
            )
        return before

    def start(self, step: int) -> None:
        """Start to write after `step` (0: a new run). For the files of an earlier attempt, see `rewind`.

        Raises UserError, and leaves the folder unchanged, if the run would continue with another model or other data, also for a
        branch that computes its parent's steps again.
        """
        if step or self._repeats_parent():
            self._check_inputs(step)
        self._begin()
        self._go_on(step)

    def start_loading(self, step: int) -> None:
        """Start like `start`, but keep the earlier attempt's files until its checkpoint is loaded.

        The first `rewind` ends the loading. Until then run.json has the earlier attempt's settings and this process's state. If
        the checkpoint is refused (UserError, ValueError), run.json returns to its earlier content. Raises UserError as `start`
        does.
        """
        self._check_inputs(step)
        self._is_loading = True
        with contextlib.suppress(FileNotFoundError):
            self._stored_info = (self.path / "run.json").read_bytes()
        if self._stored_info is None:
            logger.warning(
                f"{self.path} has checkpoints but no run.json: model and data are not compared with the earlier attempt's"
            )
        self._info["heartbeat"]["step"] = step
        self._begin()
        self._write_info()
        self._claim.close()
        self._beat.start()

    def after_loading(self, action: Callable[[], object]) -> None:
        """Call `action` once run.json has this attempt's settings: now, or after `start_loading` at the first `rewind`."""
        if self._is_loading:
            self._after_loading = action
        else:
            action()

    def _begin(self) -> None:
        self._begun = True
        with contextlib.suppress(FileExistsError):  # a file, which `control.take` reports
            (self.path / "control").mkdir(exist_ok=True)
        if not self._is_dispatched():
            # the request was meant for the earlier attempt
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (self.path / "control" / "stop").unlink()

    def _go_on(self, step: int) -> None:
        """Write as the run's current attempt from now on."""
        self.rewind(step)
        if 0 < self._info["max_steps"] <= step:
            self._keep_settings()
        elif step:
            self._announce_changes(step)
        self._write_info()
        self._claim.close()
        self._after_loading()
        if not self._beat.is_alive():
            self._beat.start()

    def _repeats_parent(self) -> bool:
        """Whether a branch begins with its parent's steps: it was never started, or does not begin anew."""
        resumes = flatten(self._info["config"]).get("exp_manager.resume_if_exists", True)
        has_shared_steps = bool((self._before.get("parent") or {}).get("step"))
        return has_shared_steps and (resumes or "heartbeat" not in self._before)

    def _check_inputs(self, step: int) -> None:
        """Raise UserError for other models or data than before. A branch may have other functions and environments from its
        fork on."""
        at_fork = (self._before.get("parent") or {}).get("step") == step
        before, now = self._before.get("hashes") or {}, self._info["hashes"]
        # early releases recorded files that no job reads, too
        unread = _unread_files(self._before.get("config") or {})
        other = [
            name
            for name in before | now
            if before.get(name) != now.get(name)
            and not (at_fork and name.startswith(OF_CODE))
            and (name in now or _prefix(name) not in unread)
        ]
        if before and other:
            raise UserError(
                f"{self.path} was begun with other inputs ({', '.join(other)}), so the run would continue with different "
                f"inputs: give the original inputs, {self._other_cure}"
            )
        self._info["servers"] = dict(self._before.get("servers") or {})

    @property
    def _other_cure(self) -> str:
        """The cures for other inputs than before, apart from the original inputs."""
        if self._before.get("parent"):
            return "or train its parent anew and branch again"
        if not self._info["max_steps"]:  # of a server, which goes on as its actor does
            return f"or move {self.path} away and begin the actor anew"
        return f"choose another run folder, or {ANEW}"

    def check_server(self, service: str, model: str, named: str) -> None:
        """Record the hash of the model of a connected server. Raises UserError if the run was begun with another model.

        named: the server and its model, as in the message.
        """
        servers = {service: model} | self._info["servers"]
        if servers[service] != model:
            raise UserError(
                f"{named}, serves another model than {self.path} was begun with, so the run would continue with different "
                f"inputs: start the server with the original model, {self._other_cure}"
            )
        self._info["servers"] = servers  # a new dict, because the heartbeat may be writing the old one

    def _announce_changes(self, step: int) -> None:
        changed = self._changed()
        if changed:
            self.announce(f"continues with other settings than before: {_in_words(changed)}")
        decays = _decays_over_run(self._info["config"])
        # trainer.precision may stay the same where the device changes
        has_other_precision = self._before.get("precision") not in (None, self._info["precision"])
        if has_other_precision or any(
            not OF_NO_STEP.fullmatch(name) and (decays or not OF_THE_LENGTH.fullmatch(name))
            for name in changed
        ):
            self._info["other_settings_at"] = [*self._info["other_settings_at"], step]

    def _keep_settings(self) -> None:
        """Keep the settings of a run without a step left: the figures come from these settings."""
        if changed := self._changed():
            anew = "remove the folder and branch again" if self._before.get("parent") else ANEW
            logger.warning(
                f"{self.path} has all its steps, so nothing is trained with other settings ({_in_words(changed)}): choose another run "
                f"folder, or {anew}"
            )
        self._info |= {name: self._before[name] for name in OF_THE_FIGURES if name in self._before}

    def _changed(self) -> dict[str, str]:
        """The settings that differ from the earlier attempt's, each as `before → now`, and the files of functions and
        environments with other content."""
        before, now = flatten(self._before.get("config") or {}), flatten(self._info["config"])
        hashes_before, hashes = self._before.get("hashes") or {}, self._info["hashes"]
        edited = [name for name in hashes_before.keys() & hashes if hashes_before[name] != hashes[name]]
        return {name: f"{now.get(name, 'its file')}, edited since then" for name in sorted(edited)} | {
            name: f"{before.get(name)} → {now.get(name)}"
            for name in before | now
            if before and before.get(name) != now.get(name) and name != "exp_manager.explicit_log_dir"
        }

    def _is_dispatched(self) -> bool:
        """Whether cluster/ started this run. cluster/ removes old stop requests, so an existing request is new."""
        folder = os.environ.get("ALIGNER_JOB_FOLDER")
        return bool(folder) and Path(folder).resolve().is_relative_to(self.path.resolve())

    # -- during the run -------------------------------------------------------------------------------------------

    def rewind(self, step: int) -> None:
        """Go back to a step, after which the run repeats the later steps.

        The records of later steps are cut off, and their checkpoints are moved to `old-N`. `resumed_at` in run.json records the
        step if a step is left to train. At step 0 all files are moved together into a folder that is itself a run folder
        (`old-1`, `old-2`, …).
        """
        if self._is_loading:
            self._is_loading = False
            return self._go_on(step)
        self._close_files()
        for partial in (self.path / "checkpoints").glob(".*_step_*"):
            shutil.rmtree(partial)  # left by an attempt that was killed while saving
        if step:
            self._set_aside([path for path in self.folder.checkpoints() if step_of(path) > step])
            for name in RECORDS:
                if odd := truncate_after(self.path / name, step):
                    self.announce(f"{self.path / name}: {odd} lines that are not records are ignored")
        else:
            self._set_aside_all()
        self._watch.remember(self.folder.metrics())
        self._files = [JsonlWriter(self.path / name) for name in RECORDS]
        self._metrics, self._rollouts, self._alarms = self._files
        kept = [earlier for earlier in self._info["resumed_at"] if earlier < step]
        trains_on = not 0 < self._info["max_steps"] <= step
        self._info["resumed_at"] = [*kept, *[step] * trains_on] if step else []
        self._info["changed_at"] = [changed for changed in self._info["changed_at"] if changed <= step]
        others = {min(changed, step) for changed in self._info["other_settings_at"]}
        self._info["other_settings_at"] = sorted(others) if step else []
        self._info["heartbeat"]["step"] = step

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append a metrics record. Raises TypeError, with the metric's name, for a tensor or an array."""
        for name, value in metrics.items():
            if hasattr(value, "item") and not isinstance(value, int | float):
                raise TypeError(f"{name} is a {type(value).__name__}: write .item(), which returns a number")
        now = time.time()
        self._metrics.append({"step": step, "time": round(now, 3), **metrics})
        self._info["heartbeat"] = {"time": now, "step": step}
        self._write_info()
        for alarm in self._watch.check({"step": step, **metrics}):
            self._alarms.append(as_record(alarm, now))

    def log_rollouts(self, records: list[dict]) -> None:
        """Append a step's records of a split. Call `log_rollouts` before `log`, whose record completes the step."""
        for record in records:
            self._rollouts.append(record)

    def note_failure(self, environment: str, reason: str, text: str) -> None:
        """Log an environment's first failure of each reason, and write it with its traceback into environment_failures.txt."""
        if (environment, reason) in self._noted_failures:
            return
        self._noted_failures.add((environment, reason))
        text = text.encode(errors="backslashreplace").decode()  # half of a surrogate pair has no UTF-8
        logger.warning(f"environment {environment}: {text}")
        with open(self.path / FAILURES, "a", encoding="utf-8") as file:
            file.write(f"{environment}: {text.rstrip()}\n\n")

    def requests(
        self,
        controls: Iterable[str],
        saves_checkpoints: bool = False,
        present: Mapping[str, float] | None = None,
    ) -> control.Requests:
        """Return the requests in control/. Refused changes are left out, and run.json's `message` lists them.

        saves_checkpoints: whether the caller saves a checkpoint before applying a change; the message then says so. present: the
        values of earlier changes. A change to the present value is left out.
        """
        requests = control.take(self.path / "control", tuple(controls))
        new = {name: value for name, value in requests.changes.items() if (present or {}).get(name) != value}
        requests = replace(requests, changes=new)
        if requests.changes:
            self._info["changed_at"] = [*self._info["changed_at"], self._info["heartbeat"]["step"]]
        if sentence := control.in_words(requests, self._info["heartbeat"]["step"], saves_checkpoints):
            self._info["message"] = sentence
            self._write_info()
        return requests

    @property
    def created(self) -> float:
        """When the run was begun, in seconds since the epoch. A resumed run keeps it, also in a moved folder."""
        return self._info["created"]

    @property
    def stop_requested(self) -> bool:
        """Whether a stop was requested."""
        return (self.path / "control" / "stop").exists()

    def acknowledge(self) -> None:
        """Remove the files of completed requests. `stop` stays until the run starts again."""
        control.done(self.path / "control")

    def announce(self, line: str) -> None:
        """Log a line, and write it as run.json's message."""
        logger.info(line)
        self.set_message(line)

    def set_message(self, message: str) -> None:
        """Set run.json's message, which describes the current activity."""
        self._info["message"] = message

    def announce_controls(self, controls: Iterable[str]) -> None:
        """List the controls of the run in run.json."""
        with self._lock:  # a dict must not grow while the heartbeat writes it
            self._info["controls"] = ["stop", "checkpoint", *controls]

    def note_validation_samples(self, count: int) -> None:
        """Write the number of validation samples to run.json, for `aligner explain`."""
        with self._lock:
            self._info["validation_samples"] = count

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def checkpoint_tmp_dir(self, step: int) -> Path:
        """Make the folder for an incomplete checkpoint."""
        tmp_dir = self.path / "checkpoints" / f".writing_{step_name(step)}"
        if tmp_dir.exists():
            shutil.rmtree(tmp_dir)  # left by an attempt that was killed while writing
        tmp_dir.mkdir(parents=True)
        return tmp_dir

    def accept_checkpoint(
        self, tmp_dir: Path, step: int, keep: int, check: Callable[[Path], None], needed: Container[int] = ()
    ) -> Path:
        """Check a checkpoint in its temporary folder, rename its folder, and remove earlier checkpoints beyond `keep`.

        Two kinds of earlier checkpoints stay: the checkpoint before the newest change of a setting, because `aligner undo`
        needs it, and the checkpoints of the steps in `needed`. The new checkpoint is on the disk under its final name before
        old checkpoints are removed. A machine that loses power at any moment keeps a complete checkpoint.
        """
        check(tmp_dir)
        _sync_tree(tmp_dir)
        final = tmp_dir.parent / step_name(step)
        by_step = sorted({*self.folder.checkpoints(), final}, key=step_of)
        way_back = [checkpoint for checkpoint in by_step if precedes_change(checkpoint)][-1:]
        outdated = [
            old
            for old in by_step[:-keep]
            if old != final and old not in way_back and step_of(old) not in needed
        ]
        if final.exists():
            replaced = tmp_dir.with_name(f".replaced_{step_name(step)}")
            shutil.rmtree(replaced, ignore_errors=True)  # left by an attempt that was killed here
            outdated.append(final.rename(replaced))
        tmp_dir.rename(final)
        for folder in (final.parent, self.path):
            _sync(folder)
        for old in outdated:
            shutil.rmtree(old)
        return final

    # -- outdated files -------------------------------------------------------------------------------------------

    def _set_aside_all(self) -> None:
        """Move all records and checkpoints of an earlier attempt into a separate run folder. Without such files, do nothing."""
        records = [self.path / name for name in RECORDS]
        written = [path for path in records if path.exists() and path.stat().st_size]
        written += self.folder.checkpoints()
        if not written:
            return
        info = self.folder.info
        if self.folder.status == "running":  # the run itself, which goes back to its start
            info |= {"status": "stopped", "message": "begun anew"}
        old = self._set_aside(written)
        (old / "run.json").write_text(json.dumps(info, indent=1))
        self._info["created"] = time.time()

    def _set_aside(self, paths: list[Path]) -> Path | None:
        """Move outdated files into a new folder `old-N`, at the same relative paths."""
        old = set_aside(self.path, paths)
        if old is None:
            return None
        names = ", ".join(path.name for path in paths)
        self.announce(f"set aside in {old}: {names}; remove that folder when it is not needed")
        return old

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self, status: str, message: str = "") -> None:
        """Record the run's final status. status: finished or stopped."""
        with self._lock:
            self._info |= {"status": status, "message": message}
            self._info["heartbeat"]["time"] = time.time()
        self._write_info()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind, error, _) -> None:
        if self._is_loading and isinstance(error, (UserError, ValueError)):
            self._restore_info()
        elif error is not None and self._begun and self._info["status"] == "running":
            if kind is KeyboardInterrupt:
                message = str(error) or "interrupted by Ctrl-C or SIGINT"
                self.finish("stopped", message)
                # the command line ends the process without a word
                logger.info(f"{self.folder.name}: {message}")
            else:
                self.finish("failed", str(error) or type(error).__name__)
            if advice := way_back(self.folder):
                logger.warning(advice)
        self._stopped.set()
        self._claim.close()
        # a full disk here must not replace the error that ended the run
        self._close_files(*(() if error is None else (OSError,)))

    def _restore_info(self) -> None:
        """Restore the run.json of the earlier attempt, after the current attempt was refused."""
        self._stopped.set()
        if self._beat.is_alive():
            self._beat.join()
        with self._lock:
            if self._stored_info is None:
                (self.path / "run.json").unlink(missing_ok=True)
            else:
                (self.path / ".run.json").write_bytes(self._stored_info)
                (self.path / ".run.json").rename(self.path / "run.json")

    def _close_files(self, *ignored: type[Exception]) -> None:
        for file in self._files:
            with contextlib.suppress(*ignored):
                file.close()

    def _keep_beating(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            self._info["heartbeat"]["time"] = time.time()
            # if the file system is unavailable for a moment, the next beat tries again
            with contextlib.suppress(OSError):
                self._write_info()

    def _write_info(self) -> None:
        with self._lock:
            tmp_dir = self.path / ".run.json"
            try:
                tmp_dir.write_text(json.dumps(self._shown_info(), indent=1))
                tmp_dir.rename(self.path / "run.json")
            except OSError:  # a full disk must not keep the terminal from showing the run's final status
                with contextlib.suppress(OSError):
                    tmp_dir.unlink(missing_ok=True)
                if self._info["status"] == "running":
                    raise

    def _shown_info(self) -> dict:
        """The content of run.json. During the loading of a checkpoint: the earlier attempt's content, with this process's
        state."""
        if not self._is_loading:
            return self._info
        return self._before | {name: self._info[name] for name in OF_THE_PROCESS}


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Keep other processes from beginning a run in a folder. Raises FileExistsError while another process is beginning one.

    Two jobs that start together both find a free folder. On a file system without locks they still do.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(folder / CLAIM, "a"))
            # not flock, whose lock a forked worker would keep after this process was killed
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(
                f"{folder} is taken by another job, which is starting: wait for its end, or choose another folder"
            ) from None
        except OSError:
            pass  # a file system without locks
        stack.callback((folder / CLAIM).unlink, missing_ok=True)
        yield


def _sync_tree(folder: Path) -> None:
    """Return after all files and folders of a folder are on the disk."""
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    """Apply fsync to a file's content, or to a folder's names."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _decays_over_run(config: dict) -> bool:
    """Whether a learning rate depends on the run's length: its decay has no length of its own."""
    settings = flatten(config)
    has_own_function = bool(settings.get("functions.learning_rate"))
    return any(
        settings[key] is None
        and (has_own_function or settings[f"{key.removesuffix('max_steps')}name"] != "constant")
        for key in settings
        if key.endswith("optim.sched.max_steps")
    )


def _unread_files(config: dict) -> set[str]:
    """The paths and names of data files that a job does not read, of token files their prefixes: those of data_prefix.test, and
    of all splits if environments provide the prompts."""
    flat = flatten(config)
    has_environments = any(key.startswith("model.environments.") for key in flat)
    splits = ("train", "validation", "test") if has_environments else ("test",)
    values = [flat.get(f"model.data.data_prefix.{split}") for split in splits]
    files = [
        str(file) for value in values for file in (value if isinstance(value, list) else [value]) if file
    ]
    return {_prefix(name) for file in files for name in (str(Path(file)), Path(file).name)}


def _prefix(name: str) -> str:
    """The name without the end of a token file's."""
    return name.removesuffix(".bin").removesuffix(".idx")


def _in_words(changed: Mapping[str, str]) -> str:
    more = f" and {len(changed) - CHANGES_SHOWN} more" if len(changed) > CHANGES_SHOWN else ""
    return ", ".join(f"{name} {change}" for name, change in [*changed.items()][:CHANGES_SHOWN]) + more


def _attempt() -> dict:
    """The Slurm job and the number of its restart; empty outside of Slurm."""
    job = os.environ.get("SLURM_JOB_ID")
    return {"job": job, "attempt": int(os.environ.get("SLURM_RESTART_COUNT", 0))} if job else {}


def _takes_over(attempt: dict, before: dict) -> bool:
    """Whether Slurm restarted this run's job on another machine. The earlier attempt is then over, regardless of run.json.

    On the same machine the earlier process can be checked, and a living process must not get a second writer.
    """
    earlier = before.get("slurm") or {}
    again = attempt and attempt["job"] == earlier.get("job") and attempt["attempt"] > earlier["attempt"]
    return bool(again) and before.get("host") != platform.node()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git_commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):  # a machine without git, for example a compute node
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return ""
