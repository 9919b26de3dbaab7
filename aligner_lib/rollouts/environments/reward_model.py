"""Prompts that a reward model's judgement follows."""

from __future__ import annotations

from aligner_lib.rollouts.environments.base import Step
from aligner_lib.rollouts.environments.instructions import form_metrics
from aligner_lib.rollouts.environments.prompt_files import PromptFiles


class RewardModelPrompts(PromptFiles):
    """Prompts alone: the trainer asks its reward model for the rewards.

    Where a prompt asks for a form of data/forms.py, whether the response has it is a metric beside them, `obeys`: what the
    reward model stands for, as a program sees it.
    """

    def step(self, response: str) -> Step:
        return Step(metrics=form_metrics(self.record.question, response))
