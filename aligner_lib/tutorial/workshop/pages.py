"""Slides and pages to hand out, from the executed notebooks of a tutorial. Nothing in them comes from a network."""

from __future__ import annotations

import html
import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from aligner_lib.errors import UserError
from aligner_lib.tutorial.report.html_page import html_page
from aligner_lib.tutorial.report.html_report import code_style, notebook_body, plotly_script

# a title or a section begins a slide; what is below it belongs to it
SLIDE = re.compile(r"^(#{1,3}) ", re.MULTILINE)
HIDDEN_TAGS = {"parameters", "injected-parameters"}


def write_handout(tutorial: Path, out: Path) -> Path:
    """Write a page for each executed notebook, with code and outputs, and index.html. Returns the index."""
    notebooks = _executed(tutorial)
    out.mkdir(parents=True, exist_ok=True)
    for path in notebooks:
        body, charts = notebook_body(_read(path), path.parent)
        body = re.sub(r'href="(?:\./)?([0-9]{2}\w*)\.ipynb', r'href="\1.html', body)
        (out / f"{path.stem}.html").write_text(
            _page(_title(path), f"<main>{body}</main>", charts), encoding="utf-8"
        )
    links = "\n".join(
        f'<li><a href="{path.stem}.html">{html.escape(_title(path))}</a></li>' for path in notebooks
    )
    index = out / "index.html"
    index.write_text(
        _page("Aligner Lab", f"<main><h1>Aligner Lab</h1><ul>{links}</ul></main>", False), encoding="utf-8"
    )
    return index


def write_slides(tutorial: Path, out: Path) -> Path:
    """Write slides.html: each section of each notebook with its text, figures and tables, without the code."""
    sections, any_charts = [], False
    for path in _executed(tutorial):
        for number, slide in enumerate(_slides(_read(path))):
            body, charts = notebook_body(slide, path.parent, with_code=False)
            any_charts |= charts
            sections.append(
                f'<section class="slide" id="{path.stem}-{number}" tabindex="-1">{body}</section>'
            )
    out.mkdir(parents=True, exist_ok=True)
    page = out / "slides.html"
    body = f'<div class="slides">{"".join(sections)}</div><output class="where"></output><script>{_KEYS}</script>'
    page.write_text(_page("Aligner Lab: slides", body, any_charts, _SLIDES), encoding="utf-8")
    return page


def _executed(tutorial: Path) -> list[Path]:
    notebooks = sorted((tutorial / "notebooks").glob("[0-9][0-9]*.ipynb"))
    if not notebooks:
        raise UserError(
            f"{tutorial / 'notebooks'} has no executed notebooks: `./lab tutorial --out {tutorial}` writes them"
        )
    return notebooks


def _read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def _title(path: Path) -> str:
    first = next((cell.source for cell in _read(path).cells if cell.cell_type == "markdown"), "")
    return f"{path.stem[:2]} · {first.splitlines()[0].lstrip('# ')}" if first else path.stem


def _slides(notebook: NotebookNode) -> list[NotebookNode]:
    """The notebook cut at its headings; sections whose cells show nothing have their text alone."""
    slides: list[list[NotebookNode]] = []
    for cell in notebook.cells:
        if HIDDEN_TAGS & set(cell.metadata.get("tags", ())):
            continue
        if cell.cell_type != "markdown":
            if slides and any("data" in output for output in cell.get("outputs", ())):
                slides[-1].append(cell)
            continue
        starts = [match.start() for match in SLIDE.finditer(cell.source)] or ([] if slides else [0])
        ends = [*starts[1:], len(cell.source)]
        if slides and (before := cell.source[: starts[0] if starts else None].strip()):
            slides[-1].append(nbformat.v4.new_markdown_cell(before))
        for start, end in zip(starts, ends):
            slides.append([nbformat.v4.new_markdown_cell(cell.source[start:end])])
    return [nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata) for cells in slides]


def _page(title: str, body: str, charts: bool, style: str = "") -> str:
    style = f"{code_style()}\nmain {{ margin: 0 auto; }}\n{style}"
    return html_page(title, body, style, plotly_script() if charts else "")


_SLIDES = """
html { scroll-snap-type: y mandatory; }
.slide { box-sizing: border-box; min-height: 100vh; padding: 4vh 8vw; scroll-snap-align: start; border: 0; font-size: 1.25rem; }
.slide:focus { outline: none; }
.slide p, .slide li { max-width: 60rem; }
.slide img { width: auto; height: auto; max-height: 60vh; }
.slide div.output_area { max-height: 75vh; overflow: auto; }
.where { position: fixed; right: 1rem; bottom: .6rem; color: var(--soft); font-size: .8rem; }
@media print { html { scroll-snap-type: none; } .slide { break-after: page; min-height: 0; } .where { display: none; } }
"""
_KEYS = """
const slides = [...document.querySelectorAll(".slide")], where = document.querySelector(".where");
const current = () => slides.reduce((best, slide, i) => Math.abs(slide.getBoundingClientRect().top) < Math.abs(slides[best].getBoundingClientRect().top) ? i : best, 0);
const show = () => { where.textContent = `${current() + 1} / ${slides.length}`; };
const go = (place) => { const slide = slides[Math.max(0, Math.min(slides.length - 1, place))]; slide.scrollIntoView(); slide.focus({ preventScroll: true }); };
const steps = { ArrowRight: 1, PageDown: 1, " ": 1, ArrowLeft: -1, PageUp: -1 };
addEventListener("keydown", (event) => {
  if (event.key === "Home") go(0);
  else if (event.key === "End") go(slides.length - 1);
  else if (event.key in steps) go(current() + steps[event.key]);
  else return;
  event.preventDefault();
});
addEventListener("scroll", show);
show();
"""
