"""A user's own functions in place of the library's: read and checked before the job starts. This module does not import torch.

A kind of job lists its replaceable functions (`JobKind.functions`). `functions.NAME=FILE.py` names another function with the
same signature. A function from a notebook's cell is passed to the job as source code.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import symtable
import textwrap
import traceback
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

from aligner_lib.config.kind import load
from aligner_lib.config.kinds import kind_of
from aligner_lib.config.user_module import run_file
from aligner_lib.errors import ConfigError

HEADER = "from __future__ import annotations\n\n"  # keeps annotations from being evaluated
MODULES = ("math", "torch")
"""The modules that a cell's function may use without an import."""


@dataclass(frozen=True)
class LibraryFunction:
    """A replaceable function of the library."""

    place: str
    """"module:function"."""

    @property
    def name(self) -> str:
        return self.place.partition(":")[2]

    @property
    def definition(self) -> ast.FunctionDef:
        module, _, name = self.place.partition(":")
        return _definitions(_parsed(Path(find_spec(module).origin)))[name]

    @property
    def parameters(self) -> str:
        """The parameters, such as `(ratio, advantages, low, high)`."""
        return _shown(self.definition)

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.definition)


def library_functions(kind: str) -> SimpleNamespace:
    """Return the library's functions by the names under which runs of this kind replace them. Imports torch."""
    return SimpleNamespace(**{name: load(place) for name, place in kind_of(kind).functions.items()})


# ---- files ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionFile:
    """A file with a function, and the file's text when it was read."""

    path: str
    """An absolute path."""
    text: str
    name: str
    """The function's name."""

    @classmethod
    def read(cls, use: str, place: str, setting: str = "") -> FunctionFile:
        """Read `FILE.py` or `FILE.py:NAME`, whose function replaces the library's function at `place`, "module:function".

        setting: the library function's name in the settings. Raises ConfigError for a file that can't be read or is not Python,
        and for a function that can't replace the library's.
        """
        path, name = place_in(use)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} can't be read: {error}") from None
        return cls(str(path), text, check(text, place, str(path), name, setting=setting))

    def load(self) -> Callable:
        """Run the file and return its function. Raises ConfigError as `run_file` does, with the line of an exception."""
        return getattr(run_file(self.path, self.text, "function", self._explanation), self.name)

    def _explanation(self, error: Exception) -> str:
        line = self.line_of(error) or getattr(error, "lineno", 1)  # compile raises without a frame
        return f"{self.path}, line {line}, raises an error when run: {type(error).__name__}: {error}"

    def line_of(self, error: Exception) -> int | None:
        """The line of the file that raised the error, itself or in a call; None: another file raised the error."""
        frames = traceback.extract_tb(error.__traceback__)
        return next((frame.lineno for frame in reversed(frames) if frame.filename == self.path), None)


def place_in(use: str) -> tuple[Path, str]:
    """Split `FILE.py` or `FILE.py:NAME` into the file and the function's name. Without NAME, the name is empty."""
    file, _, name = use.rpartition(":") if use.rpartition(":")[0].endswith(".py") else (use, "", "")
    return Path(file).expanduser().absolute(), name


def check_functions(functions: MutableMapping[str, str | None], places: Mapping[str, str]) -> None:
    """Raise ConfigError for the first file whose function can't replace the library's. Names without a file are removed.

    functions: FILE.py, FILE.py:NAME or None by the names in the settings; places: "module:function" by the same names.
    """
    for name, use in list(functions.items()):
        if name not in places:
            known = (
                f"the functions are {', '.join(places)}" if places else "this kind of job has none to replace"
            )
            raise ConfigError(f"there is no setting 'functions.{name}': {known}")
        if use is None:
            del functions[name]
            continue
        if not isinstance(use, str):
            raise ConfigError(
                f"functions.{name}={use} is not a file: give FILE.py or FILE.py:NAME, or null for the library's function"
            )
        try:
            FunctionFile.read(use, places[name], name)
        except ConfigError as error:
            raise ConfigError(f"functions.{name}: {error}") from None


def check(text: str, place: str, where: str, name: str = "", first_line: int = 1, setting: str = "") -> str:
    """Return the name of the function in `text` that replaces the library's function at `place`, "module:function".

    where, first_line: the text's name in errors, and the number of its first line; name: the function's name, empty for the
    only function or the one with the library's name or the setting's name; setting: the library function's name in the
    settings. Raises ConfigError when the text has no such function, when the function takes other arguments, and for an
    undefined name in the text.
    """
    tree, library = _tree(text, where, first_line), LibraryFunction(place)
    name = _chosen(tree, name, library, where, setting)
    _check_names(tree, text, name, where, first_line)
    definition = _definitions(tree).get(name)
    if definition is not None:  # an imported function has no definition here
        _check_arguments(definition, library, f"{where}, line {definition.lineno - first_line + 1}")
    return name


def _tree(text: str, where: str, first_line: int) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(f"{where}, line {(error.lineno or 1) - first_line + 1}: {error.msg}") from None


def _check_names(tree: ast.Module, text: str, name: str, where: str, first_line: int) -> None:
    """Raise ConfigError for a name that the text uses and does not define."""
    for unknown, line in _undefined(tree, text).items():
        raise ConfigError(
            f"{where}, line {line - first_line + 1}: {name} uses {unknown!r}, which is not defined there. The "
            f"function runs in another process, without the rest of your notebook: define or import {unknown} inside "
            f"the function, or make {unknown} an argument with a default"
        )


def _chosen(tree: ast.Module, name: str, library: LibraryFunction, where: str, setting: str) -> str:
    """Choose the function: the given name, the only function, or the function with the library's name or the setting's.

    A function whose name begins with `_` is a helper, unless `name` gives it or the text has no other function.
    """
    imported = [
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    definitions = list(_definitions(tree))
    candidates = (
        [function for function in definitions if not function.startswith("_")]
        or [function for function in imported if function == library.name]
        or definitions
    )
    if name and name not in candidates + definitions:
        raise ConfigError(
            f"{where} has no function {name}; known functions: {', '.join(candidates) or 'none'}"
        )
    if not candidates:
        raise ConfigError(f"{where} has no function: write def {library.name}{library.parameters}")
    if name or len(candidates) == 1:
        return name or candidates[0]
    named_alike = [alike for alike in (library.name, setting) if alike in candidates]
    if not named_alike:
        raise ConfigError(
            f"{where} has {len(candidates)} functions ({', '.join(candidates)}): choose a function as "
            f"FILE.py:{candidates[0]}"
        )
    return named_alike[0]


def _check_arguments(definition: ast.FunctionDef, library: LibraryFunction, where: str) -> None:
    """Raise ConfigError unless the function accepts the library function's arguments: by position, and by keyword after a
    `*`."""
    parameters = _signature(library.definition).parameters.values()
    by_keyword = {
        parameter.name: None for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    }
    in_order = [None for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    try:
        _signature(definition).bind(*in_order, **by_keyword)
    except TypeError as error:
        raise ConfigError(
            f"{where}: {definition.name}{_shown(definition)} can't stand in for {library.name} ({error}): write "
            f"def {definition.name}{library.parameters}"
        ) from None


# ---- functions of a cell --------------------------------------------------------------------------------------------


def source_of(function: Callable, name: str, place: str | None = None) -> str:
    """Return the text of a file with a function from a notebook's cell, which replaces the library's function at `place`.

    name: the user's name for the function, for errors; place: "module:function", or None when the function replaces no library
    function, as a reward. Raises ConfigError, with the line, for a function that needs more than its own text. A function of
    this library that needs more is imported instead.
    """
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise ConfigError(f"{name}={function!r}: give a function defined with def")
    title = function.__name__
    where = f"{name}={title}"
    try:
        own = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise ConfigError(
            f"{where}: the function's source can't be found: define the function in a cell, or in a file and give "
            f"{'functions.' if place else ''}{name}=FILE.py"
        ) from None
    text = with_imports(own, MODULES if place else _modules_in(own))
    first_line = text.count("\n") - own.count("\n") + 1
    try:
        if place is not None:
            check(text, place, where, title, first_line)
        else:
            _check_names(_tree(text, where, first_line), text, title, where, first_line)
    except ConfigError:
        if not function.__module__.startswith("aligner_lib.") or function.__qualname__ != title:
            raise
        if place is None:
            return f"from {function.__module__} import {title}\n"
        library = LibraryFunction(place)
        _check_arguments(_definitions(_tree(own, where, 1))[title], library, where)
        # of imported functions, the job takes the function with the library's name
        renamed = "" if title == library.name else f" as {library.name}"
        return f"from {function.__module__} import {title}{renamed}\n"
    return text


def with_imports(text: str, modules: Iterable[str] = MODULES) -> str:
    """The text of a cell's functions as a file, below imports."""
    imports = "".join(f"import {module}\n\n" for module in modules)
    return f"{HEADER}{imports}\n{text}"


def _modules_in(text: str) -> list[str]:
    """The MODULES that a reward names: torch would cost each process of an environment a second."""
    try:
        named = _undefined(ast.parse(text), text)
    except SyntaxError:  # the check of the whole file names the line
        return []
    return [module for module in MODULES if module in named]


# ---- reading code ---------------------------------------------------------------------------------------------------


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8-sig"))


def _definitions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _signature(definition: ast.FunctionDef) -> inspect.Signature:
    """Build the signature without annotations and with None for every default. None of the user's code runs."""
    scope: dict = {}
    exec(f"def function{_shown(definition, defaults=True)}: pass", scope)
    return inspect.signature(scope["function"])


def _shown(definition: ast.FunctionDef, defaults: bool = False) -> str:
    """The names of the parameters, in brackets."""
    arguments = definition.args

    def bare(argument: ast.arg | None) -> ast.arg | None:
        return argument and ast.arg(argument.arg)

    none = ast.Constant(None)
    shown = ast.arguments(
        posonlyargs=[bare(argument) for argument in arguments.posonlyargs],
        args=[bare(argument) for argument in arguments.args],
        vararg=bare(arguments.vararg),
        kwonlyargs=[bare(argument) for argument in arguments.kwonlyargs],
        kw_defaults=[none if default and defaults else None for default in arguments.kw_defaults],
        kwarg=bare(arguments.kwarg),
        defaults=[none for _ in arguments.defaults] if defaults else [],
    )
    return f"({ast.unparse(shown)})"


def _undefined(tree: ast.Module, text: str) -> dict[str, int]:
    """The names that the text uses and does not define, with their lines: names from other cells and from closures."""
    nodes = list(ast.walk(tree))
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        return {}  # a star import may define any name
    module = symtable.symtable(text, "", "exec")
    known, read, scopes = {*vars(builtins), "__file__"}, set(), [module]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        for symbol in scope.get_symbols():
            at_top = scope is module or symbol.is_global()
            if at_top and (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()):
                known.add(symbol.get_name())
            if at_top and symbol.is_referenced():
                read.add(symbol.get_name())
    lines: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in read - known:
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
    return dict(sorted(lines.items(), key=lambda item: item[1]))
