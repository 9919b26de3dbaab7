"""Without a browser: the same notebook through papermill and nbconvert has the picture, with its text, offline."""

import base64
import json
import os
import re
import subprocess
import sys

import fake_trainer
import nbformat
import pytest
from lab import BOUND_S, ROOT, notebook
from nbconvert import HTMLExporter

from aligner_lib.tutorial.report.html_report import write_report
from widgets.frontend.wire import unpack

CELLS = (
    "from widgets import Monitor, curves, show_completions",
    "import subprocess, sys\n"
    f"job = subprocess.Popen([sys.executable, {fake_trainer.__file__!r}, 'run', '--steps=30', '--seconds=0.05'])",
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
    command = [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "--no-progress-bar"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=BOUND_S)
    return folder / "out.ipynb"


def test_the_final_curves_are_pictures_with_their_text(executed):
    book = nbformat.read(executed, 4)
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    live, static = [output for output in outputs if "image/png" in output.get("data", {})]
    for output in (live, static):
        alt = output.metadata["image/png"]["alt"]
        assert "Run run: finished, step 30." in alt and "KL to the reference: 0 at first" in alt
        assert base64.b64decode(output.data["image/png"]).startswith(b"\x89PNG")
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "run finished after step 30." in printed
    assert executed.stat().st_size < 1_000_000


def test_the_widget_of_the_executed_notebook_holds_all_points(executed):
    metadata = json.loads(executed.read_text())["metadata"]["widgets"]
    states = metadata["application/vnd.jupyter.widget-state+json"]["state"].values()
    name = "widgets.monitor.monitor.Monitor"
    (monitor,) = [state for state in states if state["state"].get("_anywidget_id") == name]
    (data,) = [base64.b64decode(b["data"]) for b in monitor["buffers"] if b["path"] == ["data"]]
    head, points = unpack(data)
    assert head["runs"][0]["status"] == "finished"
    assert points[0][:, 0].tolist() == list(range(1, 31))


def test_html_shows_the_pictures_offline_and_says_them_in_words(executed, tmp_path):
    """nbconvert's default drops a picture's text, so the words stand below the picture, too; the report keeps the text."""
    write_report(tmp_path / "report.html", [executed], {"profile": "smoke"}, tmp_path)
    report = (tmp_path / "report.html").read_text()
    page, _ = HTMLExporter().from_filename(str(executed))
    for html in (page, report):
        images = re.findall(r"<img[^>]*>", html)
        assert len(images) == 2 and all('src="data:image/png;base64' in image for image in images)
        assert "<script>window.stolen" not in html
    words = re.findall(r'<details class="lab-words"[^>]*>(.*?)</details>', page, re.DOTALL)
    assert len(words) == 2 and all("Run run: finished, step 30." in text for text in words)
    assert (
        len(re.findall(r'<img[^>]*alt="Run run: finished, step 30\. [^"]*KL to the reference', report)) == 2
    )
