"""Which module may import which (docs/architecture.md), read from the sources, and what a start loads."""

import ast
import graphlib
import json
import re
import subprocess
import sys

import pytest
from import_graph import ROOMS, ROOT, imports, modules, nodes_of

HEAVY = {"torch", "megatron"}
# The rooms of aligner_lib, the highest first: each imports only the rooms below it.
FLOORS = "cli tutorial jobs kinds remote_critic trainers rollouts megatron config models run_folder datasets algorithms errors".split()
LEARNERS = ("aligner_lib.tutorial", "widgets")


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


def imported(name: str) -> frozenset[str]:
    """The modules that a module imports anywhere: at the top, in a function, under TYPE_CHECKING."""
    return imports(name, anywhere=True)


def below(*rooms: str) -> list[str]:
    """The modules of these rooms; an empty room is a mistake of the test."""
    inside = tuple(f"{room}." for room in rooms)
    names = [name for name in modules() if name in rooms or name.startswith(inside)]
    assert names, f"there is no {rooms}"
    return names


def top(name: str) -> str:
    return name.partition(".")[0]


def floor(name: str) -> str:
    """A module's room in aligner_lib; empty for the package itself and for other packages."""
    return [*name.split("."), ""][1] if top(name) == "aligner_lib" else ""


def assert_no_circle(graph: dict[str, set[str]]) -> None:
    assert {*graphlib.TopologicalSorter(graph).static_order()} >= {*graph}  # CycleError names a circle


def test_megatron_core_is_imported_in_one_sub_package_only():
    owners = {name for name in modules() if "megatron" in map(top, imported(name))}
    assert owners and owners <= set(below("aligner_lib.megatron"))


def test_the_device_is_known_in_that_package_only_and_looked_up_each_time():
    """A copy of the name would not see the device that a test sets."""
    for name in set(modules()) - {"aligner_lib.megatron.cpu"}:
        nodes = nodes_of(name)
        copies = [alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
        assert "DEVICE" not in copies, name
        if any(isinstance(node, ast.Attribute) and node.attr == "DEVICE" for node in nodes):
            assert name in below("aligner_lib.megatron"), name


def test_every_module_lies_in_a_room_and_no_room_imports_upwards():
    assert {floor(name) for name in below("aligner_lib")} - {"", "__main__"} == set(FLOORS)
    entries = [path for path in (ROOT / "aligner_lib").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 16, "a new thing belongs into a room, or is one"
    for place, room in enumerate(FLOORS):
        for name in below(f"aligner_lib.{room}"):
            upwards = {other for other in imported(name) if floor(other) in FLOORS[:place]}
            assert not upwards, f"{name} imports {', '.join(sorted(upwards))}"


@pytest.mark.parametrize("room", [*(f"aligner_lib.{room}" for room in FLOORS), *ROOMS[1:]])
def test_no_modules_import_each_other(room):
    """A circle that is closed by an import in a function is a circle. A package's front door is excepted."""
    own = set(below(room)) - {room}
    assert_no_circle({name: imported(name) & own - {name} for name in own})


@pytest.mark.parametrize("side", LEARNERS)
def test_no_folders_of_the_learners_side_import_each_other(side):
    """Each folder imports only folders below it, so that a reader can start at the ground."""
    own, graph = set(below(side)) - {side}, {}
    folder = {name: name.removeprefix(f"{side}.").partition(".")[0] for name in own}
    for name in own:
        others = {folder[other] for other in imported(name) & own}
        graph.setdefault(folder[name], set()).update(others - {folder[name]})
    assert_no_circle(graph)


def is_light_module_of_a_kind(name: str) -> bool:
    """A kind's settings are read without torch, by the command line, widgets and Slurm; jobs import the rest."""
    return name.endswith(".settings") or modules()[name].name == "__init__.py"


LIGHT = [
    "config", "models", "run_folder", "tutorial", "errors", "cli.main", "cli.run_tables", "cli.doctor", "cli.progress", "cli.profile",
    "jobs.command_line", "jobs.local_ranks", "jobs.openai_answers", "jobs.openai_api", "jobs.request_body", "jobs.response_text", "jobs.served",
]  # fmt: skip


@pytest.mark.parametrize(
    "room", [*(f"aligner_lib.{name}" for name in LIGHT), *ROOMS[1:], "aligner_lib.kinds"]
)
def test_modules_that_compute_nothing_import_neither_torch_nor_megatron(room):
    for name in below(room):
        if room != "aligner_lib.kinds" or is_light_module_of_a_kind(name):
            assert not {top(other) for other in reached(name)} & HEAVY, name


def asks_for_a_kind(node: ast.AST, kinds: set[str]) -> bool:
    """As in `kind == "ppo"`, `run.kind in ("sft", "rm")`, `"grpo" in config.model`."""
    if not isinstance(node, ast.Compare):
        return False
    named = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)} & kinds
    return bool(named and re.search(r"\bkind\b|config\.(model|trainer)$", ast.unparse(node)))


def test_the_library_does_not_ask_which_kind_of_job_it_is():
    """A kind says what it needs, and others read its answer."""
    kinds = {name.split(".")[2] for name in below("aligner_lib.kinds") if name.endswith(".settings")}
    assert "ppo" in kinds
    for name in set(modules()) - set(below(*LEARNERS)):
        assert not [ast.unparse(node) for node in nodes_of(name) if asks_for_a_kind(node, kinds)], name


def test_only_a_job_imports_what_computes_in_a_kind():
    """A notebook compares objectives in its own process, and imports them in a function."""
    kinds = set(below("aligner_lib.kinds"))
    heavy = {name for name in kinds if not is_light_module_of_a_kind(name)}
    importers = {name for name in set(modules()) - kinds if imported(name) & heavy}
    assert importers <= {*below("aligner_lib.jobs"), "aligner_lib.tutorial.displays.objectives"}


def test_no_two_classes_have_the_same_name():
    places: dict[str, list[str]] = {}
    for name in modules():
        for node in nodes_of(name):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    assert len(places) > 200
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_the_library_reads_the_samples_and_not_the_package_that_writes_them():
    """An installation that is not editable lacks `data.sample_text` (pyproject.toml)."""
    writers = set(below("data.sample_text"))
    for name in set(modules()) - writers:
        assert not imported(name) & writers, name


# widgets read runs and files of pairs, judge runs by their own alarms, ask their kinds for charts, have questions and answers from
# the tutorial, and ask a model several questions at once
OF_WIDGETS = """
aligner_lib.config.kind aligner_lib.config.kinds aligner_lib.datasets.comparisons aligner_lib.errors aligner_lib.jobs.drawn_answer
aligner_lib.run_folder aligner_lib.tutorial
"""


@pytest.mark.parametrize(
    ("room", "others", "allowed"),
    [
        ("data", {"aligner_lib", "cluster", "widgets"}, ""),
        ("cluster", {"aligner_lib", "data", "widgets"}, ""),
        ("widgets", {"aligner_lib", "cluster", "data"}, OF_WIDGETS),
        ("aligner_lib", {"widgets"}, "widgets.share.page"),  # of the command line: see below
    ],
)
def test_a_package_imports_others_only_where_it_may(room, others, allowed):
    may = {"aligner_lib", *(below(*allowed.split()) if allowed else ())}
    for name in below(room):
        assert {module for module in imported(name) if top(module) in others} <= may, name


def test_the_mathematics_imports_only_torch_and_the_library_no_module_of_the_learners_side():
    for name in below("aligner_lib.algorithms"):
        others = {module for module in imported(name) if not module.startswith("aligner_lib.algorithms")}
        assert set(map(top, others)) <= sys.stdlib_module_names | {"torch"}, name
    # The command line is excepted, because it starts the tutorial.
    learners = set(below(*LEARNERS))
    for name in set(modules()) - learners - set(below("aligner_lib.cli")):
        assert not imported(name) & learners, name


# Each start, and what it must not load besides torch and Megatron. They run in this order in one process: modules stay
# loaded, so each start bears the earlier ones' modules, too.
STARTS = {
    "aligner --help": "papermill nbconvert omegaconf numpy",
    "aligner progress .": "numpy papermill",
    "import cluster; cluster.submit; cluster.Job": "numpy",
    "import aligner_lib.run_folder.reader, aligner_lib.run_folder.explain": "numpy",
    "import data, data.sample_text.make_samples": "numpy pyarrow huggingface_hub",
    "aligner profile --help": "omegaconf",
    "aligner serve --help": "tornado",
    "from aligner_lib.run_folder.exporters import process, tail, tensorboard": "tensorflow",
    "from widgets import compare_completions, curves, explore, show_completions": "anywidget",
    "import widgets; [getattr(widgets, name) for name in widgets.__all__]": "transformers matplotlib pandas",
}
PROGRAM = """
import json, sys
loaded = []
for start in json.loads(sys.argv[1]):
    if start.startswith("aligner "):
        sys.argv, start = start.split(), "from aligner_lib.cli.main import main; main()"
    try:
        exec(start)
    except SystemExit:
        pass
    loaded.append(sorted({name.partition(".")[0] for name in sys.modules}))
print()
print(json.dumps(loaded))
"""


def test_a_start_loads_nothing_heavy():
    command = [sys.executable, "-c", PROGRAM, json.dumps([*STARTS])]
    shown = subprocess.check_output(command, cwd=ROOT, text=True)
    for start, loaded in zip(STARTS, json.loads(shown.splitlines()[-1]), strict=True):
        assert not (HEAVY | {*STARTS[start].split()}) & {*loaded}, start
