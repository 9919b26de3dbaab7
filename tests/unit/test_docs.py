"""The pages keep their word: metrics are defined, quoted messages are in the sources, links lead somewhere."""

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]

GROUPS = "train|validation|train_rollouts|val_rollouts|train_optim|critic|evaluation|timers"
METRIC = re.compile(rf"(?:{GROUPS})/[a-z_]+")

# ---- sources --------------------------------------------------------------------------------------------------------


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), path)


def python_files(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]


def strings(node: ast.AST, placeholder: str) -> Iterator[str]:
    """Every string in the code, f-strings with `placeholder` for what they insert."""
    inner = {id(part) for f in ast.walk(node) if isinstance(f, ast.JoinedStr) for part in f.values}
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            yield "".join(v.value if isinstance(v, ast.Constant) else placeholder for v in part.values)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and id(part) not in inner:
            yield part.value


# ---- metrics --------------------------------------------------------------------------------------------------------

TRAINERS = ROOT / "aligner_lib" / "trainers"


def function(name: str) -> ast.FunctionDef:
    """The trainers' function of this name."""
    nodes = (
        node
        for path in [*TRAINERS.glob("*.py"), *TRAINERS.with_name("rollouts").glob("*.py")]
        for node in ast.walk(tree(path))
    )
    return next(node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name)


def keys(name: str) -> set[str]:
    """The dictionary keys that a function writes, as far as its text tells them."""
    nodes = list(ast.walk(function(name)))
    loops = loop_values(part for part in nodes if isinstance(part, ast.For))
    found = []
    for part in nodes:
        if isinstance(part, ast.Dict):
            found += [key for written in part.keys if written for key in possible(written, loops)]
        elif isinstance(part, ast.DictComp):
            found += possible(part.key, loop_values(part.generators))
        elif isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store):
            found += possible(part.slice, loops)
    return set(found)


def loop_values(loops: Iterable[ast.For | ast.comprehension]) -> dict[str, list[str]]:
    """What the variables of loops over constants become."""
    return {
        loop.target.id: [item.value for item in loop.iter.elts]
        for loop in loops
        if isinstance(loop.target, ast.Name) and isinstance(loop.iter, ast.Tuple)
    }


def possible(expression: ast.expr, values: dict[str, list[str]]) -> list[str]:
    """The strings that an expression of constants and loop variables can be; none if it holds anything else."""
    if isinstance(expression, ast.Constant):
        return [expression.value]
    if isinstance(expression, ast.Name):
        return values.get(expression.id, [])
    if isinstance(expression, ast.FormattedValue):
        return possible(expression.value, values)
    if isinstance(expression, ast.JoinedStr):
        return ["".join(parts) for parts in product(*(possible(part, values) for part in expression.values))]
    return []


def first_arguments(name: str) -> set[str]:
    """The constant first arguments of the trainers' calls of a function."""
    return {
        node.args[0].value
        for path in [*TRAINERS.glob("*.py"), *TRAINERS.with_name("rollouts").glob("*.py")]
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        if node.args and isinstance(node.args[0], ast.Constant)
    }


# The functions that put a group before names, and how to tell what comes of it.
NAMING = {"__call__", "rollout_metrics", "experience_metrics", "_named", "_train_actor"}


@cache
def logged() -> frozenset[str]:
    """Every metric that a trainer logs, read from its text: importing it would import torch."""
    written = {
        text
        for path in [*TRAINERS.glob("*.py"), *TRAINERS.with_name("rollouts").glob("*.py")]
        for text in strings(tree(path), "{}")
        if METRIC.fullmatch(text)
    }
    timers = {f"timers/{name}" for name in first_arguments("timers")}
    in_groups = {
        f"{group}/{name}"
        for naming in ("rollout_metrics", "_named")
        for group, name in product(first_arguments(naming), keys(naming))
    }
    experience = {f"train_rollouts/{name}" for name in keys("experience_metrics")}
    of_the_loss = {f"train_optim/{name}" for name in keys("_actor_loss") | {"loss", "grad_norm"}}
    return frozenset(written | timers | in_groups | experience | of_the_loss)


@cache
def defined() -> list[str]:
    """The metrics in the first column of the glossary's tables."""
    lines = (DOCS / "metrics.md").read_text().splitlines()
    cells = [line.split(" | ")[0] for line in lines if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell) if METRIC.fullmatch(name)]


def test_every_logged_metric_is_defined_and_every_defined_one_is_logged():
    assert set(defined()) == logged()


def test_a_metric_is_defined_once():
    assert sorted(defined()) == sorted(set(defined()))


def test_no_other_function_makes_up_names_of_metrics():
    """`logged` reads the names of these functions; a new one has to be taught to it."""
    found = {
        node.name
        for path in [*TRAINERS.glob("*.py"), *TRAINERS.with_name("rollouts").glob("*.py")]
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef)
        if any(re.fullmatch(rf"(?:{{}}|{GROUPS})/{{}}", text) for text in strings(node, "{}"))
    }
    assert found == NAMING


@pytest.mark.parametrize("room", ["aligner_lib", "widgets", "notebooks/src"])
def test_what_watches_a_run_uses_names_that_are_logged(room):
    used = {
        text for path in python_files(room) for text in strings(tree(path), "{}") if METRIC.fullmatch(text)
    }
    assert used, f"{room} uses no metric: is the pattern right?"
    assert used <= logged()


@pytest.mark.parametrize(
    ("heading", "source"),
    [("`run.json`", "run_folder/writer.py"), ("`rollouts.jsonl`", "trainers/rollout_metrics.py")],
)
def test_the_fields_of_a_run_s_files_are_defined(heading, source):
    section = (DOCS / "metrics.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert documented == fields_written(ROOT / "aligner_lib" / source)


def fields_written(path: Path) -> set[str]:
    """Keys of the record that a module builds: its `self._info` or `record`."""
    found = set()
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) in ("self._info", "record"):
            found.add(target.slice.value)
        elif ast.unparse(target) in ("self._info", "record") and isinstance(node.value, ast.Dict):
            found |= {key.value for key in node.value.keys}
    return found


# ---- messages -------------------------------------------------------------------------------------------------------

ENTRY = re.compile(r"^### `(.+)`\n((?:(?!^#).*\n?)*)", re.MULTILINE)
LIBRARY = re.compile(r"^From `([\w/.]+)`(?: of Megatron Core ([\d.]+))?")
SHORTEST = 10  # letters of the longest constant part: less would be found anywhere


def entries() -> list[tuple[str, str]]:
    return ENTRY.findall((DOCS / "troubleshooting.md").read_text())


@cache
def our_messages() -> tuple[str, ...]:
    ours = python_files("aligner_lib", "data", "cluster", "widgets")
    scripts = tuple((ROOT / name).read_text() for name in ("lab", "cluster/batch.sh"))
    return tuple(text for path in ours for text in strings(tree(path), "\0")) + scripts


def constant_parts(quoted: str) -> list[str]:
    return [part for part in quoted.split("…") if part]


def says(message: str, quoted: str) -> bool:
    """Whether a message has the constant parts of the quoted one, in their order."""
    return re.search(".*?".join(map(re.escape, constant_parts(quoted))), message, re.DOTALL) is not None


@pytest.mark.parametrize(("quoted", "body"), entries(), ids=[quoted for quoted, _ in entries()])
def test_a_quoted_message_is_in_the_source(quoted, body):
    assert max(map(len, constant_parts(quoted))) >= SHORTEST, f"{quoted!r} says too little"
    library = LIBRARY.match(body)
    if library is None:
        assert any(says(message, quoted) for message in our_messages())
        return
    path, release = library.groups()
    if release and not version("megatron-core").startswith(release):
        pytest.skip(f"Megatron Core {release} says it, and {version('megatron-core')} is installed")
    assert any(says(text, quoted) for text in strings(tree(installed(path)), "\0"))


def installed(path: str) -> Path:
    """A file of an installed package, found without importing it."""
    package, _, rest = path.partition("/")
    folders = importlib.util.find_spec(package).submodule_search_locations
    return next(Path(folder) / rest for folder in folders if (Path(folder) / rest).exists())


def test_a_message_with_other_words_is_not_taken_for_the_quoted_one():
    assert says("there is no setting \0; did you mean \0?", "there is no setting …; did you mean …?")
    assert not says("there is no setting \0", "there is no setting …; did you mean …?")
    assert not says("did you mean \0? there is no setting", "there is no setting …; did you mean …?")


def test_an_entry_says_what_to_do():
    for quoted, body in entries():
        assert len(body.split()) >= 8, f"{quoted!r} has no explanation"


# ---- links ----------------------------------------------------------------------------------------------------------


def slug(heading: str) -> str:
    """The anchor that Markdown viewers give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue  # another site's
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(there), f"{target}: no such heading"
