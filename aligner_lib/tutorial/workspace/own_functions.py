"""The learner's functions among a job's settings: their texts, and the files in the run folder that the job imports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from aligner_lib.config.functions import check_functions, source_of
from aligner_lib.config.kind import JobKind
from aligner_lib.config.schema import named_groups
from aligner_lib.errors import ConfigError
from aligner_lib.run_folder.reader import flatten

REWARD = "reward"  # the keyword for the learner's own reward function, and the name of its environment


def texts_of(settings: Mapping[str, object], kind: JobKind) -> dict[str, str]:
    """The texts of the functions among the settings, by the setting for the function's file.

    Raises ConfigError if the kind of job has no such function, or the text of the function can't run in a file.
    """
    keys, settings = {name: f"functions.{name}" for name in kind.functions}, _flat(settings)
    if "model.environments" in dict(named_groups(kind.schema)):
        keys[REWARD] = f"model.environments.{REWARD}.use"
        keys |= {key: key for key in settings if re.fullmatch(r"model\.environments\.[^.]+\.use", key)}
    texts = {}
    for name, function in settings.items():
        if not callable(function):
            continue
        if name not in keys:
            raise ConfigError(
                f"{name}={getattr(function, '__name__', function)}: {kind.name} has no function of the name to "
                f"replace; known functions: {', '.join(keys) or 'none'}"
            )
        texts[keys[name]] = source_of(function, name, kind.functions.get(name))
    return texts


def check_files(settings: Mapping[str, object], kind: JobKind) -> None:
    """Raise ConfigError for a file among the settings whose function can't replace the library's."""
    files = {}
    for key, use in flatten(settings).items():
        if key.startswith("functions.") and not callable(use):
            files[key.removeprefix("functions.")] = str(use) if isinstance(use, Path) else use
    check_functions(files, kind.functions)


def without_functions(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings whose values are no functions."""
    return {key: value for key, value in _flat(settings).items() if not callable(value)}


def _flat(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings with the full name of each function, such as `model.environments.NAME.use`. Dicts without functions stay."""
    flat = {}
    for name, value in settings.items():
        below = (
            _flat({f"{name}.{key}": part for key, part in value.items()})
            if isinstance(value, Mapping)
            else {}
        )
        flat |= below if any(map(callable, below.values())) else {name: value}
    return flat


def write(texts: Mapping[str, str], run: Path, only_prints: bool = False) -> dict[str, Path]:
    """Write the texts of functions into the run folder, and return the settings with the files.

    only_prints: keep the files of an earlier run, and write another text to NAME_printed.py, for the printed script. Raises
    RunBusy if a run with other functions is still running.
    """
    files = {}
    for key, text in texts.items():
        files[key] = path = run / "functions" / f"{key.removesuffix('.use').rpartition('.')[2]}.py"
        if not path.exists() or path.read_text() != text:
            if not only_prints:
                _refuse_if_busy(run, key)
            elif path.exists():
                files[key] = path = path.with_stem(f"{path.stem}_printed")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return files


def _refuse_if_busy(run: Path, key: str) -> None:
    from cluster.states import State
    from cluster.submission import RunBusy, refuse_if_busy

    try:
        refuse_if_busy(run)
    except RunBusy as busy:
        if busy.state == State.UNKNOWN:
            raise
        raise RunBusy(
            f"{run.name} is still running, with other code for {key} than this cell's: wait for its end, or stop it with "
            f"`aligner stop {run}`, and run the cell again"
        ) from None
