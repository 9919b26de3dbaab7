"""Executed notebooks as one HTML page that opens offline: images, charts and equations are in the file."""

from __future__ import annotations

import html
import re
from pathlib import Path

import nbformat
from latex2mathml.converter import convert as to_mathml
from nbconvert import HTMLExporter
from nbconvert.filters import markdown_mistune
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter

from aligner_lib.tutorial.report_summary import summary_section

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"


def write_report(path: Path, notebooks: list[Path], summary: dict, runs: Path) -> None:
    """Write the page. notebooks: executed ones, in order; summary, and what is in the run folders in runs, above them."""
    exporter = _Exporter(
        template_name="basic", embed_images=True, exclude_anchor_links=True, exclude_input_prompt=True
    )
    bodies, charts = {}, False
    for notebook in notebooks:
        node = nbformat.read(notebook, as_version=4)
        charts |= _make_static(node)
        resources = {"metadata": {"path": str(notebook.parent)}}
        body = exporter.from_notebook_node(node, resources)[0]
        # links between notebooks lead within the page
        bodies[notebook.stem] = re.sub(r'href="(?:\./)?([0-9]{2}\w*)\.ipynb', r'href="#\1', body)
    path.write_text(_page(bodies, summary, summary_section(summary, runs), charts), encoding="utf-8")


# ---- equations ------------------------------------------------------------------------------------------------------


class _Renderer(markdown_mistune.IPythonRenderer):
    """Markdown with equations as MathML, which browsers render without MathJax (a download)."""

    def block_math(self, body: str) -> str:
        """An equation in its own paragraph."""
        return _equation(body, "block")

    def inline_math(self, body: str) -> str:
        """An equation within a line."""
        return _equation(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        """A LaTeX environment such as align."""
        return _equation(rf"\begin{{{name}}}{body}\end{{{name}}}", "block")


def _equation(latex: str, display: str) -> str:
    try:
        return to_mathml(latex.strip(), display=display)
    except Exception:  # the converter has no base class for what it can't read; the source is still readable
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

    markdown2html.__dict__.update(HTMLExporter.markdown2html.__dict__)  # jinja's mark: pass the context


# ---- outputs --------------------------------------------------------------------------------------------------------


def _make_static(notebook: NotebookNode) -> bool:
    """Replace outputs that need a server or a CDN; True if the page needs plotly's script."""
    notebook.metadata.pop("widgets", None)  # their state is of no use without a kernel
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
    script = ""
    if charts:
        from plotly.offline import get_plotlyjs

        script = f"<script>{get_plotlyjs()}</script>"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Aligner Lab: {html.escape(summary.get("profile", ""))}</title>
<style>{_style()}</style>
{script}
</head>
<body>
<nav><h2>Aligner Lab</h2><ul><li><a href="#summary">Summary</a></li>{contents}</ul></nav>
<main>
<section id="summary">{top}</section>
{sections}
</main>
</body>
</html>
"""


def _title(name: str) -> str:
    return html.escape(name.replace("_", " "))


def _style() -> str:
    light, dark = (
        HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("default", "github-dark")
    )
    return f"{_STYLE}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{_OVER_PYGMENTS}"


_STYLE = """
:root {
  --ink: #1f2328; --soft: #59636e; --paper: #fff; --raised: #f6f8fa; --edge: #d8dee4; --link: #0550ae;
  --strong: #0072b2; --faint: #0072b266; --bad: #b62324; --warned: #fff8f0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6edf3; --soft: #9aa4ae; --paper: #0d1117; --raised: #161b22; --edge: #30363d; --link: #79b8ff;
    --strong: #56b4e9; --faint: #56b4e966; --bad: #ff8a80; --warned: #2b2113;
  }
}
body { margin: 0; font: 16px/1.6 system-ui, sans-serif; color: var(--ink); background: var(--paper); text-align: left; }
a { color: var(--link); }
nav { position: fixed; inset: 0 auto 0 0; width: 13rem; padding: 1rem; overflow-y: auto; background: var(--raised); }
nav h2 { margin: 0 0 .5rem; font-size: 1.1rem; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav li { margin: .35rem 0; }
nav a { text-decoration: none; }
main { margin-left: 15rem; padding: 1rem 2rem 4rem; max-width: 60rem; }
section { border-bottom: 1px solid var(--edge); padding: 1rem 0 2rem; }
h1 { font-size: 1.8rem; margin-bottom: .3rem; }
main p, main li { max-width: 44rem; }
.facts { margin-top: 0; color: var(--soft); }
.failed { color: var(--bad); font-weight: 600; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)); gap: 1rem; margin: 1.4rem 0; padding: 0; list-style: none; }
.cards li { padding: .8rem 1.1rem 1rem; border: 1px solid var(--edge); border-radius: 10px; background: var(--raised); }
.cards h3, .picture h3 { margin: 0; font-size: .9rem; font-weight: 600; color: var(--soft); }
.cards p { margin: 0; font-size: .9rem; color: var(--soft); }
.cards .figure { margin: .1rem 0 .2rem; font-size: 1.7rem; font-weight: 650; color: var(--ink); font-variant-numeric: tabular-nums; }
.picture { margin: 1.6rem 0; }
.picture > div { display: grid; grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)); gap: 1rem 1.5rem; }
.picture svg { display: block; width: 100%; }
.picture text { font-size: 10px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.picture polyline { fill: none; stroke: var(--strong); stroke-width: 2; stroke-linejoin: round; }
.picture .faint { stroke: var(--faint); stroke-width: 1.2; }
figcaption { margin-top: .4rem; font-size: .85rem; color: var(--soft); }
table { border-collapse: collapse; margin: .8rem 0; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { border: 0 solid var(--edge); border-bottom-width: 1px; padding: .35rem .8rem; text-align: left; vertical-align: top; }
th { font-weight: 600; color: var(--soft); }
.answers td { white-space: pre-wrap; overflow-wrap: anywhere; }
.answers .number { text-align: right; }
summary { cursor: pointer; color: var(--soft); }
pre { font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
div.highlight, div.output_area pre { padding: .7rem .9rem; border-radius: 6px; }
div.output_area { margin: .4rem 0 .8rem; overflow-x: auto; }
div.output_stderr { background: var(--warned); }
div.prompt, .anchor-link { display: none; }
img { max-width: 100%; background: #fff; border-radius: 6px; }
math[display="block"] { text-align: left; margin: .8rem 0; }
.ansi-red-fg { color: #b62324; } .ansi-green-fg { color: #1a7f37; } .ansi-cyan-fg { color: #1b7c83; }
.ansi-yellow-fg { color: #9a6700; } .ansi-bold { font-weight: bold; }
@media (max-width: 60rem) { nav { position: static; width: auto; } main { margin-left: 0; padding: 1rem; } }
"""
_OVER_PYGMENTS = "div.highlight { background: var(--raised); margin: .8rem 0 .4rem; }"
