"""Hashes of the files with a run's functions and environments. This module does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig, ListConfig

from aligner_lib.config.functions import place_in
from aligner_lib.models.hash import file_hash

CACHE = "cache"  # the argument of the environment `judge`


def hashes_of_functions(config: DictConfig) -> dict[str, str]:
    """Hash the files with a run's functions and environments, by setting. A run can't continue with other files.

    Code and named files, such as a file of prompts, count for an environment. A judge's cache does not, because the run writes
    it.
    """
    files = {f"functions.{name}": place_in(use)[0] for name, use in (config.get("functions") or {}).items()}
    for name, environment in ((config.get("model") or {}).get("environments") or {}).items():
        key = f"model.environments.{name}"
        if ".py" in (environment.get("use") or ""):
            files[f"{key}.use"] = place_in(environment["use"])[0]
        files |= dict(_named_files(f"{key}.args", environment.get("args")))
    return {key: file_hash(file) for key, file in files.items()}


def _named_files(key: str, value: object) -> Iterator[tuple[str, Path]]:
    """Existing files in an environment's argument, with their settings."""
    if isinstance(value, dict | DictConfig):
        for name, part in value.items():
            if name != CACHE:
                yield from _named_files(f"{key}.{name}", part)
    elif isinstance(value, list | ListConfig):
        for number, part in enumerate(value):
            yield from _named_files(f"{key}.{number}", part)
    elif isinstance(value, str | Path) and (file := existing_file(value)):
        yield key, file


def existing_file(value: str | Path) -> Path | None:
    """The file of an environment's argument; None for a text, for example a rubric."""
    # a long text, a zero byte, or `~` before an unknown user's name
    with suppress(OSError, ValueError, RuntimeError):
        file = Path(value).expanduser()
        return file if file.is_file() else None
    return None
