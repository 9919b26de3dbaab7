"""Hashes of the files with a run's functions and environments. This module does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig, ListConfig

from aligner_lib.config.functions import place_in
from aligner_lib.config.user_module import neighbours
from aligner_lib.models.hash import file_hash, files_hash

CACHE = "cache"  # the argument of the environment `judge`


def hashes_of_functions(config: DictConfig) -> dict[str, str]:
    """Hash the files with a run's functions and environments, by setting. A run can't continue with other files.

    Code counts together with the modules in its folder that it imports. The files in an environment's arguments, such as a file
    of prompts, count too, apart from a judge's cache, because the run writes the cache.
    """
    code = {f"functions.{name}": place_in(use)[0] for name, use in (config.get("functions") or {}).items()}
    files: dict[str, Path] = {}
    for name, environment in ((config.get("model") or {}).get("environments") or {}).items():
        key = f"model.environments.{name}"
        if ".py" in (environment.get("use") or ""):
            code[f"{key}.use"] = place_in(environment["use"])[0]
        files |= dict(_named_files(f"{key}.args", environment.get("args")))
    return {key: _hash_of_code(file) for key, file in code.items()} | {
        key: file_hash(file) for key, file in files.items()
    }


def _hash_of_code(file: Path) -> str:
    """The hash of a file alone or, if the file imports modules in its folder, of all these files."""
    imported = neighbours(file, file.read_text(encoding="utf-8-sig", errors="replace"))
    paths = sorted({path for paths in imported.values() for path in paths} - {file})
    if not paths:
        return file_hash(file)
    return files_hash({path.relative_to(file.parent).as_posix(): path for path in (file, *paths)})


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
