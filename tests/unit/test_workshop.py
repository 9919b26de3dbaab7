"""For instructors: the look at a seat, slides, and pages to hand out."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from aligner_lib.cli import preflight
from aligner_lib.errors import UserError
from aligner_lib.tutorial.workshop.pages import write_handout, write_slides
from cluster.findings import Finding
from widgets.classroom.classroom import Followed

ROOT = Path(__file__).parents[2]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


# ---- preflight ------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Without a kernel and a training: the trials that take seconds."""
    monkeypatch.setattr(preflight, "_kernel", lambda: "starts")
    monkeypatch.setattr(preflight, "_train", lambda: "2 steps")
    enough = [Finding("memory", True, "8 GiB"), Finding("Slurm", False, "none", needed=False)]
    monkeypatch.setattr(preflight.doctor, "examine", lambda hub: iter(enough))


def test_a_seat_that_is_ready_is_one_line_that_the_classroom_shows(quick, smoke, tmp_path):
    found = preflight.preflight("smoke", tmp_path, name="Ada")
    line = preflight.as_line(found)
    assert "\n" not in line and json.loads(line) == found
    assert found["ready"] and found["failed"] == [] and "Slurm" not in found["checks"]
    (row,) = Followed(tmp_path).poll()
    assert (row["seat"], row["name"], row["preflight"]) == (found["seat"], "Ada", "ok")
    assert re.fullmatch("seat-[0-9a-f]{6}", row["seat"])


def test_what_is_missing_is_named(quick, tmp_path, monkeypatch):
    def fails() -> str:
        raise RuntimeError("no such kernel\nand a traceback")

    monkeypatch.setattr(preflight, "_kernel", fails)
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(
        preflight.doctor, "examine", lambda hub: iter([Finding("disk", False, "1 GiB", needed=False)])
    )
    found = preflight.preflight("smoke", tmp_path / "room", seat="seat-7")
    assert found["failed"] == ["disk", "model", "kernel"] and not found["ready"]
    assert found["checks"]["kernel"] == "RuntimeError: no such kernel"
    assert "--bundle" in found["checks"]["model"]
    (row,) = Followed(tmp_path / "room").poll()
    assert (row["seat"], row["name"], row["preflight"]) == ("seat-7", "", "disk, model, kernel")


def test_a_folder_that_takes_no_files_is_told_and_not_written_to(quick, smoke, tmp_path):
    (tmp_path / "file").touch()
    found = preflight.preflight("smoke", tmp_path / "file")
    assert found["failed"] == ["shared folder"] and "NotADirectoryError" in found["checks"]["shared folder"]


@pytest.mark.slow
def test_a_kernel_and_a_training_step_for_real(smoke):
    assert "has the widgets" in preflight._kernel()
    assert preflight._train() == "2 steps of smoke's SFT"


# ---- slides, hand-out -----------------------------------------------------------------------------------------------


@pytest.fixture
def tutorial(tmp_path) -> Path:
    """A tutorial's folder with one executed notebook: two sections, a figure, and a cell that shows nothing."""
    figure = new_output("display_data", data={"image/png": PIXEL, "text/plain": "a figure"})
    cells = [
        new_markdown_cell("# SFT\n\nYou train.\n\n## The loss\n\n$$ L = 1 $$"),
        new_code_cell("profile = 'smoke'", metadata={"tags": ["parameters"]}),
        new_code_cell("draw()", outputs=[figure]),
        new_code_cell("quiet()"),
        new_markdown_cell("More of it, and [PPO](05_ppo.ipynb).\n\n## What next?\n\nQuestions."),
    ]
    folder = tmp_path / "tutorial" / "notebooks"
    folder.mkdir(parents=True)
    nbformat.write(new_notebook(cells=cells), folder / "03_sft.ipynb")
    return folder.parent


def test_a_slide_is_a_section_with_its_figures_and_without_code(tutorial, tmp_path):
    text = write_slides(tutorial, tmp_path / "pages").read_text()
    slides = re.findall(r'<section class="slide".*?</section>', text, re.DOTALL)
    assert [re.findall(r"<h[123][^>]*>(.*?)<", slide) for slide in slides] == [
        ["SFT"],
        ["The loss"],
        ["What next?"],
    ]
    assert PIXEL[:40] in slides[1] and "More of it" in slides[1] and "<math" in slides[1]
    assert "draw()" not in text and "quiet()" not in text


def test_the_hand_out_has_code_and_outputs_and_links_between_its_pages(tutorial, tmp_path):
    index = write_handout(tutorial, tmp_path / "pages")
    assert 'href="03_sft.html">03 · SFT' in index.read_text()
    page = (index.parent / "03_sft.html").read_text()
    assert "draw" in page and PIXEL[:40] in page and 'href="05_ppo.html"' in page


def test_the_pages_ask_nobody_for_anything(tutorial, tmp_path):
    for write in (write_slides, write_handout):
        write(tutorial, tmp_path / "pages")
    for page in (tmp_path / "pages").glob("*.html"):
        assert not re.findall(r"(?:src|href)=\"(?:https?:)?//[^\"]*|@import|url\(", page.read_text()), (
            page.name
        )


def test_a_folder_without_executed_notebooks_is_named(tmp_path):
    with pytest.raises(UserError, match="has no executed notebooks"):
        write_slides(tmp_path, tmp_path / "pages")


# ---- the page -------------------------------------------------------------------------------------------------------


def test_the_cards_have_the_recorded_run_times():
    page = (ROOT / "docs" / "workshop.md").read_text()
    recorded = json.loads((ROOT / "notebooks" / "recorded.json").read_text())["laptop"]["seconds"]
    cards = dict(re.findall(r"^\| (\d\d) [\w ]+ \| (\d+) s \|", page, re.MULTILINE))
    assert cards == {name[:2]: f"{seconds:.0f}" for name, seconds in recorded.items()}
