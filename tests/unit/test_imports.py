"""Who may import whom (design.md), read from the sources, and what a start loads."""

import ast
import graphlib
import json
import re
import subprocess
import sys

import pytest
from import_graph import ROOMS, ROOT, imports, modules

HEAVY = {"torch", "megatron"}


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


def test_the_device_is_known_in_that_package_only_and_looked_up_each_time():
    """A copy of the name would not see the device that a test sets (docs/architecture.md)."""
    for name in set(modules()) - {"aligner_lib.megatron.cpu"}:
        nodes = list(ast.walk(ast.parse(modules()[name].read_text())))
        copies = [alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
        assert "DEVICE" not in copies, name
        if any(isinstance(node, ast.Attribute) and node.attr == "DEVICE" for node in nodes):
            assert name in below("aligner_lib.megatron"), name


# The rooms of aligner_lib, the highest first: each imports only what stands below it (docs/architecture.md).
FLOORS = "cli tutorial jobs kinds remote_critic trainers rollouts megatron config models run_folder datasets algorithms errors".split()


def floor(name: str) -> str:
    """A module's room; the package itself is the ground that all stand on."""
    return ([*name.split("."), ""])[1] if top(name) == "aligner_lib" else ""


def test_every_module_lies_in_a_room():
    assert {floor(name) for name in below("aligner_lib")} - {"", "__main__"} == set(FLOORS)
    entries = [path for path in (ROOT / "aligner_lib").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 16, "a new thing belongs into a room, or is one"


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
    "config", "models", "run_folder", "tutorial", "errors", "cli.main", "cli.model_data", "cli.run_tables", "cli.doctor", "cli.progress",
    "jobs.command_line", "jobs.torchrun", "jobs.openai_answers", "jobs.openai_api", "jobs.request_body", "jobs.response_text", "jobs.served",
]  # fmt: skip


@pytest.mark.parametrize("room", [*(f"aligner_lib.{name}" for name in LIGHT), *ROOMS[1:]])
def test_what_computes_nothing_imports_neither_torch_nor_megatron(room):
    names = below(room)
    assert names, f"there is no {room}"
    for name in names:
        assert not {top(found) for found in reached(name)} & HEAVY, name


def test_a_kind_s_settings_are_read_without_torch():
    """The rule of kinds/ is by module: the command line, widgets and Slurm read settings.py; jobs import the rest."""
    light = {name for name in below("aligner_lib.kinds") if is_light_module_of_a_kind(name)}
    assert {"aligner_lib.kinds.ppo.settings", "aligner_lib.kinds.policy_gradient.settings"} <= light
    for name in light:
        assert not {top(found) for found in reached(name)} & HEAVY, name


def is_light_module_of_a_kind(name: str) -> bool:
    return name.endswith(".settings") or modules()[name].name == "__init__.py"


def test_the_library_does_not_ask_which_kind_of_job_it_is():
    """A kind says what it needs, and others read that. The checks of `aligner explain` are about particular algorithms."""
    names = {name.split(".")[2] for name in below("aligner_lib.kinds") if name.endswith(".settings")}
    library = set(modules()) - set(below("aligner_lib.tutorial", "widgets", "aligner_lib.run_folder.explain"))
    asking = {
        (name, ast.unparse(node))
        for name in library
        for node in ast.walk(ast.parse(modules()[name].read_text()))
        if isinstance(node, ast.Compare) and asks_for_a_kind(node, names)
    }
    assert {"ppo", "grpo"} <= names
    assert not asking


def asks_for_a_kind(comparison: ast.Compare, names: set[str]) -> bool:
    """As in `kind == "ppo"`, `run.kind in ("sft", "rm")`, `"grpo" in config.model`."""
    named = {node.value for node in ast.walk(comparison) if isinstance(node, ast.Constant)} & names
    asked = re.search(r"\bkind\b|config\.(model|trainer)$", ast.unparse(comparison))
    return bool(named and asked)


@pytest.mark.parametrize("asked", ['kind == "ppo"', 'run.kind in ("sft", "rm")', '"grpo" in config.model'])
def test_a_question_for_a_kind_is_recognised(asked):
    assert asks_for_a_kind(ast.parse(asked, mode="eval").body, {"ppo", "grpo", "sft", "rm"})


def test_only_a_job_imports_what_computes_in_a_kind():
    """A notebook compares objectives in its own process, and imports them in a function."""
    heavy = {name for name in below("aligner_lib.kinds") if not is_light_module_of_a_kind(name)}
    importers = {name for name in modules() if imports(name, anywhere=True) & heavy} - set(
        below("aligner_lib.kinds")
    )
    assert importers <= {*below("aligner_lib.jobs"), "aligner_lib.tutorial.displays.objectives"}


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
    # a button undoes a change of settings, and shows why it could not
    allowed |= {"aligner_lib.errors", "aligner_lib.run_folder.set_aside"}
    # a quiz has its questions and a learner's answers from the tutorial's files
    allowed |= {"aligner_lib.tutorial"} | {
        f"aligner_lib.tutorial.{name}"
        for name in ("quiz", "quiz.quiz_file", "workspace", "workspace.learning_progress")
    }
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


LEARNERS = ("aligner_lib.tutorial", "widgets")


def test_the_library_does_not_import_the_learners_side():
    """Except for the command line, which starts the tutorial: no import at the top, in a function or under TYPE_CHECKING."""
    learners = set(below(*LEARNERS))
    library = [name for name in modules() if name not in learners and not name.startswith("aligner_lib.cli")]
    assert "aligner_lib.trainers.loop" in library and "aligner_lib.tutorial.workspace.workspace" in learners
    for name in library:
        assert not imports(name, anywhere=True) & learners, name


@pytest.mark.parametrize("side", LEARNERS)
def test_no_folders_of_the_learners_side_import_each_other(side):
    """Each folder imports only folders below it, so that a reader can start at the ground."""

    def folder(name: str) -> str:
        return name.removeprefix(f"{side}.").partition(".")[0]

    graph = {}
    for name in set(below(side)) - {side}:
        found = imports(name, anywhere=True) & set(below(side)) - {side}
        graph.setdefault(folder(name), set()).update({folder(other) for other in found} - {folder(name)})
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(graph) >= 8


# ---- what a start loads (its seconds: ./lab bench --only imports) ----------------------------------------------------


@pytest.mark.parametrize(
    ("code", "light"),
    [
        ("sys.argv = ['aligner', '--help']; from aligner_lib.cli.main import main; main()", HEAVY),
        (
            "sys.argv = ['aligner', 'serve', '--help']; from aligner_lib.cli.main import main; main()",
            HEAVY | {"tornado"},
        ),
        (
            "sys.argv = ['aligner', 'progress', '.']; from aligner_lib.cli.main import main; main()",
            HEAVY | {"numpy", "papermill"},
        ),
        ("import aligner_lib", HEAVY),
        ("import aligner_lib.run_folder.reader", HEAVY),
        ("from aligner_lib.run_folder.exporters import process, tail, tensorboard", HEAVY | {"tensorflow"}),
        ("import data, data.sample_text.make_samples", HEAVY | {"numpy", "pyarrow", "huggingface_hub"}),
        ("import cluster; cluster.submit; cluster.Job", HEAVY | {"numpy"}),
        (
            "import widgets; [getattr(widgets, name) for name in widgets.__all__]",
            HEAVY | {"transformers", "matplotlib", "pandas"},
        ),
        ("from widgets import compare_completions, curves, explore, show_completions", {"anywidget"}),
    ],
)
def test_a_start_loads_nothing_heavy(code, light):
    script = (
        f"import json, sys\ntry:\n    {code}\nexcept SystemExit: pass\n"
        "print('\\n' + json.dumps([name.partition('.')[0] for name in sys.modules]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not light & set(json.loads(answer.stdout.splitlines()[-1]))
