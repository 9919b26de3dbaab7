"""Figures in prose are today's: filled in from recorded.json, or listed in measured.toml with what measured them."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from figures import fill_markers, fill_placeholders, measured, read_figures, typed_decimals

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


def test_the_number_before_a_marker_and_a_placeholder_become_the_figure():
    page = "0.9<!--laptop.rm.val_acc--> of (3<!--laptop.rm.gain.1-->), -7<!--laptop.tokens:.0f--> all"
    filled = "0.77<!--laptop.rm.val_acc--> of (0.15<!--laptop.rm.gain.1-->), -19<!--laptop.tokens:.0f--> all"
    assert fill_markers(page, FIGURES, "README.md") == fill_markers(filled, FIGURES, "README.md") == filled
    text = "{{laptop.rm.val_acc}} and {{laptop.rm.val_acc:.3f}}"
    assert fill_placeholders(text, FIGURES, "04.py") == "0.77 and 0.773"
    for fill, unknown in ((fill_markers, "1<!--laptop.no-->"), (fill_placeholders, "{{laptop.no}}")):
        with pytest.raises(KeyError, match=r"docs/x.md: no run recorded a figure laptop\.no"):
            fill(unknown, FIGURES, "docs/x.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_the_recorded_figures_and_shows_files_as_they_are(build, page):
    text = page.read_text(encoding="utf-8")
    assert fill_markers(text, read_figures(ROOT), page.name) == text, "run `python notebooks/build.py`"
    assert build.fill_examples(text) == text, "run `python notebooks/build.py`"


def test_a_typed_decimal_is_found_in_prose_alone():
    text = "0.77<!--a.b--> {{a.b}} `lr=0.1` $0.5$ arXiv:2406.11704 [three](x-0.4.md) 0.16.1 v0.8, right on 0.79 (1,234.5)"
    assert typed_decimals(text) == {"0.79", "1,234.5"}
    for name, table in measured(ROOT).items():
        assert name == "typed" or re.match(r"\./lab |aligner |python ", table["by"]), name


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_typed_figure_is_listed_with_what_measured_it(path):
    name = path.relative_to(ROOT).as_posix()
    listed = set(" ".join(measured(ROOT)["typed"].get(name, {}).values()).split())
    typed = typed_decimals(prose(path))
    assert typed <= listed, (
        f"{name} has {', '.join(sorted(typed - listed))}: name the figure of recorded.json that this is "
        "(notebooks/figures.py), or list it in notebooks/measured.toml with what measured it"
    )
    assert listed <= typed, f"notebooks/measured.toml lists what {name} has not: {sorted(listed - typed)}"


def test_a_recorded_notebook_replaces_its_own_memory_and_its_card_shows_it(build, tmp_path):
    recorded, summary = tmp_path / "recorded.json", tmp_path / "summary.json"
    before = {"seconds": {"03_sft": 9.0, "05_ppo": 5.0}, "memory_gib": {"03_sft": 7.6, "05_ppo": 2.0}}
    recorded.write_text(json.dumps({"laptop": before}))
    run = {"profile": "laptop", "seconds": {"03_sft": 8.4}, "memory_gib": {"03_sft": 5.7}}
    summary.write_text(json.dumps(run))
    build.record(summary, recorded)
    after = json.loads(recorded.read_text())["laptop"]
    assert after["memory_gib"] == {"03_sft": 5.7, "05_ppo": 2.0}
    assert after["seconds"] == {"03_sft": 8.4, "05_ppo": 5.0}
    assert build.card("03_sft", {"smoke": after, "laptop": after}).count("| 8 s | 5.7 GiB |") == 2
    assert build.card("20_entropy", {"smoke": after, "laptop": after}) == ""


def test_the_tutorial_s_figures_are_those_of_its_notebooks():
    figures = read_figures(ROOT)["laptop"]
    seconds = {name: value for name, value in figures["seconds"].items() if name < "09"}
    assert figures["minutes"] == pytest.approx(sum(seconds.values()) / 60)
    assert figures["peak_memory_gib"] == max(figures["memory_gib"].values())
