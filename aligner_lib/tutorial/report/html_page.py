"""An HTML page that opens offline: a single file, which contains the style, light and dark."""

from __future__ import annotations

import html
import re


def html_page(title: str, body: str, style: str = "", script: str = "") -> str:
    """The page as text. body: HTML. style: additional CSS. script: additional elements of the head."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<style>{STYLE}{style}</style>
{script}
</head>
<body>
{body}
</body>
</html>
"""


def with_code(text: str) -> str:
    """A text as HTML, with code between backticks."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


STYLE = """
:root {
  --ink: #1f2328; --soft: #59636e; --paper: #fff; --raised: #f6f8fa; --edge: #d8dee4; --link: #0550ae;
  --strong: #0072b2; --faint: #0072b266; --mark: #a85a00; --bad: #b62324; --warned: #fff8f0;
  --green: #1a7f37; --cyan: #1b7c83; --yellow: #9a6700;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6edf3; --soft: #9aa4ae; --paper: #0d1117; --raised: #161b22; --edge: #30363d; --link: #79b8ff;
    --strong: #56b4e9; --faint: #56b4e966; --mark: #f0b429; --bad: #ff8a80; --warned: #2b2113;
    --green: #56d364; --cyan: #56d4dd; --yellow: #e3b341;
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
main.alone { margin: 0 auto; }
section { border-bottom: 1px solid var(--edge); padding: 1rem 0 2rem; }
h1 { font-size: 1.8rem; margin-bottom: .3rem; }
main p, main li { max-width: 44rem; }
.facts { margin-top: 0; color: var(--soft); }
.failed { color: var(--bad); font-weight: 600; }
figure { margin: 1.4rem 0; }
figcaption, small { font-size: .85rem; color: var(--soft); }
figcaption { margin-top: .5rem; max-width: 52rem; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { border: 0 solid var(--edge); border-bottom-width: 1px; padding: .35rem .8rem; text-align: left; vertical-align: top; }
th { font-weight: 600; color: var(--soft); }
.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.stages table { width: 100%; margin: 0; }
.stages th { white-space: nowrap; color: var(--ink); }
.stages tr:has(th) > * { border-top-width: 1px; }
.stages td, .stages th { border-bottom-width: 0; vertical-align: middle; }
.stages th { vertical-align: top; padding-top: .9rem; }
.stages table { border-bottom: 1px solid var(--edge); }
.stages small { display: block; }
.stages .drawn { width: 28%; min-width: 9rem; }
.stages .number { text-align: right; font-size: 1.05rem; font-weight: 600; }
.stages svg { display: block; width: 100%; }
.stages .key { display: inline-block; width: 14px; vertical-align: -2px; }
.stages path { fill: none; stroke: var(--edge); stroke-width: 2; }
.stages .change { stroke: var(--strong); stroke-width: 3; }
.stages .baseline { stroke: var(--mark); stroke-width: 2.5; stroke-dasharray: 3.5 2; }
.stages .before { fill: var(--paper); stroke: var(--strong); stroke-width: 2; }
.stages .after { fill: var(--strong); }
.answers article { margin: 1rem 0; padding: .6rem 1rem .9rem; border: 1px solid var(--edge); border-radius: 10px; background: var(--raised); }
.answers p { margin: .2rem 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .92rem; }
.answers .prompt { font-weight: 600; }
.answers .sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 13rem), 1fr)); gap: .6rem 1.4rem; margin-top: .6rem; }
.answers h3 { margin: 0; padding-top: .3rem; border-top: 2px solid var(--edge); font-size: .85rem; color: var(--soft); display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 .6rem; }
.answers h3 .number { font-weight: 400; white-space: pre-line; }
.wide, div.text_cell_render { overflow-x: auto; }
.answers em { color: var(--soft); }
.picture > div { display: grid; grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)); gap: 1rem 1.5rem; }
.picture h3 { margin: 0; font-size: .9rem; font-weight: 600; color: var(--soft); }
.picture svg { display: block; width: 100%; }
.picture text { font-size: 10px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.picture polyline { fill: none; stroke: var(--strong); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.picture .faint { stroke: var(--faint); stroke-width: 1.2; }
summary { cursor: pointer; color: var(--soft); }
pre { font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
div.highlight, div.output_area pre { padding: .7rem .9rem; border-radius: 6px; }
div.output_area { margin: .4rem 0 .8rem; overflow-x: auto; }
div.output_stderr { background: var(--warned); }
div.prompt, .anchor-link { display: none; }
img { max-width: 100%; background: #fff; border-radius: 6px; }
math[display="block"] { text-align: left; margin: .8rem 0; overflow-x: auto; }
.ansi-red-fg { color: var(--bad); } .ansi-green-fg { color: var(--green); } .ansi-cyan-fg { color: var(--cyan); }
.ansi-yellow-fg { color: var(--yellow); } .ansi-bold { font-weight: bold; }
@media (max-width: 60rem) { nav { position: static; width: auto; } main { margin-left: 0; padding: 1rem; } }
@media (max-width: 40rem) {
  .stages tr { display: grid; grid-template-columns: 1fr auto; }
  .stages th, .stages .drawn { grid-column: 1 / -1; }
  .stages tr > *, .stages tr:has(th) > td { border-width: 0; }
  .stages .drawn { order: 1; width: auto; padding-bottom: .8rem; }
}
@media print { article, figure, tr { break-inside: avoid; } }
"""
