"""Answers before and after training, side by side, from a recorded run. The course begins with this view."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from aligner_lib.jobs.drawn_answer import answers_of
from aligner_lib.run_folder.turns import turns_of
from data.gold import judge_all
from widgets.recordings.recording_file import find, read

COLUMNS = "question", "before training", "before PPO", "after PPO"
SHOWN = 3  # prompts


class BeforeAfter:
    """The policy's answers at step 0 and after the last step, for the first held-out prompts of a recording.

    name: a recording of a run with validations. live: a function of a question that returns the answer of a local model, such
    as the untrained model; None: no such column. The prompts are the first of the recording, and are not selected by
    quality.
    Raises ValueError for a recording without validations of the same prompts at step 0 and later, and for prompts that the program of
    data/gold.py can't judge.
    """

    def __init__(self, name: str, live: Callable[[str], str] | None = None):
        validation = [record for record in read(find(name)).rollouts if record["split"] == "validation"]
        steps = sorted({record["step"] for record in validation})
        if len(steps) < 2:
            raise ValueError(f"the recording {name} has {len(steps)} validations; before and after need two")
        if steps[0] != 0:
            raise ValueError(
                f"the first validation of the recording {name} is of step {steps[0]}; the answers before training are of step 0"
            )
        self.last_step = steps[-1]
        answers = [{r["prompt"]: r for r in validation if r["step"] == step} for step in (0, self.last_step)]
        self.pairs = [
            (before, answers[1][prompt]) for prompt, before in answers[0].items() if prompt in answers[1]
        ]
        if not self.pairs:
            raise ValueError(
                f"the recording {name} has no prompt in both of its validations, of steps 0 and {self.last_step}"
            )
        texts = [question(before["prompt"]) for before, _ in self.pairs]
        self.good = [_judged(texts, side) for side in zip(*self.pairs)]
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


def question(prompt: str) -> str:
    """The question in a recorded prompt, which is the last turn."""
    return turns_of(prompt)[-1]["text"]


def _judged(questions: list[str], records: list[dict]) -> list[bool]:
    """Whether a program judges each answer as good, in comparison with the other answers of the same policy."""
    verdicts = judge_all(
        questions, [record["response"] for record in records], [record["finished"] for record in records]
    )
    return [parts.good for parts in verdicts]


def _marked(record: dict, good: bool) -> str:
    """An answer as HTML, with a check mark if the answer is good and a cross otherwise."""
    return ("✓ " if good else "✗ ") + escape(record["response"].strip())
