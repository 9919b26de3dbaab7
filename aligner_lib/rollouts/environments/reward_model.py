"""Prompts that a reward model's judgement follows."""

from __future__ import annotations

from aligner_lib.rollouts.environments.base import Step
from aligner_lib.rollouts.environments.prompt_files import PromptFiles


class RewardModelPrompts(PromptFiles):
    """Prompts alone: the trainer asks its reward model for the rewards."""

    def step(self, response: str) -> Step:
        return Step()
