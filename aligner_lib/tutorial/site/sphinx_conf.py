"""Sphinx's settings for the site: notebooks are not executed again, and equations are MathML, which needs no download."""

import html

from docutils import nodes
from latex2mathml.converter import convert

project = "Aligner Lab"
html_title = "Aligner Lab"
root_doc = "index"
extensions = ["myst_nb"]
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
html_theme = "furo"
html_static_path = ["static"]
html_js_files = ["frames.js"]
html_css_files = ["frames.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_math_renderer = "mathml"
# a code excerpt may be incomplete, so highlighting may fail; a notebook may have output types that a page cannot show
suppress_warnings = ["misc.highlighting_failure", "mystnb.unknown_mime_type"]


def _mathml(text: str, display: str) -> str:
    try:
        return convert(text.strip(), display=display)
    except Exception:  # the converter's errors have no common base class; the LaTeX source is readable, too
        return f"<code>{html.escape(text)}</code>"


def _inline(translator, node) -> None:
    translator.body.append(_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _block(translator, node) -> None:
    translator.body.append(f"<div class='math'>{_mathml(node.astext(), 'block')}</div>")
    raise nodes.SkipNode


def setup(app) -> None:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
