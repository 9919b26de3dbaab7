"""Prompts whose responses a reward model judges."""

from __future__ import annotations

from aligner_lib.rollouts.environments.base import Step
from aligner_lib.rollouts.environments.instructions import form_metrics
from aligner_lib.rollouts.environments.prompt_files import PromptFiles


class RewardModelPrompts(PromptFiles):
    """Prompts without rewards of their own: the trainer gets the rewards from its reward model.

    When a prompt asks for a form of data/forms.py, the metric `obeys` says whether the response has the form. A program thus
    measures the quality that the reward model estimates.
    """

    def step(self, response: str) -> Step:
        return Step(metrics=form_metrics(self.record.question, response))
