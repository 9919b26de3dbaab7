"""Some prompts of an evaluation with all policies' answers and a program's verdict. A seed draws the prompts, so no
person can choose the best prompts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.turns import last_turn
from aligner_lib.tutorial.comparison.good_answers import judged


@dataclass(frozen=True)
class JudgedAnswer:
    """A policy's answer to a prompt."""

    text: str
    finished: bool
    """The policy ended the answer. The token limit did not cut the answer off."""
    reward: float | None
    """None if the environment failed."""
    parts: dict[str, bool] | None
    """By the name of a part of `data.gold.GoldParts`: whether the part holds. None if no program can judge the answer."""

    @property
    def summary(self) -> str:
        """The reward, and whether the answer is good if a program can judge the answer."""
        reward = "no reward" if self.reward is None else f"reward {self.reward:+.2f}".replace("-", "−")
        if self.parts is None:
            return reward
        return f"{'good' if all(self.parts.values()) else 'not good'} · {reward}"

    @property
    def marks(self) -> list[str]:
        """The parts of the judgement, with ✓ for a part that holds and ✗ for another. ✗ comes first."""
        parts = sorted((self.parts or {}).items(), key=lambda part: part[1])
        return [f"{'✓' if holds else '✗'} {name.replace('_', ' ')}" for name, holds in parts]

    @property
    def verdict(self) -> str:
        """The summary, and the marks in a second line."""
        return "\n".join(filter(None, [self.summary, " ".join(self.marks)]))


@dataclass(frozen=True)
class DrawnPrompt:
    """A user's turn, and the first answer of each policy."""

    turn: str
    answers: dict[str, JudgedAnswer]
    """By the policy's name."""


def draw_prompts(runs: Mapping[str, RunFolder], environment: str, seed: int, n: int = 4) -> list[DrawnPrompt]:
    """Draw n prompts that all policies answered, in the order of the draw.

    runs: evaluations of the same prompts, by the policies' names. environment: the environment of the prompts. seed: of the
    draw. A program judges the answers if it can check the instructions of all prompts of the environment. Each answer is judged
    in comparison with the policy's other answers. Raises ValueError for policies without common prompts.
    """
    answers = {name: _first_answers(run, environment) for name, run in runs.items()}
    common = sorted(set.intersection(*(set(of_policy) for of_policy in answers.values())))
    if not common:
        raise ValueError(
            f"{', '.join(runs)} answered no prompt of {environment} in common: evaluate them with the same settings"
        )
    first = next(iter(answers.values()))
    return [
        DrawnPrompt(first[prompt][0], {name: of_policy[prompt][1] for name, of_policy in answers.items()})
        for prompt in random.Random(seed).sample(common, min(n, len(common)))
    ]


def as_json(drawn: Sequence[DrawnPrompt]) -> list[dict]:
    """The drawn prompts as objects of JSON, which `from_json` reads."""
    return [
        {"turn": prompt.turn, "answers": {name: vars(answer) for name, answer in prompt.answers.items()}}
        for prompt in drawn
    ]


def from_json(objects: Sequence[dict]) -> list[DrawnPrompt]:
    return [
        DrawnPrompt(
            prompt["turn"], {name: JudgedAnswer(**answer) for name, answer in prompt["answers"].items()}
        )
        for prompt in objects
    ]


def _first_answers(run: RunFolder, environment: str) -> dict[int, tuple[str, JudgedAnswer]]:
    """By the prompt's number: the user's turn, and the policy's first answer. The prompt's text may differ, because chat
    templates differ. A prompt that the evaluation repeats has its first number."""
    records = [record for record in run.rollouts() if record.get("environment") == environment]
    first: dict[int, tuple[str, JudgedAnswer]] = {}
    numbers: dict[str, int] = {}
    for record, parts in zip(records, judged(records) or [None] * len(records)):
        answer = JudgedAnswer(
            record["response"].strip(),
            record["finished"],
            record["reward"],
            None if parts is None else parts._asdict(),
        )
        number = numbers.setdefault(record["prompt"], record["group"])
        first.setdefault(number, (last_turn(record["prompt"]), answer))
    return first
