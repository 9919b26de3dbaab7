"""Recorded runs of a bundle, which a notebook with `start="recorded"` uses instead of training.

    $ALIGNER_CACHE/recorded/PROFILE/NAME/    run folders, with the last checkpoint's weights but without the optimizer

A recorded run replaces a notebook's run only if settings, models and data are the same. Otherwise the notebook would show
curves and answers of different runs side by side.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from omegaconf import DictConfig

from aligner_lib.config.compose import compose, save
from aligner_lib.config.function_hashes import hashes_of_functions
from aligner_lib.errors import UserError
from aligner_lib.models.fetch import cache_root
from aligner_lib.models.hash import file_hash, model_hash
from aligner_lib.models.resolve import resolve
from aligner_lib.run_folder.reader import RunFolder, flatten, without_paths
from cluster.states import State, Status

RECORDS = ("run.json", "metrics.jsonl", "rollouts.jsonl", "alarms.jsonl")
MODELS = (".restore_from_path", ".rm_model_file")  # the ends of settings that name a model
# fields of run.json that are meaningless on another machine
OF_THE_MACHINE = ("host", "pid", "identity", "slurm", "warnings")
WITHOUT_MODEL = ("evaluate",)  # kinds of job whose runs leave metrics but no model


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
    """A recorded run by name; None without such a recording."""
    run = RunFolder(recorded_root(profile) / name)
    return run if run.info else None


def packable(tutorial: Path) -> list[RunFolder]:
    """The runs of a tutorial that can replace training: finished runs with a checkpoint, or of a kind without a model."""
    runs = [RunFolder(path.parent) for path in sorted((tutorial / "runs").glob("*/run.json"))]
    return [
        run
        for run in runs
        if run.status == "finished" and (run.latest_checkpoint() or run.kind in WITHOUT_MODEL)
    ]


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


def is_left_to_the_job(key: str, value: object) -> bool:
    """Whether the job chooses the value of a setting, by its machine or by its model. The run's settings have the choice."""
    return value == "auto" or (value is None and key.endswith(".chat_template"))


def difference(
    run: RunFolder, kind: str, profile: str, inputs: Mapping[str, object], code: Collection[str] = ()
) -> str | None:
    """The first difference between a requested run and the recorded run, in a few words; None without a difference.

    run: the recorded run. kind, profile, inputs: of the requested run. inputs: the settings from the notebook and the
    workspace, including models and data. code: the settings that name code, which the caller compares. A recording that was
    trained with functions also replaces a run without functions, because the recorded notebooks pass solutions, which compute
    the same as the library's functions.
    """
    if run.kind != kind:
        return f"its kind is {run.kind}"
    config = _composed(kind, profile, inputs)
    before, now = flatten(run.info["config"]), flatten(without_paths(save(config)))
    for key in sorted(before | now):
        if key.startswith(("exp_manager.", "functions.")) or key in code:
            continue
        if before.get(key) != now.get(key) and not is_left_to_the_job(key, now.get(key)):
            return f"the recording has {key}={before.get(key)}, and this run {now.get(key)}"
    hashes = run.info["hashes"]
    for key, hash_now in hashes_of_functions(config).items():
        if key.startswith("model.environments.") and hashes.get(key) != hash_now:
            return f"the recording has another file in {key}"
    policies = inputs.get("evaluation.policies", {})
    for name, policy in policies.items():
        if hashes.get(f"policies.{name}") != _hash_of(Path(str(policy))):
            return f"the recording has no policy {name} with the weights of {policy}"
    if differs := _difference_in_data(run, config):
        return differs
    given = [Path(str(value)) for key, value in inputs.items() if key.endswith(MODELS)]
    hashes_now = {_hash_of(path) for path in given if path.exists()}
    for name in ("model", "reward_model"):
        had = hashes.get(name)
        if given and had is not None and had not in hashes_now:
            return f"the recording started from another {name.replace('_', ' ')} than {' or '.join(map(str, given))}"
    return None


def difference_in_origin(run: RunFolder, kind: str, profile: str, inputs: Mapping[str, object]) -> str | None:
    """As `difference`, but only for data and adapters: a later notebook needs a run of the kind and has no settings for it."""
    config = _composed(kind, profile, inputs)
    before, now = flatten(run.info["config"]), flatten(without_paths(save(config)))
    for key, value in now.items():
        if key.endswith(".peft_scheme") and before.get(key) != value:
            return f"the recording has {key}={before.get(key)}, and this workspace {value}"
    return _difference_in_data(run, config)


def other_inputs(run: RunFolder, config: DictConfig) -> list[str]:
    """The names of a run's models, data files, and files of environments for which the settings name files of other content."""
    hashes, now = run.info.get("hashes") or {}, hashes_of_functions(config)
    if not hashes:  # an early release did not record them
        return []
    names = [*_other_models(hashes, config), *(file.name for file in _other_data(run, config))]
    of_environments = [key for key in hashes | now if key.startswith("model.environments.")]
    return names + [key for key in of_environments if hashes.get(key) != now.get(key)]


def place(run: RunFolder, into: Path) -> Path:
    """Install a recorded run as the workspace's run `into`: copy the records, and link the checkpoints. See `make_way`."""
    make_way(into)
    for prefix, part in _with_parts(run):
        (into / prefix).mkdir(parents=True)
        for name in RECORDS:
            if (part.path / name).exists():
                shutil.copyfile(part.path / name, into / prefix / name)
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


def _composed(kind: str, profile: str, inputs: Mapping[str, object]) -> DictConfig:
    from aligner_lib.config.compose import written

    return compose(kind, [f"{key}={written(value)}" for key, value in inputs.items()], profile)


def _other_models(hashes: Mapping[str, str], config: DictConfig) -> list[str]:
    """The names of the models that the settings do not name. Empty if a named model is missing."""
    settings = flatten(save(config))
    try:
        named = [value for key, value in settings.items() if value and key.endswith(MODELS)]
        given = {model_hash(resolve(value)) for value in named}
    except (OSError, ValueError, UserError):  # the job explains what is wrong with the model
        return []
    known = {name: hashes[name] for name in ("model", "reward_model") if name in hashes and given}
    return [name for name, had in known.items() if had not in given]


def _difference_in_data(run: RunFolder, config: DictConfig) -> str | None:
    return next((f"the recording used another {file.name}" for file in _other_data(run, config)), None)


def _other_data(run: RunFolder, config: DictConfig) -> list[Path]:
    """The data files of the settings that the run did not read. An evaluation does not read each file of its settings."""
    hashes = run.info.get("hashes") or {}
    known = {} if run.kind in WITHOUT_MODEL else hashes
    return [
        file
        for file in _files(config)
        if (file.name in hashes or known) and file_hash(file) not in _of_name(file.name, hashes)
    ]


def _of_name(name: str, hashes: Mapping[str, str]) -> set[str]:
    """The hashes of the files of a name, or of all files if none has the name."""
    return {had for key, had in hashes.items() if Path(key).name == name} or set(hashes.values())


def _files(config: DictConfig) -> Iterator[Path]:
    """The existing data files that the settings name."""
    for key, value in flatten(save(config)).items():
        if ".data_prefix" in key or key.endswith(".file_path"):
            paths = [Path(str(part)).expanduser() for part in (value if isinstance(value, list) else [value])]
            yield from filter(Path.is_file, paths)


def _hash_of(model: Path) -> str:
    return model_hash(RunFolder(model).latest_checkpoint() or model)


def as_json(info: dict) -> str:
    """The text of run.json."""
    return json.dumps(info, indent=1)
