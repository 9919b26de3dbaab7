"""docs/parity.md keeps its word: each name of the source documents has a row, and what a row names exists."""

import re
from collections import Counter
from itertools import product
from pathlib import Path

import named_settings
import pytest
from named_settings import FIRST
from typer.main import get_command

from aligner_lib.cli.main import GROUPS, app
from aligner_lib.config.compose import keys
from aligner_lib.config.kinds import kinds
from aligner_lib.config.other_names import OTHER_NAMES

ROOT = Path(__file__).parents[2]
# laid beside the checkout where the documents themselves are at hand
SEEDS = sorted((ROOT.parent / "shared" / "seeds").glob("*.txt"))
COMMAND = r"aligner (\w[\w-]+(?: (?!RUN\b)[a-z]+)?)"
# how a cell begins that says why nothing shows it
WITHOUT_A_TEST = ("different:", "not here:", "not measured:")


# What the documents say, where it is here, and what shows it
ROWS = [(row[FIRST], row["here"], row["shown by"]) for row in named_settings.rows("parity")]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


NAMES = [name for theirs, _, _ in ROWS for name in quoted(theirs)]


def is_setting(name: str, settings: set[str]) -> bool:
    """Whether some job has it: a setting, a group of them, or a key of a free-form one such as data_prefix.train."""
    name = name.removesuffix(".*")
    group = name.rpartition(".")[0]
    is_group = any(key.startswith(f"{name}.") for key in settings)
    return name in settings or is_group or (group in settings and "data_prefix" in group)


def test_a_row_names_its_place_here_and_a_test_or_the_reason_why_none():
    assert len(ROWS) > 100 and all(theirs and ours for theirs, ours, _ in ROWS)
    for row in ROWS:
        shown = any("::" in name for name in quoted(row[2]))
        assert shown != row[1].startswith(WITHOUT_A_TEST), f"a test, or why there is none: {row}"


def test_a_name_has_one_row_and_the_tests_that_rows_name_exist():
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []
    for name in {name for _, _, shown_by in ROWS for name in quoted(shown_by)}:
        path, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(), name


def test_the_settings_that_rows_name_exist():
    named = set()
    for theirs, ours, _ in ROWS:
        cells = [ours] if ours.startswith(WITHOUT_A_TEST) else [ours, theirs]
        named |= {
            match[0]
            for cell in cells
            for name in quoted(cell)
            if (match := named_settings.SETTING.match(name))
        }
    named -= OTHER_NAMES.keys()
    settings = {key for kind in kinds() for key in keys(kind)}
    assert len(named) > 70 and {name for name in named if not is_setting(name, settings)} == set()


def test_the_files_and_commands_that_rows_name_exist():
    named = {name for _, ours, _ in ROWS for name in quoted(ours)}
    files = {name for name in named if re.fullmatch(r"[\w./-]+/[\w.-]+\.\w+|[\w-]+\.yml", name)}
    assert {name for name in files if not (ROOT / name).is_file()} == set()
    commands = {match[1] for name in named if (match := re.match(COMMAND, name))}
    there = set(get_command(app).commands)
    for group in GROUPS:
        there |= {f"{group} {name}" for name in get_command(app).commands[group].commands}
    assert {"ppo", "data hh"} < commands and commands <= there


def names_in(text: str) -> set[str]:
    """Settings, options, files, variables, models and scheduler's lines that a document names, as the page's rows do."""
    patterns = (
        r"(?<![\w./-])\+{0,2}([a-z_]\w*(?:\.\w+)+)=",  # settings
        r"`([a-z_]\w*(?:\.[\w{},*]+)+)`",
        r'"(\w+_\w+): (?:True|null)"',
        r"(?<![\w-])--[a-z][\w-]*",  # options
        r"(?:export |`)([A-Z]+(?:_[A-Z0-9]+)+|PYTHONPATH)\b",  # variables
        r"\b(?:SLURM|RAY)_\w+",
        r'(?:huggingface\.co/(?:datasets/)?|model_name=")([\w-]+/[\w.-]+)',  # models
    )
    names = {name for pattern in patterns for name in re.findall(pattern, text)}
    paths = re.findall(r"[\w{},.%/-]*[\w}]\.(?:py|jsonl|nemo|yaml|model|out|err|log)\b", text)
    names |= {path.rpartition("/")[2] for path in paths}
    options = [word for line in re.findall(r"#SBATCH (.*)", text) for word in line.split()]
    names |= {word for word in options if re.fullmatch(r"-\w|hetjob", word)}
    return {alternative for name in names for alternative in alternatives(name)}


def alternatives(name: str) -> list[str]:
    """`{train,test}.jsonl` is two files; braces without a comma are a program's own."""
    parts = [part.split(",") for part in re.split(r"\{(\w+(?:,\w+)+)\}", name)]
    return ["".join(chosen) for chosen in product(*parts)]


@pytest.mark.skipif(not SEEDS, reason="the documents are not here")
@pytest.mark.parametrize("document", SEEDS, ids=lambda path: path.stem)
def test_every_name_of_the_documents_has_a_row(document):
    listed = {alternative for name in NAMES for alternative in alternatives(name)}
    missing = names_in(document.read_text(encoding="utf-8", errors="replace")) - listed
    assert not missing, f"docs/parity.md has no row for {', '.join(sorted(missing))}"
