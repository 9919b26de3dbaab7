"""Compares a requested run with an earlier run of its name: the run in its folder, or a bundle's recorded run.

An earlier run goes on, or replaces training, only if the cell requests the same run. Otherwise the notebook would show curves
and answers of different runs side by side.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from aligner_lib.config.compose import compose, parse_override, save, written
from aligner_lib.config.function_hashes import hashes_of_functions
from aligner_lib.config.kind import Component
from aligner_lib.config.kinds import kind_of
from aligner_lib.config.validation import without_effect
from aligner_lib.errors import UserError
from aligner_lib.models.hash import file_hash, model_hash, text_hash
from aligner_lib.models.resolve import resolve
from aligner_lib.run_folder.reader import RunFolder, flatten, without_paths

MODELS = (".restore_from_path", ".rm_model_file")  # the ends of settings that name a model
WITHOUT_MODEL = ("evaluate",)  # kinds of job whose runs leave metrics but no model
NOT_COMPARED = ("exp_manager.", "functions.")  # paths and displays; the functions' texts are compared
OF_THE_MACHINE = (".devices", ".num_nodes", ".port")
SEED = "model.seed"
RESUMES = "exp_manager.resume_if_exists"
ENVIRONMENTS = "model.environments."
JUDGE = ("url", "model")  # the arguments of an environment that name a judge


@dataclass(frozen=True)
class RequestedRun:
    """A run that a notebook's cell requests."""

    commands: Mapping[str, list[str]]
    """The command of each component."""
    profile: str | None
    functions: Mapping[str, str]
    """The texts of the learner's functions, by the setting for a function's file."""
    is_branch: bool = False
    """Whether the run continues another run, with the other run's inputs."""

    def folders(self) -> Iterator[tuple[Path, list[str]]]:
        """Each component's run folder and settings."""
        for words in self.commands.values():
            folder, *overrides = words[words.index("--run") + 1 :]
            yield Path(folder), overrides

    def started(self) -> Iterator[tuple[RunFolder, DictConfig]]:
        """The earlier run of each component that has one, and the requested settings."""
        for folder, overrides in self.folders():
            if (run := RunFolder(folder)).kind:
                yield run, compose(run.kind, overrides, self.profile)


# -- the run in the folder ----------------------------------------------------------------------------------------------


def reason_to_begin_anew(run: RunFolder, requested: RequestedRun) -> str:
    """The difference for which training begins anew; "" if an earlier run goes on, or without an earlier run.

    A run goes on with other settings until its end, but never with other functions or inputs, or with another seed.
    """
    if not run.info:
        return ""
    checks = {"trained with other code": _other_functions}
    if run.status == "finished":
        checks |= {"trained with other jobs": _other_jobs, "finished with other settings": _other_settings}
    else:
        checks |= {"begun with another seed": _other_seeds}
    checks |= {"trained from other inputs": _other_inputs}
    for what, differences in checks.items():
        if differ := differences(run, requested):
            return f"{what} ({', '.join(differ)})"
    return ""


def changes_of_unfinished(run: RunFolder, requested: RequestedRun) -> list[str]:
    """The settings that change when an unfinished run goes on from its checkpoint; empty for any other run."""
    if run.status == "finished" or not run.is_over or run.latest_checkpoint() is None:
        return []
    resumes = (
        OmegaConf.select(config, RESUMES, default=True) is not False for _, config in requested.started()
    )
    return _all_changes(requested) if all(resumes) else []


def _other_functions(run: RunFolder, requested: RequestedRun) -> list[str]:
    config, hashes = flatten(run.info.get("config") or {}), run.info.get("hashes") or {}
    cells = str(run.path / "functions")
    before = {key: value for key, value in hashes.items() if str(config.get(key, "")).startswith(cells)}
    now = {key: text_hash(text) for key, text in requested.functions.items()}
    return [key for key in before | now if before.get(key) != now.get(key)]


def _other_jobs(run: RunFolder, requested: RequestedRun) -> list[str]:
    """The components that had a job of their own and have none now, or the other way round, such as PPO's critic."""
    folders = {folder for folder, _ in requested.folders()}
    parts = [part.folder for part in kind_of(run.kind).components.values() if part.folder] if run.kind else []
    return [part for part in parts if (run.path / part).is_dir() != (run.path / part in folders)]


def _other_settings(run: RunFolder, requested: RequestedRun) -> list[str]:
    """Empty for a component whose settings may add steps: the run then goes on, and says which settings have changed."""
    return [
        change
        for part, config in requested.started()
        if not _adds_steps(part, config)
        for change in _changes(part.info["config"], save(config))
    ]


def _other_seeds(run: RunFolder, requested: RequestedRun) -> list[str]:
    return [change for change in _all_changes(requested) if change.partition(" ")[0].endswith(SEED)]


def _all_changes(requested: RequestedRun) -> list[str]:
    return [
        change
        for part, config in requested.started()
        for change in _changes(part.info["config"], save(config))
    ]


def _adds_steps(run: RunFolder, config: DictConfig) -> bool:
    """Whether a run may become longer: of the bounds max_steps and max_epochs, one is larger than before and none is smaller."""
    before, now = _settings(run.info["config"]), _settings(save(config))
    steps, epochs = (f"trainer.{run.kind}.{name}" for name in ("max_steps", "max_epochs"))
    earlier = _steps(before, steps), _epochs(before, epochs, is_recorded=True)
    later = _steps(now, steps), _epochs(now, epochs)
    return later != earlier and all(new >= old for old, new in zip(earlier, later))


def _steps(settings: Mapping[str, object], key: str) -> float:
    value = settings.get(key)
    return math.inf if value in (None, -1) else value


def _epochs(settings: Mapping[str, object], key: str, is_recorded: bool = False) -> float:
    """The bound of max_epochs. None, the default, is no bound beside max_steps, and one epoch without.

    is_recorded: the settings of a run, which an earlier version may have written: it had the default 1, and ignored max_epochs
    beside max_steps.
    """
    value = settings.get(key)
    if _steps(settings, f"{key.rpartition('.')[0]}.max_steps") == math.inf:
        value = 1 if value is None else value
    elif is_recorded and value == 1:
        value = None
    return math.inf if value in (None, -1) else value


def _changes(earlier: Mapping, later: Mapping) -> list[str]:
    """The settings whose values differ, except paths and settings of machines."""
    before, now = _settings(earlier), _settings(later)
    of_environments = {key for key in before | now if key.startswith(ENVIRONMENTS)}
    return [
        f"{key} {before.get(key)} → {now.get(key)}"
        for key in _unequal(before, now, before.keys() & now.keys() | of_environments)
        if not key.endswith(OF_THE_MACHINE)
    ]


def _other_inputs(run: RunFolder, requested: RequestedRun) -> list[str]:
    """The names of models, data files, and files of environments for which the settings name files of other content."""
    if requested.is_branch:
        return []
    return [name for part, config in requested.started() for name in _differing_inputs(part, config)]


def _differing_inputs(run: RunFolder, config: DictConfig) -> list[str]:
    hashes, now = run.info.get("hashes") or {}, hashes_of_functions(config)
    if not hashes:  # an early release did not record them
        return []
    names = [*_other_models(hashes, config), *(file.name for file in _other_data(run, config))]
    return names + [key for key in _of_environments(hashes | now) if hashes.get(key) != now.get(key)]


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


# -- the running job ----------------------------------------------------------------------------------------------------


def differences_from_job(
    run: RunFolder,
    job: Mapping[str, list[str]],
    kind: str,
    requested: RequestedRun,
    shared: Mapping[str, object],
) -> list[str]:
    """The differences between a requested run and a run's unfinished job, which may not have written run.json yet.

    job: the command of each component. kind: of the run. shared: a branch's settings of its parent, which no command contains.
    """
    if job.keys() != requested.commands.keys():
        return [f"jobs {', '.join(job)} → {', '.join(requested.commands)}"]
    common, differ = [f"{key}={written(value)}" for key, value in shared.items()], []
    for name, words in requested.commands.items():
        part = kind_of(kind).components[name] if len(job) > 1 else Component(kind)
        (head, before), (later_head, now) = map(_in_parts, (job[name], words))
        differ += [f"{' '.join(head)} → {' '.join(later_head)}"] if head != later_head else []
        configs = (save(compose(part.kind, [*common, *own], requested.profile)) for own in (before, now))
        differ += [f"{part.prefix}{change}" for change in _changes(*configs)]
        # own_functions.write has refused a cell's function with another text
        cells = str(run.path / "functions")
        earlier, later = (_functions_in(own, cells) for own in (before, now))
        differ += sorted(key for key in earlier | later if earlier.get(key) != later.get(key))
    return differ + (_other_inputs(run, requested) if run.status == "running" else [])


def _in_parts(command: list[str]) -> tuple[list[str], list[str]]:
    """The words of a command between `python -m aligner_lib` and its run folder, and the settings after its run folder."""
    at = command.index("--run") if "--run" in command else len(command)
    return command[3:at], command[at + 2 :]


def _functions_in(overrides: list[str], cells: str) -> dict[str, str]:
    """The files of the functions in a command, by setting; `cells` for a file in the run folder's folder of this name."""
    files = {key: str(file) for key, file in map(parse_override, overrides) if key.startswith("functions.")}
    return {key: cells if file.startswith(cells) else file for key, file in files.items()}


# -- a bundle's recorded run --------------------------------------------------------------------------------------------


def difference(
    run: RunFolder, kind: str, profile: str, inputs: Mapping[str, object], functions: Mapping[str, str]
) -> str | None:
    """The first difference between a requested run and the recorded run, in a few words; None without a difference.

    run: the recorded run. kind, profile, inputs: of the requested run. inputs: the settings from the notebook and the
    workspace, including models and data. functions: the texts of the learner's functions, by the setting for a function's file.
    A recording that was trained with functions also replaces a run without functions, because the recorded notebooks pass
    solutions, which compute the same as the library's functions.
    """
    hashes = run.info["hashes"]
    if own := [key for key, text in functions.items() if hashes.get(key) != text_hash(text)]:
        return f"the recording was trained with another {', '.join(own)} than yours"
    if run.kind != kind:
        return f"its kind is {run.kind}"
    config = _composed(kind, profile, inputs)
    before, now = _settings(run.info["config"]), _settings(save(config))
    for key in _unequal(before, now, (before | now).keys() - set(functions)):
        return f"the recording has {key}={before.get(key)}, and this run {now.get(key)}"
    of_functions = hashes_of_functions(config)
    for key in _of_environments(of_functions):
        if hashes.get(key) != of_functions[key]:
            return f"the recording has another file in {key}"
    policies = inputs.get("evaluation.policies", {})
    for name, policy in policies.items():
        if hashes.get(f"policies.{name}") != _hash_of(Path(str(policy))):
            return f"the recording has no policy {name} with the weights of {policy}"
    return _difference_in_data(run, config) or _difference_in_models(hashes, inputs)


def difference_in_origin(run: RunFolder, kind: str, profile: str, inputs: Mapping[str, object]) -> str | None:
    """As `difference`, but only for data and adapters: a later notebook needs a run of the kind and has no settings for it."""
    config = _composed(kind, profile, inputs)
    before, now = flatten(run.info["config"]), _settings(save(config))
    for key, value in now.items():
        if key.endswith(".peft_scheme") and before.get(key) != value:
            return f"the recording has {key}={before.get(key)}, and this workspace {value}"
    return _difference_in_data(run, config)


def _difference_in_data(run: RunFolder, config: DictConfig) -> str | None:
    return next((f"the recording used another {file.name}" for file in _other_data(run, config)), None)


def _difference_in_models(hashes: Mapping[str, str], inputs: Mapping[str, object]) -> str | None:
    given = [Path(str(value)) for key, value in inputs.items() if key.endswith(MODELS)]
    hashes_now = {_hash_of(path) for path in given if path.exists()}
    for name in ("model", "reward_model"):
        had = hashes.get(name)
        if given and had is not None and had not in hashes_now:
            return f"the recording started from another {name.replace('_', ' ')} than {' or '.join(map(str, given))}"
    return None


def _hash_of(model: Path) -> str:
    return model_hash(RunFolder(model).latest_checkpoint() or model)


def _composed(kind: str, profile: str, inputs: Mapping[str, object]) -> DictConfig:
    return compose(kind, [f"{key}={written(value)}" for key, value in inputs.items()], profile)


# -- both ---------------------------------------------------------------------------------------------------------------


def _settings(config: Mapping) -> dict[str, object]:
    """The settings without paths, by their full names, and the address and model of each judge, which have a slash."""
    clean, judges = without_paths(config), {}
    for name, args in _arguments(config):
        judges |= {f"{ENVIRONMENTS}{name}.args.{key}": args[key] for key in JUDGE if args.get(key)}
    for _, args in _arguments(clean):
        # an early release's form of a list of [criterion, weight]
        if isinstance(args.get("rubric"), Mapping):
            args["rubric"] = [list(entry) for entry in args["rubric"].items()]
    return flatten(clean) | {key: _without_port(value) for key, value in judges.items()}


def _arguments(config: Mapping) -> Iterator[tuple[str, dict]]:
    """Each environment that has arguments, and its arguments."""
    for name, environment in ((config.get("model") or {}).get("environments") or {}).items():
        if isinstance(args := environment.get("args"), dict):
            yield name, args


def _without_port(address: object) -> object:
    """The address without its port on this machine, because a notebook's server has a new port each time."""
    return re.sub(r"^(http://127\.0\.0\.1):\d+", r"\1", address) if isinstance(address, str) else address


def _left_out(before: Mapping[str, object]) -> set[str]:
    """The judges' settings that a recording leaves out as paths."""
    ends = tuple(f".args.{key}" for key in JUDGE)
    return {
        key
        for key, value in before.items()
        if key.startswith(ENVIRONMENTS) and key.endswith(ends) and not value
    }


def _unequal(
    before: Mapping[str, object], now: Mapping[str, object], names: Collection[str]
) -> Iterator[str]:
    """The names, in order, whose values differ, except settings that are not compared or that the job chooses."""
    for key in sorted(set(names) - _left_out(before)):
        compared = not key.startswith(NOT_COMPARED) and not _is_left_to_the_job(key, now.get(key))
        if key.endswith(".max_epochs"):
            compared = _epochs(before, key, is_recorded=True) != _epochs(now, key)
        if compared and before.get(key) != now.get(key):
            yield key


def _is_left_to_the_job(key: str, value: object) -> bool:
    """Whether the job chooses the value of a setting, by its machine or by its model. The run's settings have the choice."""
    return value == "auto" or (value is None and key.endswith(".chat_template"))


def _of_environments(names: Collection[str]) -> list[str]:
    return [name for name in names if name.startswith(ENVIRONMENTS)]


def _other_data(run: RunFolder, config: DictConfig) -> list[Path]:
    """The data files of the settings that the run did not read. An evaluation does not read each file of its settings."""
    hashes = run.info.get("hashes") or {}
    known = {} if run.kind in WITHOUT_MODEL else hashes
    return [
        file
        for file in _files(run.kind, config)
        if (file.name in hashes or known) and file_hash(file) not in _of_name(file.name, hashes)
    ]


def _of_name(name: str, hashes: Mapping[str, str]) -> set[str]:
    """The hashes of the files of a name, or of all files if none has the name."""
    return {had for key, had in hashes.items() if Path(key).name == name} or set(hashes.values())


def _files(kind: str, config: DictConfig) -> Iterator[Path]:
    """The existing data files that the settings name, except files that the kind of job does not read."""
    idle = without_effect(kind_of(kind), config)
    for key, value in flatten(save(config)).items():
        if (".data_prefix" in key or key.endswith(".file_path")) and key not in idle:
            paths = [Path(str(part)).expanduser() for part in (value if isinstance(value, list) else [value])]
            yield from filter(Path.is_file, paths)
