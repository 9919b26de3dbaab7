"""A static view of some prompts with the answers of all policies, and a program's verdict on each answer."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from aligner_lib.tutorial.comparison.drawn_prompts import DrawnPrompt, JudgedAnswer

STYLE = """<style>
.lab-side {font: 13px/1.5 var(--jp-ui-font-family, system-ui, sans-serif); max-width: 838px; margin: 0 0 1.2em}
.lab-side p {margin: 0; padding: 6px 12px; border-radius: 12px; white-space: pre-wrap; overflow-wrap: anywhere}
.lab-side .turn {background: #0072b222; width: fit-content; max-width: 80%; margin: 0 0 6px auto}
.lab-side .answer {display: grid; grid-template-columns: 6.5em 1fr 15em; gap: 0 10px; padding: 3px 0; align-items: start}
.lab-side .answer p {background: #8881}
.lab-side .name {padding-top: 6px; font-weight: 600}
.lab-side .verdict {padding-top: 6px; opacity: .85}
.lab-side .verdict span {white-space: nowrap}
@media (max-width: 560px) {.lab-side .answer {grid-template-columns: 1fr}}
</style>"""


class SideBySide:
    """Prompts with every policy's answer, the answer's reward, and the parts of `data.gold` with ✓ or ✗.

    drawn: of `aligner_lib.tutorial.comparison.drawn_prompts.draw_prompts`, or of an evaluation's record. If a program can't
    judge the answers, only the rewards are shown.
    """

    def __init__(self, drawn: Sequence[DrawnPrompt]):
        self.drawn = drawn

    def _repr_html_(self) -> str:
        blocks = []
        for prompt in self.drawn:
            rows = "".join(_row(name, answer) for name, answer in prompt.answers.items())
            blocks.append(
                f'<div class="lab-side tex2jax_ignore mathjax_ignore"><p class="turn" dir="auto">{escape(prompt.turn)}</p>{rows}</div>'
            )
        return STYLE + "".join(blocks)

    def __repr__(self) -> str:
        lines = []
        for prompt in self.drawn:
            lines += [f"user        {prompt.turn}"]
            for name, answer in prompt.answers.items():
                verdict = answer.verdict.replace("\n", f"\n{'':12}")
                lines += [f"{name:12}{answer.text}", f"{'':12}{verdict}"]
            lines += [""]
        return "\n".join(lines)


def _row(name: str, answer: JudgedAnswer) -> str:
    cut = "" if answer.finished else " … (cut off)"
    marks = " ".join(f"<span>{escape(mark)}</span>" for mark in answer.marks)
    return (
        f'<div class="answer"><span class="name">{escape(name)}</span>'
        f'<p dir="auto">{escape(answer.text) or "(empty)"}{cut}</p>'
        f'<div class="verdict">{escape(answer.summary)}<br>{marks}</div></div>'
    )
