"""Figures in prose are today's: filled in from recorded.json, or listed in measured.toml with what measured them."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from figures import (
    fill_markers,
    fill_placeholders,
    measured,
    read_figures,
    typed_decimals,
)

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "notebooks" / "src").glob("*.py"))
FIGURES = {"laptop": {"rm": {"val_acc": 0.7734375, "gain": [0.2, 0.15, 0.25]}, "tokens": -18.65}}


@pytest.fixture(scope="module")
def build():
    """notebooks/build.py, which is a script."""
    spec = importlib.util.spec_from_file_location("build_notebooks", ROOT / "notebooks" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prose(path: Path) -> str:
    """A page, or the comments of a notebook's source, where its Markdown stands."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(lines if path.suffix == ".md" else [line for line in lines if line.startswith("#")])


# ---- filling in -----------------------------------------------------------------------------------------------------


def test_the_number_before_a_marker_becomes_the_figure():
    page = "right on 0.9<!--laptop.rm.val_acc--> of the pairs (3<!--laptop.rm.gain.1-->), -7<!--laptop.tokens:.0f--> tokens"
    filled = fill_markers(page, FIGURES, "README.md")
    assert (
        filled
        == "right on 0.77<!--laptop.rm.val_acc--> of the pairs (0.15<!--laptop.rm.gain.1-->), -19<!--laptop.tokens:.0f--> tokens"
    )
    assert fill_markers(filled, FIGURES, "README.md") == filled


def test_a_placeholder_becomes_the_figure():
    text = "{{laptop.rm.val_acc}} and {{laptop.rm.val_acc:.3f}}"
    assert fill_placeholders(text, FIGURES, "04.py") == "0.77 and 0.773"


@pytest.mark.parametrize(
    "fill, text", [(fill_markers, "1<!--laptop.no-->"), (fill_placeholders, "{{laptop.no}}")]
)
def test_a_figure_that_no_run_recorded_is_an_error_that_names_the_place(fill, text):
    with pytest.raises(KeyError, match=r"docs/x.md: no run recorded a figure laptop\.no"):
        fill(text, FIGURES, "docs/x.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_the_recorded_figures(page):
    text = page.read_text(encoding="utf-8")
    assert fill_markers(text, read_figures(ROOT), page.name) == text, "run `python notebooks/build.py`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_shows_files_as_they_are(build, page):
    text = page.read_text(encoding="utf-8")
    assert build.fill_examples(text) == text, "run `python notebooks/build.py`"


# ---- hand-typed figures ---------------------------------------------------------------------------------------------


def test_a_typed_decimal_is_found_in_prose_alone():
    text = "0.77<!--a.b--> {{a.b}} `lr=0.1` $0.5$ arXiv:2406.11704 [three](x-0.4.md) 0.16.1 v0.8, right on 0.79 (1,234.5)"
    assert typed_decimals(text) == {"0.79", "1,234.5"}


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_typed_figure_is_listed_with_what_measured_it(path):
    name = path.relative_to(ROOT).as_posix()
    listed = {
        number for numbers in measured(ROOT)["typed"].get(name, {}).values() for number in numbers.split()
    }
    typed = typed_decimals(prose(path))
    assert typed <= listed, (
        f"{name} has {', '.join(sorted(typed - listed))}: name the figure of recorded.json that this is "
        "(notebooks/figures.py), or list it in notebooks/measured.toml with what measured it"
    )
    assert listed <= typed, (
        f"notebooks/measured.toml lists what {name} has not: {', '.join(sorted(listed - typed))}"
    )


def test_each_table_of_measured_figures_names_its_command():
    for name, table in measured(ROOT).items():
        assert name == "typed" or re.match(r"\./lab |aligner |python ", table["by"]), name


def test_the_settings_texts_name_no_figure_of_a_run():
    """What a metric does in a healthy run is said without the figures of a model, which change with its defaults."""
    for path in sorted((ROOT / "aligner_lib" / "config").rglob("*.py")):
        for sentence in re.split(r"[.;] ", path.read_text(encoding="utf-8")):
            of_a_run = re.search(r"(smoke|laptop|bundled|SmolLM2)[^=\n]{0,60}\s\d\.\d", sentence)
            assert not of_a_run, f"{path.name}: {of_a_run[0]}"


# ---- recording ------------------------------------------------------------------------------------------------------


def test_a_recorded_notebook_replaces_its_own_memory(build, tmp_path):
    recorded, summary = tmp_path / "recorded.json", tmp_path / "summary.json"
    before = {"seconds": {"03_sft": 9.0, "05_ppo": 5.0}, "memory_gib": {"03_sft": 7.6, "05_ppo": 2.0}}
    recorded.write_text(json.dumps({"laptop": before}))
    summary.write_text(
        json.dumps({"profile": "laptop", "seconds": {"03_sft": 8.0}, "memory_gib": {"03_sft": 5.7}})
    )
    build.record(summary, recorded)
    after = json.loads(recorded.read_text())["laptop"]
    assert after["memory_gib"] == {"03_sft": 5.7, "05_ppo": 2.0}
    assert after["seconds"] == {"03_sft": 8.0, "05_ppo": 5.0}


def test_a_card_has_the_notebook_s_own_memory(build):
    run = {"seconds": {"03_sft": 8.4}, "memory_gib": {"03_sft": 3.2, "05_ppo": 5.7}}
    assert build.card("03_sft", {"smoke": run, "laptop": run}).count("| 8 s | 3.2 GiB |") == 2


def test_the_tutorial_s_figures_are_those_of_its_notebooks():
    figures = read_figures(ROOT)["laptop"]
    seconds = {name: value for name, value in figures["seconds"].items() if name < "09"}
    assert figures["minutes"] == pytest.approx(sum(seconds.values()) / 60)
    assert figures["peak_memory_gib"] == max(figures["memory_gib"].values())


# ---- what the pages claim of the sources ----------------------------------------------------------------------------

NAME_NO_KIND = """cli/main.py config/compose.py config/glossary.py jobs/command_line.py jobs/run.py jobs/torchrun.py
    run_folder/alarms.py ../widgets/monitor/monitor.py ../widgets/runs/charts.py ../widgets/runs/alarms.py""".split()


@pytest.mark.parametrize("name", NAME_NO_KIND)
def test_what_reads_a_kind_s_module_names_no_kind(name):
    """As docs/architecture.md says of them."""
    import ast

    from aligner_lib.config.kinds import kinds

    nodes = ast.walk(ast.parse((ROOT / "aligner_lib" / name).read_text(encoding="utf-8")))
    named = {node.value for node in nodes if isinstance(node, ast.Constant) and node.value in list(kinds())}
    assert named == set()
