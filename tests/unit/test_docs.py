"""The pages are true: metrics are defined, quoted messages are in the sources, and links have a target."""

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest

from aligner_lib.config import glossary
from aligner_lib.config.generated_page import GeneratedPage
from aligner_lib.config.kinds import kinds

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]

GROUPS = "train|validation|train_rollouts|val_rollouts|train_optim|critic|evaluation|memory|timers"
OF_NAMES = r"(?:train|val|evaluation)_environments/(?:\*|\w+)/(?:\*|[\w/]+|\w+/\*)"  # of the user's, for which a declaration has a `*`
METRIC = re.compile(rf"(?:{GROUPS})/[a-z_]+|{OF_NAMES}")


def python_files(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]


@cache
def strings(path: Path) -> set[str]:
    """Every string in a module's code, f-strings with a NUL for what they insert."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"), path)))
    inserted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    inner = {id(part) for node in inserted for part in node.values}
    constants = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in inner)
    return {node.value for node in constants if isinstance(node.value, str)} | {
        "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
        for node in inserted
    }


@cache
def declared(kind: str) -> frozenset[str]:
    """Every metric that a kind of job declares. tests/jobs compares them with what its runs log."""
    return frozenset(
        name for group in kinds()[kind].metrics for metric in group.metrics for name in metric.names
    )


def test_the_page_has_the_kinds_own_definitions():
    current = glossary.PAGE.text_with(glossary.glossary())
    assert glossary.PAGE.text() == current, "run python -m aligner_lib.config.glossary"


def test_a_generator_says_whether_it_has_changed_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("aligner_lib.config.generated_page.ROOT", tmp_path)
    (tmp_path / "page.md").write_text("before\n<!-- made by a.py: -->\nold\n<!-- until here -->\nafter\n")
    page = GeneratedPage("page.md", "a.py")
    page.update("new")
    page.update("new")
    assert page.text() == "before\n<!-- made by a.py: -->\n\nnew\n\n<!-- until here -->\nafter\n"
    assert capsys.readouterr().out == "written: page.md\nnothing changed\n"


@pytest.mark.parametrize("kind", kinds())
def test_a_kind_defines_a_metric_once_and_its_charts_and_alarms_read_its_own(kind):
    """A line may name another kind's metric as an alternative, which charts that are shared have."""
    own, job = declared(kind), kinds()[kind]
    names = [name for group in job.metrics for metric in group.metrics for name in metric.names]
    assert len(names) == len(set(names)) and all(METRIC.fullmatch(name) for name in names)
    for chart in job.charts:
        for line in chart.lines:
            assert own & set(line.metrics), f"{chart.title}: {line.label}"
            assert not line.minus or line.minus in own
    assert {name for rule in job.alarms for name in rule.reads} <= own


@pytest.mark.parametrize("room", ["aligner_lib", "widgets", "notebooks/src"])
def test_what_watches_a_run_uses_names_that_are_logged(room):
    used = {text for path in python_files(room) for text in strings(path) if METRIC.fullmatch(text)}
    assert used, f"{room} uses no metric: is the pattern right?"
    of_users = {name for name in used if any(kind.is_of_users_names(name) for kind in kinds().values())}
    assert used - of_users <= set().union(*map(declared, kinds()))


@pytest.mark.parametrize(
    ("heading", "source"),
    [
        ("`run.json`", "run_folder/writer.py"),
        ("`rollouts.jsonl`", "kinds/policy_gradient/rollout_metrics.py"),
    ],
)
def test_the_fields_of_a_run_s_files_are_defined(heading, source):
    section = (DOCS / "metrics.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert documented == fields_written(ROOT / "aligner_lib" / source)


def fields_written(path: Path) -> set[str]:
    """Keys of the record that a module builds: its `self._info` or `record`."""
    keys = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, (ast.Assign, ast.AugAssign)):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) in ("self._info", "record"):
            keys.add(target.slice.value)
        elif ast.unparse(target) in ("self._info", "record") and isinstance(node.value, ast.Dict):
            keys |= {key.value for key in node.value.keys}
    return keys


ENTRY = re.compile(r"^### `(.+)`\n((?:(?!^#).*\n?)*)", re.MULTILINE)
LIBRARY = re.compile(r"^From `([\w/.]+)`")
SHORTEST = 10  # letters of the longest constant part: less would be found anywhere


def entries() -> list[tuple[str, str]]:
    return ENTRY.findall((DOCS / "troubleshooting.md").read_text())


@cache
def our_messages() -> set[str]:
    scripts = {(ROOT / name).read_text() for name in ("lab", "cluster/batch.sh", "cluster/slurm.sh")}
    return scripts.union(*map(strings, python_files("aligner_lib", "data", "cluster", "widgets")))


def says(message: str, quoted: str) -> bool:
    """Whether a message has the constant parts of the quoted one, in their order."""
    parts = quoted.split("…")
    in_order = ".*?".join(map(re.escape, parts))
    return all(part in message for part in parts) and bool(re.search(in_order, message, re.DOTALL))


@pytest.mark.parametrize(("quoted", "body"), entries(), ids=[quoted for quoted, _ in entries()])
def test_a_quoted_message_is_in_the_source(quoted, body):
    assert max(map(len, quoted.split("…"))) >= SHORTEST, f"{quoted!r} says too little"
    assert len(body.split()) >= 8, f"{quoted!r} has no explanation"
    library = LIBRARY.match(body)
    messages = strings(installed(library[1])) if library else our_messages()
    assert any(says(message, quoted) for message in messages)


def installed(path: str) -> Path:
    """A file of an installed package, found without importing it."""
    package, _, rest = path.partition("/")
    folders = importlib.util.find_spec(package).submodule_search_locations
    return next(Path(folder) / rest for folder in folders if (Path(folder) / rest).exists())


def slug(heading: str) -> str:
    """The anchor that Markdown viewers give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue  # another site's
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(there), f"{target}: no such heading"


def test_the_table_of_objectives_has_the_switches_that_they_are():
    from dataclasses import astuple, fields

    from aligner_lib.algorithms.objective import PRESETS, Objective

    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in (DOCS / "objectives.md").read_text().splitlines()
        if line.startswith(("| objective", "| `"))
    ]
    head, table = rows[0], {row[0]: row[1:] for row in rows if len(row) == len(rows[0])}
    assert head[1:] == [field.name for field in fields(Objective)]
    del table["objective"]
    assert table == {name: [str(value) for value in astuple(preset)] for name, preset in PRESETS.items()}


def test_the_page_of_settings_has_every_preference_loss():
    from aligner_lib.algorithms.preference_losses import LOSSES

    page = (DOCS / "configuration.md").read_text()
    table = page.split("| loss | minimises | constants |\n")[1].partition("\n\n")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines()[1:]]
    assert re.findall(r"`(\w+)`", " ".join(first_cells)) == [*LOSSES]


def test_the_page_of_models_has_every_family():
    from aligner_lib.models.families import FAMILIES

    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", (DOCS / "models.md").read_text(), re.MULTILINE)
    assert rows == [(family.name, family.model_type) for family in FAMILIES.values()]


def test_the_page_s_hub_takes_passwords_only_from_its_own_machine(monkeypatch):
    monkeypatch.delenv("LAB_URL", raising=False)
    config = Mock()
    exec((DOCS / "jupyterhub/jupyterhub_config.py").read_text(), {"get_config": lambda: config})
    assert config.JupyterHub.bind_url == "http://127.0.0.1:8000"
    assert f"The hub listens on `{config.JupyterHub.bind_url}`" in (DOCS / "jupyterhub.md").read_text()


def test_every_term_of_the_course_is_explained_where_the_page_says():
    check = [sys.executable, str(ROOT / "notebooks" / "coverage.py"), "--check"]
    assert subprocess.run(check).returncode == 0
