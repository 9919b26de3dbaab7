"""Who may import whom (design.md), read from the sources, and how long a start takes."""

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("aligner_lib", "widgets", "cluster", "data")
HEAVY = {"torch", "megatron"}


@cache
def modules() -> dict[str, Path]:
    """Every module of the project by its name."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str, anywhere: bool = False) -> frozenset[str]:
    """The modules that a module names in its import statements: when it is imported itself, or anywhere in it."""
    path = modules()[module]
    tree = ast.parse(path.read_text(), path)
    nodes = ast.walk(tree) if anywhere else _run_at_import(tree.body)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return frozenset(name for node in nodes for name in _named(node, package))


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


def _named(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        yield source
        # `from package import module` imports the module too
        yield from (f"{source}.{alias.name}" for alias in node.names if f"{source}.{alias.name}" in modules())


def reached(module: str) -> set[str]:
    """All that importing a module imports, through the project's own modules."""
    seen, open_ = set(), {module}
    while open_:
        name = open_.pop()
        seen.add(name)
        if name in modules():
            parents = {name.rpartition(".")[0]} - {""}  # a package's __init__ runs first
            open_ |= (imports(name) | parents) - seen
    return seen


def below(*rooms: str) -> list[str]:
    return [
        name for name in modules() if name in rooms or name.startswith(tuple(f"{room}." for room in rooms))
    ]


def top(name: str) -> str:
    return name.partition(".")[0]


# ---- the rules ------------------------------------------------------------------------------------------------------


def test_megatron_core_is_imported_in_one_sub_package_only():
    owners = {
        name for name in modules() if any(top(found) == "megatron" for found in imports(name, anywhere=True))
    }
    assert owners, "nothing imports Megatron: this test reads the wrong files"
    assert owners <= set(below("aligner_lib.megatron"))


# The rooms of aligner_lib, the highest first: each imports only what stands below it (docs/architecture.md).
FLOORS = "cli tutorial jobs remote_critic trainers rollouts megatron config models run_folder datasets algorithms errors".split()


def floor(name: str) -> str:
    """A module's room; the package itself is the ground that all stand on."""
    return ([*name.split("."), ""])[1] if top(name) == "aligner_lib" else ""


def test_every_module_lies_in_a_room():
    assert {floor(name) for name in below("aligner_lib")} - {"", "__main__"} == set(FLOORS)
    entries = [path for path in (ROOT / "aligner_lib").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 15, "a new thing belongs into a room, or is one"


@pytest.mark.parametrize("room", FLOORS)
def test_no_room_imports_upwards(room):
    above = set(FLOORS[: FLOORS.index(room)])
    for name in below(f"aligner_lib.{room}"):
        upwards = {found for found in imports(name, anywhere=True) if floor(found) in above}
        assert not upwards, f"{name} imports {', '.join(sorted(upwards))}"


@pytest.mark.parametrize("room", [*(f"aligner_lib.{room}" for room in FLOORS), *ROOMS[1:]])
def test_no_modules_import_each_other(room):
    """Neither at import nor in a function: a circle that is imported late is a circle. A package's front door aside."""
    own = set(below(room)) - {room}
    graph = {name: imports(name, anywhere=True) & own - {name} for name in own}
    order = list(
        graphlib.TopologicalSorter(graph).static_order()
    )  # raises CycleError, which names the circle
    assert len(order) == len(own)


LIGHT = [
    "config", "models", "run_folder", "tutorial", "errors", "cli.main", "cli.model_data", "cli.run_tables", "cli.doctor",
    "jobs.command_line", "jobs.torchrun",
]  # fmt: skip


@pytest.mark.parametrize("room", [*(f"aligner_lib.{name}" for name in LIGHT), *ROOMS[1:]])
def test_what_computes_nothing_imports_neither_torch_nor_megatron(room):
    names = below(room)
    assert names, f"there is no {room}"
    for name in names:
        assert not {top(found) for found in reached(name)} & HEAVY, name


def test_data_imports_nothing_of_the_library():
    for name in below("data"):
        assert not {
            found
            for found in imports(name, anywhere=True)
            if top(found) in ("aligner_lib", "cluster", "widgets")
        }, name


def test_widgets_read_run_folders_through_the_reader_alone():
    # and judge what they read by the run's own alarms, which are functions of metrics records
    # its kind says which charts and alarms suit it
    allowed = {"aligner_lib", "aligner_lib.config.kind", "aligner_lib.config.kinds"}
    allowed |= {f"aligner_lib.run_folder.{name}" for name in ("reader", "jsonl", "alarms")}
    for name in below("widgets"):
        ours = {
            found
            for found in imports(name, anywhere=True)
            if top(found) in ("aligner_lib", "cluster", "data")
        }
        assert ours <= allowed, name


def test_cluster_knows_no_algorithm():
    for name in below("cluster"):
        assert not {
            found
            for found in imports(name, anywhere=True)
            if top(found) in ("aligner_lib", "data", "widgets")
        }, name


def test_the_mathematics_knows_only_torch():
    names = below("aligner_lib.algorithms")
    assert names
    for name in names:
        for found in imports(name, anywhere=True):
            own = found.startswith("aligner_lib.algorithms")
            assert own or top(found) in sys.stdlib_module_names | {"torch"}, f"{name} imports {found}"


def test_the_library_does_not_know_what_watches_it():
    for name in below("aligner_lib"):
        assert not {found for found in imports(name, anywhere=True) if top(found) == "widgets"}, name


# ---- what a start costs ---------------------------------------------------------------------------------------------


def start(code: str) -> tuple[float, set[str]]:
    """Seconds (best of three) that a fresh interpreter takes for a statement, and the top-level modules it loaded."""
    script = (
        "import json, sys, time; start = time.perf_counter()\n"
        f"try:\n    {code}\nexcept SystemExit: pass\n"
        "seconds = time.perf_counter() - start\n"
        "print('\\n' + json.dumps([seconds, sorted({name.partition('.')[0] for name in sys.modules})]))"
    )
    runs = []
    for _ in range(3):
        answer = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
        )
        runs.append(json.loads(answer.stdout.splitlines()[-1]))
    return min(seconds for seconds, _ in runs), set(runs[0][1])


@pytest.mark.parametrize(
    ("code", "bound"),
    [
        ("sys.argv = ['aligner', '--help']; from aligner_lib.cli.main import main; main()", 1.0),
        ("import aligner_lib", 0.1),
        ("import aligner_lib.run_folder.reader", 0.3),
        ("import data", 0.5),
        ("import cluster", 0.5),
        ("import widgets", 1.0),
    ],
)
def test_a_start_is_quick_and_loads_nothing_heavy(code, bound):
    seconds, loaded = start(code)
    assert not loaded & HEAVY
    assert seconds < bound
