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

from aligner_lib.run_folder.reader import flatten

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"


def write_report(path: Path, notebooks: list[Path], summary: dict) -> None:
    """Write the page. notebooks: executed ones, in order; summary: shown above them."""
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
    path.write_text(_page(bodies, summary, charts), encoding="utf-8")


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


def _page(bodies: dict[str, str], summary: dict, charts: bool) -> str:
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
<title>Aligner Lab: {html.escape(summary.get("profile", ""))}</title>
<style>{_style()}</style>
{script}
</head>
<body>
<nav><h2>Aligner Lab</h2><ul><li><a href="#summary">Summary</a></li>{contents}</ul></nav>
<main>
<section id="summary"><h1>What came out</h1>{_summary_table(summary)}</section>
{sections}
</main>
</body>
</html>
"""


def _title(name: str) -> str:
    return html.escape(name.replace("_", " "))


def _summary_table(summary: dict) -> str:
    rows = "\n".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(_shown(value))}</td></tr>"
        for name, value in flatten(summary).items()
    )
    return f"<table>{rows}</table>"


def _shown(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _style() -> str:
    return _STYLE + HtmlFormatter(style="default").get_style_defs(".highlight")


_STYLE = """
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; color: #1f2328; background: #fff; }
nav { position: fixed; inset: 0 auto 0 0; width: 13rem; padding: 1rem; overflow-y: auto; background: #f6f8fa; }
nav h2 { margin: 0 0 .5rem; font-size: 1.1rem; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav li { margin: .35rem 0; }
nav a { color: #0550ae; text-decoration: none; }
main { margin-left: 15rem; padding: 1rem 2rem 4rem; max-width: 58rem; }
section { border-bottom: 1px solid #d8dee4; padding: 1rem 0 2rem; }
h1 { font-size: 1.8rem; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .92rem; }
th, td { border: 1px solid #d8dee4; padding: .3rem .7rem; text-align: left; vertical-align: top; }
pre { font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
div.highlight, div.output_area pre { padding: .7rem .9rem; border-radius: 6px; }
div.highlight { background: #f6f8fa; margin: .8rem 0 .4rem; }
div.output_area { margin: .4rem 0 .8rem; overflow-x: auto; }
div.output_stderr { background: #fff8f0; }
div.prompt, .anchor-link { display: none; }
img { max-width: 100%; }
.ansi-red-fg { color: #b62324; } .ansi-green-fg { color: #1a7f37; } .ansi-cyan-fg { color: #1b7c83; }
.ansi-yellow-fg { color: #9a6700; } .ansi-bold { font-weight: bold; }
@media (max-width: 60rem) { nav { position: static; width: auto; } main { margin-left: 0; } }
"""
