"""Executed notebooks as a single HTML page that opens offline: the file contains images, charts and equations."""

from __future__ import annotations

import html
import re
from collections.abc import Collection
from pathlib import Path

import nbformat
from latex2mathml.converter import convert as to_mathml
from nbconvert import HTMLExporter
from nbconvert.filters import markdown_mistune
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter

from aligner_lib.tutorial.report.html_page import html_page
from aligner_lib.tutorial.report.summary import summary_section
from aligner_lib.tutorial.site.links import ELSEWHERE

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
LINK = re.compile(r'<a href="(?P<target>[^"]*)"[^>]*>(?P<text>.*?)</a>', re.DOTALL)
NOTEBOOK = re.compile(r"(?:\./)?(?P<name>[^/#]+)\.ipynb(?:#.*)?")


def write_report(path: Path, notebooks: list[Path], summary: dict, runs: Path) -> None:
    """Write the report of executed notebooks.

    notebooks: paths of executed notebooks, in order. The page begins with the results in `summary` and of the run folders in
    `runs`.
    """
    names, bodies, charts = {notebook.stem for notebook in notebooks}, {}, False
    exporter = _Exporter(
        template_name="basic",
        embed_images=True,
        exclude_anchor_links=True,
        exclude_input_prompt=True,
    )
    for notebook in notebooks:
        body, has_charts = _notebook_body(exporter, nbformat.read(notebook, as_version=4), notebook.parent)
        charts |= has_charts
        bodies[notebook.stem] = _within_page(body, names)
    page = _page(bodies, summary, summary_section(summary, runs), charts)
    path.write_text(page, encoding="utf-8", errors="backslashreplace")  # as JsonlWriter


def _within_page(body: str, names: Collection[str]) -> str:
    """Replace the links to notebooks by links to their sections, and the links to other files by text.

    The report is passed on without these files. names: the notebooks in the report.
    """

    def led(link: re.Match) -> str:
        if link["target"].startswith(ELSEWHERE):
            return link[0]
        notebook = NOTEBOOK.fullmatch(link["target"])
        if notebook is None or notebook["name"] not in names:
            return link["text"]
        return f'<a href="#{notebook["name"]}">{link["text"]}</a>'

    return LINK.sub(led, body)


def _notebook_body(exporter: _Exporter, notebook: NotebookNode, folder: Path) -> tuple[str, bool]:
    """A notebook's cells as HTML, and whether a chart needs `_plotly_script`. folder: the folder of the notebook's images."""
    charts = _make_static(notebook)
    return exporter.from_notebook_node(notebook, {"metadata": {"path": str(folder)}})[0], charts


# ---- equations ------------------------------------------------------------------------------------------------------


class _Renderer(markdown_mistune.IPythonRenderer):
    """Renders Markdown with equations as MathML, because browsers display MathML without downloading MathJax."""

    def block_math(self, body: str) -> str:
        """Render an equation in its own paragraph."""
        return _equation(body, "block")

    def inline_math(self, body: str) -> str:
        """Render an equation within a line."""
        return _equation(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        """Render a LaTeX environment such as align."""
        return _equation(rf"\begin{{{name}}}{body}\end{{{name}}}", "block")


def _equation(latex: str, display: str) -> str:
    try:
        return to_mathml(latex.strip(), display=display)
    except Exception:  # the converter's errors have no common base class; the LaTeX source is readable, too
        return f"<code>{html.escape(latex)}</code>"


class _Exporter(HTMLExporter):
    def markdown2html(self, context, source):
        cell = context.get("cell", {})
        renderer = _Renderer(
            escape=False,
            attachments=cell.get("attachments", {}),
            embed_images=self.embed_images,
            path=context.get("resources", {}).get("metadata", {}).get("path", ""),
            exclude_anchor_links=True,
        )
        return markdown_mistune.MarkdownWithMath(renderer=renderer).render(source)

    markdown2html.__dict__.update(HTMLExporter.markdown2html.__dict__)  # jinja's marker "pass the context"


# ---- outputs --------------------------------------------------------------------------------------------------------


def _make_static(notebook: NotebookNode) -> bool:
    """Replace outputs that need a server or a CDN. Returns True if the page needs plotly's script."""
    notebook.metadata.pop("widgets", None)  # the state of widgets is useless without a kernel
    charts = False
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if PLOTLY in data:
                data["text/html"] = _chart(data.pop(PLOTLY))
                charts = True
            elif WIDGET in data:
                del data[WIDGET]
    return charts


def _chart(figure: dict) -> str:
    from plotly.io import to_html

    figure = {"data": figure["data"], "layout": figure.get("layout", {})}
    return to_html(figure, include_plotlyjs=False, full_html=False, validate=False)


# ---- the page -------------------------------------------------------------------------------------------------------


def _page(bodies: dict[str, str], summary: dict, top: str, charts: bool) -> str:
    contents = "\n".join(f'<li><a href="#{name}">{_title(name)}</a></li>' for name in bodies)
    sections = "\n".join(f'<section id="{name}">\n{body}\n</section>' for name, body in bodies.items())
    script = _plotly_script() if charts else ""
    body = f"""<nav><h2>Aligner Lab</h2><ul><li><a href="#summary">Summary</a></li>{contents}</ul></nav>
<main>
<section id="summary">{top}</section>
{sections}
</main>"""
    return html_page(f"Aligner Lab: {summary.get('profile', '')}", body, _code_style(), script)


def _title(name: str) -> str:
    return html.escape(name.replace("_", " "))


def _plotly_script() -> str:
    """Plotly's JavaScript (4.5 MB), so that the page opens offline."""
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def _code_style() -> str:
    """The CSS of highlighted code, light and dark."""
    light, dark = (
        HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("default", "github-dark")
    )
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{_OVER_PYGMENTS}"


_OVER_PYGMENTS = "div.highlight { background: var(--raised); margin: .8rem 0 .4rem; }"
