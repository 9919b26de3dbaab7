"""Prompts from a file whose instructions ask for a form, and a program that checks the form."""

from __future__ import annotations

from typing import Any

from aligner_lib.rollouts.environments.base import Step, require
from aligner_lib.rollouts.environments.prompt_files import PromptFiles
from data.forms import instruction_in, words


class Instructions(PromptFiles):
    """Prompts that ask for a form of data/forms.py. The reward is 1 when the answer has the form. The content is not judged.

    prompts, held_out: see PromptFiles. Every prompt must contain an instruction of data/forms.py.
    """

    def __init__(self, split: str = "train", *, prompts: Any, held_out: float = 0.2):
        super().__init__(split, prompts=prompts, held_out=held_out)
        without = next(
            (record.question for record in self.records if instruction_in(record.question) is None), None
        )
        require(without is None, f"this prompt has no instruction of data/forms.py: {without!r}")

    def step(self, response: str) -> Step:
        metrics = form_metrics(self.record.question, response)
        return Step(metrics["obeys"], metrics=metrics)


def form_metrics(prompt: str, response: str) -> dict[str, float]:
    """Metrics of a response: `obeys`, whether the response obeys its prompt's instruction; the same value under the form's
    name; and `words`, the number of words.

    Empty for a prompt without an instruction of data/forms.py.
    """
    instruction = instruction_in(prompt)
    if instruction is None:
        return {}
    obeys = float(instruction.holds(response))
    return {"obeys": obeys, f"form/{instruction.form}": obeys, "words": float(len(words(response)))}
