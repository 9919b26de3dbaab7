"""Runs a user's Python file, with functions or with an environment, and finds the modules beside the file. Does not import torch."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from aligner_lib.errors import ConfigError

LIBRARY = __name__.partition(".")[0]
_folders: dict[Path, None] = {}  # the folders of files run in the process


def run_file(path: str, text: str, prefix: str, explain: Callable[[Exception], str]) -> ModuleType:
    """Run the text of a file as a module named `PREFIX_STEM`. The file can import its neighbours, the modules in its folder.

    path: absolute; explain: returns the message for an exception of the file. Raises ConfigError with the message, and for a
    neighbour with the name of another file's neighbour.
    """
    file = Path(path)
    # the prefix keeps the file from replacing a module of the same name
    module = ModuleType(f"{prefix}_{file.stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look up their module here
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # for imports of the file's neighbours
    _check_neighbours(file, text)
    _folders[file.parent] = None
    # With this entry, tracebacks show the executed text, even if the file has changed since.
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    try:
        exec(compile(text, path, "exec"), module.__dict__)
    except Exception as error:
        raise ConfigError(explain(error)) from error
    return module


def neighbours(file: Path, text: str) -> dict[str, list[Path]]:
    """The modules in a file's folder that the file imports, itself or through its neighbours: the files by the module's name."""
    modules: dict[str, list[Path]] = {}
    texts = [text]
    while texts:
        for name in _imported(texts.pop()) - modules.keys() - {LIBRARY}:
            if files := _files_of(file.parent, name):
                modules[name] = files
                texts += [neighbour.read_text(encoding="utf-8-sig", errors="replace") for neighbour in files]
    return modules


def _check_neighbours(file: Path, text: str) -> None:
    """Raise ConfigError for an import that would get a module beside another file, because Python imports a name only once."""
    for name, files in neighbours(file, text).items():
        try:
            spec = find_spec(name)
        except ValueError:  # a module without a spec is not a neighbour
            continue
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        others = [other.resolve() for folder in _folders for other in _files_of(folder, name)]
        if origin in others and origin not in [own.resolve() for own in files]:
            raise ConfigError(
                f"{file} imports {name}, but would get {origin}, a neighbour of another file of the job, because "
                f"Python imports each name only once: rename {files[0]} or {origin}"
            )


def _imported(text: str) -> set[str]:
    """The first parts of the names of all modules that a text imports."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # the import reports the mistake
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


def _files_of(folder: Path, name: str) -> list[Path]:
    """The files of a module or a package in a folder; empty if the folder lacks the name."""
    if (folder / name / "__init__.py").is_file():
        return sorted((folder / name).rglob("*.py"))
    module = folder / f"{name}.py"
    return [module] if module.is_file() else []
