"""Functions of the user's own in place of the library's: read and checked before anything is started. Imports no torch.

A kind of job names those that a run may replace (`JobKind.functions`); `functions.NAME=FILE.py` gives another one, of the
same signature. A function of a notebook's cell travels as its source.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import symtable
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

from aligner_lib.config.kind import load
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import ConfigError

# what a function of a cell is given in its file; annotations are not evaluated there
HEADER = "from __future__ import annotations\n\nimport math\n\nimport torch\n\n\n"


@dataclass(frozen=True)
class Own:
    """One of the library's functions that a run may replace."""

    place: str  # "module:function"

    @property
    def name(self) -> str:
        return self.place.partition(":")[2]

    @property
    def definition(self) -> ast.FunctionDef:
        module, _, name = self.place.partition(":")
        return _definitions(_parsed(Path(find_spec(module).origin)))[name]

    @property
    def parameters(self) -> str:
        """As in `(ratio, advantages, low, high)`."""
        return _shown(self.definition)

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.definition)


def own_functions(kind: str) -> SimpleNamespace:
    """The library's own functions under the names that runs of this kind replace them by. Imports torch."""
    return SimpleNamespace(**{name: load(place) for name, place in kind_of(kind).functions.items()})


# ---- files ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionFile:
    """A file with a function, as it was when it was read."""

    path: str  # absolute
    text: str
    name: str  # of the function

    @classmethod
    def read(cls, use: str, place: str) -> FunctionFile:
        """`FILE.py` or `FILE.py:NAME`, in place of the library's "module:function".

        Raises ConfigError for a file that can't be read, is no Python, or whose function could not run there.
        """
        path, name = place_in(use)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} can't be read: {error}") from None
        return cls(str(path), text, check(text, place, str(path), name))

    def load(self) -> Callable:
        """Run the file; its function. Raises ConfigError when the file raises."""
        module = ModuleType(f"function_{Path(self.path).stem}")
        module.__file__ = self.path
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self.path] = (len(self.text), None, lines, self.path)  # tracebacks show what ran
        try:
            exec(compile(self.text, self.path, "exec"), module.__dict__)
        except Exception as error:
            raise ConfigError(
                f"{self.path} raises when it is run: {type(error).__name__}: {error}"
            ) from error
        return getattr(module, self.name)


def place_in(use: str) -> tuple[Path, str]:
    """`FILE.py` or `FILE.py:NAME` as a file, and the function's name or none."""
    file, _, name = use.rpartition(":") if use.rpartition(":")[0].endswith(".py") else (use, "", "")
    return Path(file).expanduser().absolute(), name


def check_functions(functions: Mapping[str, str], places: Mapping[str, str]) -> None:
    """Raise ConfigError for the first file whose function can't stand in for the library's. places: by the same names."""
    for name, use in functions.items():
        if name not in places:
            known = f"there are {', '.join(places)}" if places else "this kind of job has none to replace"
            raise ConfigError(f"there is no setting 'functions.{name}': {known}")
        try:
            FunctionFile.read(use, places[name])
        except ConfigError as error:
            raise ConfigError(f"functions.{name}: {error}") from None


def check(text: str, place: str, where: str, name: str = "", first_line: int = 1) -> str:
    """The name of the function in a file's text that stands in for the library's "module:function".

    where, first_line: what errors call the text, and its first line; name: the function's, empty for the only one. Raises
    ConfigError where there is none, where it takes other arguments, and for a name that nothing in the text defines.
    """
    tree, own = _tree(text, where, first_line), Own(place)
    name = _chosen(tree, name, own, where)
    _check_names(tree, text, name, where, first_line)
    definition = _definitions(tree).get(name)
    if definition is not None:  # else it is imported
        _check_arguments(definition, own, f"{where}, line {definition.lineno - first_line + 1}")
    return name


def _tree(text: str, where: str, first_line: int) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(f"{where}, line {(error.lineno or 1) - first_line + 1}: {error.msg}") from None


def _check_names(tree: ast.Module, text: str, name: str, where: str, first_line: int) -> None:
    """Raises ConfigError for a name that the text reads and nothing in it defines."""
    for unknown, line in _undefined(tree, text).items():
        raise ConfigError(
            f"{where}, line {line - first_line + 1}: {name} uses {unknown!r}, which is not defined there. It runs in another "
            f"process, which has nothing of your notebook but this text: define {unknown} or import it inside the function, "
            "or give it as an argument with a default"
        )


def _chosen(tree: ast.Module, name: str, own: Own, where: str) -> str:
    """The function that is meant: named, the only one, or the one with the library's name."""
    imported = [
        one.asname or one.name for node in tree.body if isinstance(node, ast.ImportFrom) for one in node.names
    ]
    there = [one for one in _definitions(tree) if not one.startswith("_")] or [
        one for one in imported if one == own.name
    ]
    if name and name not in there:
        raise ConfigError(f"{where} has no function {name}; it has {', '.join(there) or 'none'}")
    if not there:
        raise ConfigError(f"{where} has no function: write def {own.name}{own.parameters}")
    if not name and len(there) > 1 and own.name not in there:
        raise ConfigError(
            f"{where} has {len(there)} functions ({', '.join(there)}): say which as FILE.py:{there[0]}"
        )
    return name or (there[0] if len(there) == 1 else own.name)


def _check_arguments(definition: ast.FunctionDef, own: Own, where: str) -> None:
    """Raises ConfigError unless it can be called as the library's own is: in order, and by keyword after a `*`."""
    taken = _signature(own.definition).parameters.values()
    by_keyword = {one.name: None for one in taken if one.kind is one.KEYWORD_ONLY}
    in_order = [None for one in taken if one.kind is one.POSITIONAL_OR_KEYWORD]
    try:
        _signature(definition).bind(*in_order, **by_keyword)
    except TypeError as error:
        raise ConfigError(
            f"{where}: {definition.name}{_shown(definition)} can't stand in for {own.name} ({error}): write "
            f"def {definition.name}{own.parameters}"
        ) from None


# ---- functions of a cell --------------------------------------------------------------------------------------------


def source_of(function: Callable, name: str, place: str | None = None) -> str:
    """The text of a file with a function of a notebook's cell, which is to stand in for the library's "module:function".

    name: what the user gives it as, told in errors; place: None where the library has none, as for a reward. Raises
    ConfigError, naming the line, for one that would not stand by itself there. A function of this library is imported where
    it doesn't.
    """
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise ConfigError(f"{name}={function!r}: give a function that is written with def")
    title, first_line = function.__name__, HEADER.count("\n") + 1
    where = f"{name}={title}"
    try:
        text = HEADER + textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise ConfigError(
            f"{where}: its source can't be found; write it in a cell, or in a file and give "
            f"{'functions.' if place else ''}{name}=FILE.py"
        ) from None
    try:
        if place is not None:
            check(text, place, where, title, first_line)
        else:
            _check_names(_tree(text, where, first_line), text, title, where, first_line)
    except ConfigError:
        if function.__module__.startswith("aligner_lib."):
            return f"from {function.__module__} import {title}\n"
        raise
    return text


# ---- reading code ---------------------------------------------------------------------------------------------------


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _definitions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _signature(definition: ast.FunctionDef) -> inspect.Signature:
    """Without annotations, and with None for every default: nothing of the code runs."""
    scope: dict = {}
    exec(f"def it{_shown(definition, defaults=True)}: pass", scope)
    return inspect.signature(scope["it"])


def _shown(definition: ast.FunctionDef, defaults: bool = False) -> str:
    """The parameters' names, in brackets."""
    given = definition.args

    def bare(one: ast.arg | None) -> ast.arg | None:
        return one and ast.arg(one.arg)

    none = ast.Constant(None)
    shown = ast.arguments(
        posonlyargs=[bare(one) for one in given.posonlyargs],
        args=[bare(one) for one in given.args],
        vararg=bare(given.vararg),
        kwonlyargs=[bare(one) for one in given.kwonlyargs],
        kw_defaults=[none if one and defaults else None for one in given.kw_defaults],
        kwarg=bare(given.kwarg),
        defaults=[none for _ in given.defaults] if defaults else [],
    )
    return f"({ast.unparse(shown)})"


def _undefined(tree: ast.Module, text: str) -> dict[str, int]:
    """Names that the text reads and nothing in it defines, with the line of each: those of other cells and of closures."""
    nodes = list(ast.walk(tree))
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        return {}  # it may be anything
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
