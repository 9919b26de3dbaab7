"""`aligner site`: the executed notebooks and the docs as a folder of static pages, for a disk or a web server.

Sphinx builds the pages, with search and a dark mode. Monitors, quizzes and the runs of the bug hunt are separate pages in frames. The widgets' scripts
draw these pages without a kernel (widgets/share).
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.tutorial.hunt import bug_hunt
from aligner_lib.tutorial.site.links import FIRST, within_site

HERE = Path(__file__).parent
PAGES = "_static/pages"
"""The folder of the widgets' pages, relative to the site."""
SHOWN = re.compile(r"^Monitor of (?P<runs>.+)$")
RUN = re.compile(r"(?P<name>[\w.-]+) \([\w ]+\)")
QUIZ = re.compile(r"Quiz\(\"(?P<name>\w+)\"\)")
HUNT = re.compile(r"^hunt\((?P<number>\d+)\)$", re.MULTILINE)
WIDGET = "application/vnd.jupyter.widget-view+json"
TEXTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "THIRD_PARTY_NOTICES.md", "data/samples/README.md")
CONTENTS = """

```{toctree}
:caption: The course
:hidden:
:glob:
notebooks/solved/*
```
```{toctree}
:caption: Docs
:hidden:
:glob:
docs/*
docs/decisions/*
CONTRIBUTING
CHANGELOG
THIRD_PARTY_NOTICES
data/samples/README
```
"""

WritePage = Callable[[list, Path, list | None], object]
"""Called with the runs, the path of the page, and the charts (None: the charts of the kind of run)."""


def build(
    root: Path, tutorial: Path, out: Path, write_runs: WritePage, write_quiz: Callable[[str, Path], object]
) -> Path:
    """Build the site and return the path of its first page.

    root: the project's folder. tutorial: the folder of a finished `aligner tutorial`. write_runs, write_quiz: functions that
    write the page of a monitor and of a notebook's quiz. Raises UserError if Sphinx is not installed, if the folder has no
    executed notebooks, and for every warning of Sphinx, such as a link without a target.
    """
    if importlib.util.find_spec("myst_nb") is None:
        raise UserError("the site needs Sphinx: `./lab site` installs Sphinx (requirements-site.lock)")
    executed = {path.name: path for path in sorted((tutorial / "notebooks").glob("*.ipynb"))}
    if not executed:
        raise UserError(f"{tutorial} has no executed notebooks: `aligner tutorial` writes them")
    with tempfile.TemporaryDirectory(prefix="aligner-site-") as tmp_dir:
        source = Path(tmp_dir) / "source"
        pages = _copy_texts(root, source)
        frames = _Frames(tutorial / "runs", Path(tmp_dir) / "pages", write_runs, write_quiz)
        for solved in sorted((root / "notebooks" / "solved").glob("[0-9]*.ipynb")):
            place = f"notebooks/solved/{solved.name}"
            text = executed.get(solved.name, solved).read_text(encoding="utf-8")
            notebook = json.loads(_without_places(text, root, tutorial))
            _prepare(notebook, place, pages, frames)
            _write(source / place, json.dumps(notebook))
        # Sphinx's extension for notebooks also writes beside its output folder
        _run_sphinx(source, Path(tmp_dir) / "site", Path(tmp_dir) / "doctrees")
        shutil.copytree(Path(tmp_dir) / "site", out, dirs_exist_ok=True)
        shutil.copytree(frames.folder, out / PAGES, dirs_exist_ok=True)
    return out / "index.html"


def newest_tutorial(runs: Path) -> Path:
    """The newest folder of a tutorial. Raises UserError without such a folder."""
    tutorials = sorted(runs.glob("tutorial-*/notebooks"), key=lambda folder: folder.stat().st_mtime)
    if not tutorials:
        raise UserError(f"no tutorial in {runs}/: `aligner tutorial` makes a tutorial")
    return tutorials[-1].parent


def _copy_texts(root: Path, source: Path) -> set[str]:
    """Copy all texts except the notebooks, and adapt their links to the site. Returns the paths of all pages."""
    docs = [str(path.relative_to(root)) for path in (root / "docs").rglob("*.md")]
    notebooks = [
        f"notebooks/solved/{path.name}" for path in (root / "notebooks" / "solved").glob("[0-9]*.ipynb")
    ]
    texts = [name for name in (*TEXTS, *docs) if (root / name).is_file()]
    pages = {*texts, *notebooks}
    for name in texts:
        text = within_site((root / name).read_text(encoding="utf-8"), name, pages)
        _write(source / name, text)
    index = (source / "README.md").read_text(encoding="utf-8")
    (source / "README.md").unlink()
    _write(source / FIRST, index + CONTENTS)
    for picture in (*(root / "docs").glob("*.png"), *(root / "docs").glob("*.svg")):
        shutil.copy(picture, source / "docs")
    (source / "static").mkdir()
    for name in ("frames.js", "frames.css"):
        shutil.copy(HERE / name, source / "static")
    shutil.copy(HERE / "sphinx_conf.py", source / "conf.py")
    return pages


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


# ---- notebooks -------------------------------------------------------------------------------------------------------


class _Frames:
    """The widgets' pages. A page is written when a notebook shows the widget for the first time."""

    def __init__(
        self, runs: Path, folder: Path, write_runs: WritePage, write_quiz: Callable[[str, Path], object]
    ):
        self.folder, self._runs = folder, runs
        self._write_runs, self._write_quiz = write_runs, write_quiz
        folder.mkdir()

    def of_runs(self, names: list[str], metrics: list | None = None) -> str:
        """The HTML frame of a monitor. A name is a run of the tutorial, or else a recording.

        Empty if a run no longer exists. The picture above the monitor then remains as the only output.
        """
        page = self.folder / f"{'-and-'.join(names)}.html"
        if not page.exists():
            folders = [self._runs / name for name in names]
            runs = [folder if (folder / "run.json").exists() else folder.name for folder in folders]
            try:
                self._write_runs(runs, page, metrics)
            except UserError:
                return ""
        return self._frame(page, f"monitor of {', '.join(names)}")

    def of_quiz(self, name: str) -> str:
        """The HTML frame of a quiz, or of the questions about a run of the bug hunt."""
        page = self.folder / f"quiz-{name}.html"
        if not page.exists():
            self._write_quiz(name, page)
        return self._frame(page, f"quiz {name}")

    def of_hunt(self, number: int) -> list[str]:
        """The frames of a run of the bug hunt: the run beside the healthy runs, with its responses, and the three questions."""
        name = f"hunt-{number:02d}"
        return [self.of_runs([name, *bug_hunt.HEALTHY], bug_hunt.CHARTS), self.of_quiz(name)]

    @staticmethod
    def _frame(page: Path, title: str) -> str:
        return f'<iframe class="lab-frame" loading="lazy" title="{title}" src="../../{PAGES}/{page.name}"></iframe>'


def _prepare(notebook: dict, place: str, pages: set[str], frames: _Frames) -> None:
    """Adapt the links of a notebook to the site, and replace widgets by frames."""
    notebook["metadata"].pop("widgets", None)
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            cell["source"] = within_site(text, place, pages)
        elif (quiz := QUIZ.search(text)) is not None:
            cell["outputs"] = [_html(frames.of_quiz(quiz["name"]))]
        elif (hunt := HUNT.search(text)) is not None:
            cell["outputs"] = [_html("".join(frames.of_hunt(int(hunt["number"]))))]
        elif cell["cell_type"] == "code":
            cell["outputs"] = [shown for output in cell["outputs"] if (shown := _static(output, frames))]


def _without_places(text: str, root: Path, tutorial: Path) -> str:
    """An executed notebook's text without paths of this machine: the folders of the tutorial, the project and the user."""
    names = {tutorial.resolve(): f"runs/{tutorial.name}", root.resolve(): ".", Path.home(): "~"}
    for place, name in names.items():
        if place != Path(place.anchor):  # HOME is / for a user without a home, as in a container
            text = text.replace(str(place), name)
    return text


def _static(output: dict, frames: _Frames) -> dict | None:
    """A version of an output that needs no kernel; None if the output is empty without a kernel."""
    data = output.get("data", {})
    if WIDGET not in data:
        return output
    if (monitor := SHOWN.match("".join(data.get("text/plain", "")))) is not None:
        frame = frames.of_runs([run["name"] for run in RUN.finditer(monitor["runs"])])
        return _html(frame) if frame else None
    if "text/html" not in data:
        return None
    return output | {"data": {kind: value for kind, value in data.items() if kind != WIDGET}}


def _html(text: str) -> dict:
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": text, "text/plain": ""}}


# ---- Sphinx ----------------------------------------------------------------------------------------------------------


def _run_sphinx(source: Path, out: Path, doctrees: Path) -> None:
    """Build the pages. doctrees: a folder for Sphinx's internal files, which contain paths of this machine."""
    options = "-b html -W --keep-going -q -d".split()
    command = [sys.executable, "-m", "sphinx", *options, str(doctrees), str(source), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"Sphinx refuses the pages:\n{done.stderr.replace(str(source), '')}")
