"""docs/parity.md keeps its word: each name of the source documents has a row, and what a row names exists."""

import ast
import re
from functools import cache
from itertools import product
from pathlib import Path

import named_settings
import pytest
from named_settings import FIRST

from aligner_lib.cli.main import app
from aligner_lib.config.compose import keys
from aligner_lib.config.kinds import kinds
from aligner_lib.config.other_names import OTHER_NAMES

ROOT = Path(__file__).parents[2]
# laid beside the checkout where the documents themselves are at hand
SEEDS = sorted((ROOT.parent / "shared" / "seeds").glob("*.txt"))
GROUPS = (
    "trainer model exp_manager pretrained_checkpoint remote_critic_rm critic reward_model remote_rm policy"
)
COMMAND = r"aligner (\w[\w-]+(?: (?!RUN\b)[a-z]+)?)"
SETTING = re.compile(rf"(?:{'|'.join(GROUPS.split())})(?:\.\w+)+(?:\.\*)?")
# how a cell begins that says why nothing shows it
WITHOUT_A_TEST = ("different:", "not here:", "not measured:")


@cache
def rows() -> list[tuple[str, str, str]]:
    """(what the documents say, where it is here, what shows it)"""
    return [(row[FIRST], row["here"], row["shown by"]) for row in named_settings.rows("parity")]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@cache
def settings() -> frozenset[str]:
    return frozenset(key for kind in kinds() for key in keys(kind))


def is_setting(name: str) -> bool:
    """Whether some job has it: a setting, a group of them, or a key of a free-form one such as data_prefix.train."""
    name = name.removesuffix(".*")
    parts = {key for key in settings() if key.startswith(f"{name}.")}
    group = name.rpartition(".")[0]
    return name in settings() or bool(parts) or (group in settings() and "data_prefix" in group)


@cache
def functions_in(path: Path) -> frozenset[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))


def test_a_row_names_its_place_here_and_a_test_or_the_reason_why_none():
    assert len(rows()) > 100
    for row in rows():
        assert len(row) == 3 and row[0] and row[1], row
        shown = any("::" in name for name in quoted(row[2]))
        assert shown != row[1].startswith(WITHOUT_A_TEST), f"a test, or why there is none: {row}"


def test_a_name_has_one_row_and_the_tests_that_rows_name_exist():
    names = [name for row in rows() for name in quoted(row[0])]
    assert not {name for name in names if names.count(name) > 1}
    for name in {name for row in rows() for name in quoted(row[2])}:
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file() and function in functions_in(ROOT / path), name


def test_the_settings_that_rows_name_exist():
    named = set()
    for theirs, ours, _ in rows():
        given = quoted(ours) + ([] if ours.startswith(WITHOUT_A_TEST) else quoted(theirs))
        named |= {found[0] for name in given if (found := SETTING.match(name))}
    named -= set(OTHER_NAMES)
    assert len(named) > 70
    assert {name for name in named if not is_setting(name)} == set()


def test_the_files_and_commands_that_rows_name_exist():
    named = {name for row in rows() for name in quoted(row[1])}
    files = {name for name in named if re.fullmatch(r"[\w./-]+/[\w.-]+\.\w+|[\w-]+\.yml", name)}
    assert {name for name in files if not (ROOT / name).is_file()} == set()
    commands = {found[1] for name in named if (found := re.match(COMMAND, name))}
    there = {command.name or command.callback.__name__ for command in app.registered_commands}
    for group in app.registered_groups:
        there |= {f"{group.name} {command.name}" for command in group.typer_instance.registered_commands}
    assert {"ppo", "data hh"} < commands and commands <= there


def names_in(text: str) -> set[str]:
    """Settings, options, files, variables, models and scheduler's lines that a document names, as the page's rows do."""
    keyed = re.findall(r"(?<![\w./-])\+{0,2}([a-z_]\w*(?:\.\w+)+)=", text)
    ticked = re.findall(r"`([a-z_]\w*(?:\.[\w{},*]+)+)`", text)
    told = re.findall(r'"(\w+_\w+): (?:True|null)"', text)
    options = re.findall(r"(?<![\w-])--[a-z][\w-]*", text)
    paths = re.findall(r"[\w{},.%/-]*[\w}]\.(?:py|jsonl|nemo|yaml|model|out|err|log)\b", text)
    files = {path.rpartition("/")[2] for path in paths}
    variables = re.findall(r"(?:export |`)([A-Z]+(?:_[A-Z0-9]+)+|PYTHONPATH)\b", text)
    variables += re.findall(r"\b(?:SLURM|RAY)_\w+", text)
    models = re.findall(r'(?:huggingface\.co/(?:datasets/)?|model_name=")([\w-]+/[\w.-]+)', text)
    lines = [word for line in re.findall(r"#SBATCH (.*)", text) for word in line.split()]
    batch = [word for word in lines if re.fullmatch(r"-\w|hetjob", word)]
    found = {*keyed, *ticked, *told, *options, *files, *variables, *models, *batch}
    return {one for name in found for one in alternatives(name)}


def alternatives(name: str) -> list[str]:
    """`{train,test}.jsonl` is two files; braces without a comma are a program's own."""
    parts = [part.split(",") for part in re.split(r"\{(\w+(?:,\w+)+)\}", name)]
    return ["".join(chosen) for chosen in product(*parts)]


@pytest.mark.parametrize("document", SEEDS or [None], ids=lambda path: path.stem if path else "none")
def test_every_name_of_the_documents_has_a_row(document):
    if document is None:
        pytest.skip("the documents are not here")
    listed = {one for row in rows() for name in quoted(row[0]) for one in alternatives(name)}
    missing = names_in(document.read_text(encoding="utf-8", errors="replace")) - listed
    assert not missing, f"docs/parity.md has no row for {', '.join(sorted(missing))}"
