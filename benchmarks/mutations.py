"""Mistakes to plant: changes of an expression, which `benchmarks.mutants` writes into a module."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A changed expression. line: 1-based; column: in UTF-8 bytes; before, after: source text."""

    mistake: str
    path: str
    line: int
    column: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.mistake}: " + " ".join(f"{self.before} → {self.after}".split())


# ---- the mistakes ---------------------------------------------------------------------------------------------------

EXCHANGED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
PATHS = ("path", "folder", "dir", "parent", "root", "file", "cache", "out")
OTHER_REDUCTION = {"mean": "sum", "sum": "mean", "min": "max", "max": "min", "amin": "amax", "amax": "amin"}


def _is_number(node: ast.AST) -> bool:
    """Whether an operation can be arithmetic. + also joins texts and lists, and / also joins paths."""
    texts = ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp | ast.Dict | ast.Starred
    parts = list(ast.walk(node))
    if any(isinstance(p, texts) or (isinstance(p, ast.Constant) and isinstance(p.value, str)) for p in parts):
        return False
    names = {part.id for part in parts if isinstance(part, ast.Name)} | {
        part.attr for part in parts if isinstance(part, ast.Attribute)
    }
    return not any(word in name.lower() for name in names for word in PATHS)


def sign(node: ast.AST) -> Iterator[ast.AST]:
    """a + b ↔ a - b, and -a → a."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        if _is_number(node):
            yield ast.BinOp(node.left, EXCHANGED[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand


def unit(node: ast.AST) -> Iterator[ast.AST]:
    """a * b ↔ a / b, and a sum in place of a mean, a minimum in place of a maximum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        if _is_number(node):
            yield ast.BinOp(node.left, EXCHANGED[type(node.op)](), node.right)
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in OTHER_REDUCTION
    ):
        reduction = ast.Attribute(node.func.value, OTHER_REDUCTION[node.func.attr])
        yield ast.Call(reduction, node.args, node.keywords)


def off_by_one(node: ast.AST) -> Iterator[ast.AST]:
    """An index, the end of a slice or a range, or a compared whole number plus 1."""
    places = []
    if isinstance(node, ast.Subscript):
        places = [node.slice, getattr(node.slice, "lower", None), getattr(node.slice, "upper", None)]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        places = node.args
    elif isinstance(node, ast.Compare):
        places = node.comparators
    for place in places:
        if isinstance(place, ast.Constant) and type(place.value) is int:
            yield replaced(node, place, ast.Constant(place.value + 1))


def comparison(node: ast.AST) -> Iterator[ast.AST]:
    """< ↔ <=, > ↔ >=, == ↔ !=."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in EXCHANGED:
        yield ast.Compare(node.left, [EXCHANGED[type(node.ops[0])]()], node.comparators)


def mask(node: ast.AST) -> Iterator[ast.AST]:
    """A mask or a condition left out: ~a → a, not a → a, a & b → a, a and b → a, x * mask → x."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert | ast.Not):
        yield node.operand
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        yield node.left
    elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        yield node.values[0]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and "mask" in ast.unparse(node.right):
        yield node.left


def dropped_argument(node: ast.AST) -> Iterator[ast.AST]:
    """A call without one of its keyword arguments."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg is not None:
                rest = [other for other in node.keywords if other is not keyword]
                yield ast.Call(node.func, node.args, rest)


def swapped(node: ast.AST) -> Iterator[ast.AST]:
    """The first two arguments of a call, or two returned values, exchanged."""
    if isinstance(node, ast.Call) and _are_names(node.args):
        yield ast.Call(node.func, [node.args[1], node.args[0], *node.args[2:]], node.keywords)
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and _are_names(node.value.elts):
        first, second, *rest = node.value.elts
        yield ast.Return(ast.Tuple([second, first, *rest]))


def flag(node: ast.AST) -> Iterator[ast.AST]:
    """A keyword argument of a call, False in place of True or True in place of False."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool):
                yield replaced(node, keyword.value, ast.Constant(not keyword.value.value))


Mistake = Callable[[ast.AST], Iterator[ast.AST]]

MISTAKES: dict[str, Mistake] = {
    "sign": sign,
    "unit": unit,
    "off by one": off_by_one,
    "comparison": comparison,
    "mask": mask,
    "dropped argument": dropped_argument,
    "swapped": swapped,
    "flag": flag,
}


def _are_names(nodes: list[ast.expr]) -> bool:
    return len(nodes) >= 2 and all(isinstance(node, ast.Name | ast.Attribute) for node in nodes[:2])


def replaced(node: ast.AST, old: ast.AST, new: ast.AST) -> ast.AST:
    """A copy of a node with one of its descendants replaced."""
    return copy.deepcopy(node, {id(old): new})


# ---- a module's mutants -------------------------------------------------------------------------------------------------------


def mutants_of(path: str, source: str, mistakes: Mapping[str, Mistake] = MISTAKES) -> Iterator[Mutant]:
    """All mutants of a module. Messages, annotations and code only for type checkers stay unchanged."""
    lines = source.encode().split(b"\n")
    for node in _computing(ast.parse(source)):
        for mistake, change in mistakes.items():
            for changed in change(node):
                before = ast.get_source_segment(source, node)
                after = ast.unparse(ast.fix_missing_locations(changed))
                after = after if isinstance(node, ast.stmt) else f"({after})"
                assert lines[node.lineno - 1][node.col_offset :].decode().startswith(before.split("\n")[0])
                yield Mutant(mistake, path, node.lineno, node.col_offset, before, after)


def _computing(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of computations, from outside to inside."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _says_or_declares(child):
                yield child
                yield from _computing(child)


def _says_or_declares(node: ast.AST) -> bool:
    """Whether a node is a message, code only for type checkers, or a test of types."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass", "TypeVar")
    return isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom)


def planted(source: str, mutant: Mutant) -> str:
    """A module's source with the mutant in place.

    Raises ValueError when the mutant's expression is not at its place in the source.
    """
    lines = source.encode().split(b"\n")
    start = sum(len(line) + 1 for line in lines[: mutant.line - 1]) + mutant.column
    before = mutant.before.encode()
    if source.encode()[start : start + len(before)] != before:
        raise ValueError(
            f"{mutant.path}:{mutant.line} does not have {mutant.before!r}; draw the mutants again"
        )
    return (source.encode()[:start] + mutant.after.encode() + source.encode()[start + len(before) :]).decode()
