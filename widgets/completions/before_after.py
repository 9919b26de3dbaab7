"""Answers before and after a training, side by side, from a recorded run: what a learner sees first."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from aligner_lib.run_folder.turns import turns_of
from widgets.recordings.recording_file import find, read

COLUMNS = "question", "before training", "before PPO", "after PPO"


class BeforeAfter:
    """The first held-out prompts of a recording: the policy's answers at step 0 and after its last step.

    name: a recording of a run with validations. live: a model at hand, which answers the same questions now; None: none.
    most: how many prompts are shown; they are the recording's first, not its best. Raises ValueError for a recording
    without two validations.
    """

    def __init__(self, name: str, live: Callable[[str], str] | None = None, most: int = 3):
        validation = [record for record in read(find(name)).rollouts if record["split"] == "validation"]
        steps = sorted({record["step"] for record in validation})
        if len(steps) < 2:
            raise ValueError(f"the recording {name} has {len(steps)} validations; before and after need two")
        self.last_step = steps[-1]
        answers = [{r["prompt"]: r for r in validation if r["step"] == step} for step in (0, self.last_step)]
        self.pairs = [
            (before, answers[1][prompt]) for prompt, before in answers[0].items() if prompt in answers[1]
        ]
        self.shown = [(question(before["prompt"]), before, after) for before, after in self.pairs[:most]]
        self.live = [live(text) if live else "" for text, _, _ in self.shown]

    def obey(self) -> tuple[int, int]:
        """Of all prompts of the recording, not only the shown: how many answers obey before, and after."""
        return tuple(sum(pair[i]["metrics"].get("obeys", 0) == 1 for pair in self.pairs) for i in (0, 1))

    def _repr_html_(self) -> str:
        live = any(self.live)
        heads = [head for head in COLUMNS if live or head != "before training"]
        rows = []
        for (text, before, after), now in zip(self.shown, self.live):
            cells = [escape(text), *([escape(now)] if live else []), *map(_marked, (before, after))]
            rows.append("".join(f'<td dir="auto" style="{CELL}">{cell}</td>' for cell in cells))
        head = "".join(f'<th style="{CELL}">{name}</th>' for name in heads)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f'<table class="tex2jax_ignore mathjax_ignore" style="table-layout:fixed;width:100%"><tr>{head}</tr>{body}</table>'

    def __repr__(self) -> str:
        lines = []
        for (text, before, after), now in zip(self.shown, self.live):
            lines += [f"question         {text}"]
            lines += [f"before training  {now}"] if now else []
            lines += [f"before PPO       {before['response']}", f"after PPO        {after['response']}", ""]
        return "\n".join(lines)


CELL = "text-align:left;vertical-align:top;white-space:pre-wrap;overflow-wrap:anywhere"


def question(prompt: str) -> str:
    """The question in a recorded prompt: its last turn."""
    return turns_of(prompt)[-1]["text"]


def _marked(record: dict) -> str:
    """An answer as HTML, with a mark that says whether a program finds that it obeys the question's instruction."""
    obeys = record["metrics"].get("obeys")
    mark = "" if obeys is None else ("✓ " if obeys == 1 else "✗ ")
    return mark + escape(record["response"].strip())
