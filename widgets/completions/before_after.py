"""Answers before and after training, side by side, from a recorded run. The course begins with this view."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from aligner_lib.jobs.drawn_answer import answers_of
from aligner_lib.run_folder.turns import last_turn
from aligner_lib.tutorial.comparison.good_answers import first_and_last, verdicts_of
from widgets.recordings.recording_file import find, read

COLUMNS = "question", "before training", "before PPO", "after PPO"
SHOWN = 3  # prompts


class BeforeAfter:
    """The policy's answers at step 0 and after the last step, for the first held-out prompts of a recording.

    name: a recording of a run with validations. live: a function of a question that returns the answer of a local model, such
    as the untrained model; None: no column for the model. The prompts are the first of the recording, and are not selected by
    quality.

    Raises ValueError for a recording without validations of the same prompts at step 0 and later, and for prompts that the program of
    data/gold.py can't judge.
    """

    def __init__(self, name: str, live: Callable[[str], str] | None = None):
        sides = first_and_last(r for r in read(find(name)).rollouts if r["split"] == "validation")
        if len(sides) < 2:
            raise ValueError(f"the recording {name} has {len(sides)} validations; before and after need two")
        first_step, self.last_step = sides
        if first_step != 0:
            raise ValueError(
                f"the first validation of the recording {name} is of step {first_step}; the answers before training are of step 0"
            )
        first, last = ({record["prompt"]: record for record in side} for side in sides.values())
        self.pairs = [(before, last[prompt]) for prompt, before in first.items() if prompt in last]
        if not self.pairs:
            raise ValueError(
                f"the recording {name} has no prompt in both of its validations, of steps 0 and {self.last_step}"
            )
        texts = [last_turn(before["prompt"]) for before, _ in self.pairs]
        self.good = [[parts.good for parts in verdicts_of(side)] for side in zip(*self.pairs)]
        """Whether each answer is good (data/gold.py): a list for the answers before training, and a list for those after."""
        self.shown = list(zip(texts, *zip(*self.pairs), *self.good))[:SHOWN]
        self.live = answers_of(live or (lambda _: ""), [text for text, *_ in self.shown])

    def _repr_html_(self) -> str:
        live = any(self.live)
        heads = [head for head in COLUMNS if live or head != "before training"]
        rows = []
        for (text, before, after, *good), now in zip(self.shown, self.live):
            answers = [_marked(*marked) for marked in zip((before, after), good)]
            cells = [escape(text), *([escape(now)] if live else []), *answers]
            rows.append("".join(f'<td dir="auto" style="{CELL}">{cell}</td>' for cell in cells))
        head = "".join(f'<th style="{CELL}">{name}</th>' for name in heads)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f'<table class="tex2jax_ignore mathjax_ignore" style="table-layout:fixed;width:100%"><tr>{head}</tr>{body}</table>'

    def __repr__(self) -> str:
        lines = []
        for (text, before, after, *_), now in zip(self.shown, self.live):
            lines += [f"question         {text}"]
            lines += [f"before training  {now}"] if now else []
            lines += [f"before PPO       {before['response']}", f"after PPO        {after['response']}", ""]
        return "\n".join(lines)


CELL = "text-align:left;vertical-align:top;white-space:pre-wrap;overflow-wrap:anywhere"


def _marked(record: dict, good: bool) -> str:
    """An answer as HTML, with a check mark if the answer is good and a cross otherwise."""
    return ("✓ " if good else "✗ ") + escape(record["response"].strip())
