"""Without a browser: the same notebook through papermill and nbconvert has the picture, with its text, offline."""

import base64
import json
import os
import re
import subprocess
import sys

import nbformat
import pytest
from lab import ROOT, notebook, wait_for

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.report.html_report import write_report
from widgets.frontend.wire import unpack

CELLS = (
    "from widgets import Monitor, curves, show_completions",
    "import fake_trainer, subprocess, sys\n"
    "job = subprocess.Popen([sys.executable, fake_trainer.__file__, 'run', '--steps=30', '--seconds=0.05'])",
    "monitor = Monitor('run')\nmonitor",
    "await monitor",
    "curves('run')",
    "show_completions('run')",
)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after papermill."""
    folder = tmp_path_factory.mktemp("batch")
    nbformat.write(notebook(*CELLS), folder / "in.ipynb")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "widgets")])
    command = [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "--no-progress-bar"]
    subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": paths}, check=True, timeout=120)
    return folder / "out.ipynb"


def pictures(book) -> list:
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    return [output for output in outputs if "image/png" in output.get("data", {})]


def test_the_final_curves_are_a_picture_with_its_text(executed):
    book = nbformat.read(executed, 4)
    live, static = pictures(book)
    for output in (live, static):
        alt = output.metadata["image/png"]["alt"]
        assert "Run run: finished, step 30." in alt and "KL to the reference: 0 at first" in alt
        assert base64.b64decode(output.data["image/png"]).startswith(b"\x89PNG")
    said = "".join(
        output.text for cell in book.cells for output in cell.outputs if output.output_type == "stream"
    )
    assert "run finished after step 30." in said


def test_the_executed_notebook_is_small(executed):
    assert executed.stat().st_size < 1_000_000


def test_the_widget_of_the_executed_notebook_holds_all_points(executed):
    states = json.loads(executed.read_text())["metadata"]["widgets"][
        "application/vnd.jupyter.widget-state+json"
    ]["state"]
    (monitor,) = [
        state
        for state in states.values()
        if state["state"].get("_anywidget_id") == "widgets.monitor.monitor.Monitor"
    ]
    (data,) = [base64.b64decode(b["data"]) for b in monitor["buffers"] if b["path"] == ["data"]]
    head, points = unpack(data)
    assert head["runs"][0]["status"] == "finished"
    assert points[0][:, 0].tolist() == list(range(1, 31))


@pytest.mark.parametrize("template", ["lab", "classic"])
def test_html_shows_the_pictures_offline_and_tells_them_in_words(executed, template):
    """`lab`, nbconvert's default, knows no text of a picture: there the words below it are what is told."""
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--template", template, str(executed)]
    subprocess.run(command, check=True, timeout=120)
    html = executed.with_suffix(".html").read_text()
    images = re.findall(r"<img[^>]*>", html)
    words = re.findall(r'<details class="lab-words"[^>]*>(.*?)</details>', html, re.DOTALL)
    assert len(images) == len(words) == 2
    assert all('src="data:image/png;base64' in image for image in images)
    assert all("Run run: finished, step 30." in told for told in words)
    if template == "classic":
        assert all("Run run: finished, step 30." in image for image in images)
    assert "<script>window.stolen" not in html


def test_the_tutorials_report_hands_the_text_on(executed, tmp_path):
    write_report(tmp_path / "report.html", [executed], {"profile": "smoke"}, tmp_path)
    images = re.findall(r"<img[^>]*>", (tmp_path / "report.html").read_text())
    assert len(images) == 2
    assert all(
        re.search(r'alt="Run run: finished, step 30\. [^"]*KL to the reference', image) for image in images
    )


def test_a_run_without_a_notebook_can_be_stopped_by_its_file(tmp_path, trainer):
    run = trainer("run", steps=3000, seconds=0.05)
    (run.path / "control" / "stop").touch()
    wait_for(lambda: run.status == "stopped", 10, "the run did not stop")
    assert RunFolder(run.path).latest_checkpoint() is not None
