"""The project's modules, and whom each of them imports, read from the sources."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("aligner_lib", "widgets", "cluster", "data")


@cache
def modules() -> dict[str, Path]:
    """Every module of the project by its name."""
    by_name = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            by_name[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return by_name


@cache
def nodes_of(module: str) -> list[ast.AST]:
    """A module's syntax, its root first."""
    path = modules()[module]
    return list(ast.walk(ast.parse(path.read_text(), path)))


@cache
def imports(module: str, anywhere: bool = False) -> frozenset[str]:
    """The modules that a module names in its import statements: when it is imported itself, or anywhere in it."""
    path = modules()[module]
    nodes = nodes_of(module) if anywhere else _run_at_import(nodes_of(module)[0].body)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return frozenset(name for node in nodes for name in named(node, package))


def _run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from _run_at_import(node.orelse)
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from _run_at_import(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from _run_at_import(handler.body)


def named(node: ast.AST, package: str) -> Iterator[str]:
    """The modules that an import statement names, seen from a package; none of any other node."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        yield source
        # `from package import module` imports the module too
        yield from (f"{source}.{alias.name}" for alias in node.names if f"{source}.{alias.name}" in modules())
