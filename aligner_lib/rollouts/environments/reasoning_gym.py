"""The tasks of the package `reasoning-gym`, each judged by its own scorer."""

from __future__ import annotations

import re
from typing import Any

from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments.base import Environment, Message, Step, hold_out, require

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGym(Environment):
    """A task by name, such as `spell_backward`, with `config` for its generator.

    The first `size` episodes are generated, and repeated questions are left out. The share `held_out` of the rest is for
    validation. `instruction` is a system turn. The answer of a response is the text in its last <answer>…</answer>, or the
    whole response. The reward is the score of the task's own scorer, from 0 to 1.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        task: str,
        config: dict[str, Any] | None = None,
        size: int = 500,
        held_out: float = 0.2,
        instruction: str = "",
    ):
        super().__init__(split)
        try:
            import reasoning_gym
        except ImportError:
            raise UserError("the package is not installed: pip install reasoning-gym") from None
        from reasoning_gym.factory import DATASETS

        require(task in DATASETS, f"task={task!r}: reasoning-gym has {', '.join(sorted(DATASETS))}")
        try:
            self.dataset = reasoning_gym.create_dataset(task, seed=1234, size=size, **(config or {}))
        except (TypeError, ValueError, AssertionError) as error:
            raise UserError(f"config={config}: {task} does not accept the config: {error}") from None
        entries = {entry["question"]: entry for entry in (self.dataset[i] for i in range(size))}
        self.entries = hold_out(list(entries.values()), held_out)[split]
        self.size, self.instruction = len(self.entries), instruction

    def reset(self, seed: int) -> list[Message]:
        self.entry = self.entries[seed % self.size]
        system = [{"role": "system", "content": self.instruction}] if self.instruction else []
        return [*system, {"role": "user", "content": self.entry["question"]}]

    def step(self, response: str) -> Step:
        marked = ANSWER.findall(response)
        score = self.dataset.score_answer(answer=(marked or [response])[-1].strip(), entry=self.entry)
        return Step(score, metrics={"score": score, "right": float(score == 1)})
