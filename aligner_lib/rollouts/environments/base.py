"""The interface of an environment: a prompt, the policy's response, and then a reward or a next turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import Any, TypeVar

from aligner_lib.datasets.tool_calls import Tool
from aligner_lib.errors import UserError

Message = dict[str, Any]  # {"role", "content"}; an assistant's message may have "tool_calls"
Prompt = str | list[Message]  # a plain text, or messages for the chat template
Item = TypeVar("Item")

SPLITS = ("train", "validation")
FIGURES = ("reward", "samples", "failed", "turns")  # figures of every environment, and no names of metrics
MOST = 1_000_000  # enumerated episodes


@dataclass(frozen=True)
class Step:
    """An environment's answer to a response."""

    reward: float | None = 0.0
    """None: the reward is the weighted sum of metrics that the settings name (`rewards`)."""
    done: bool = True
    observation: Prompt = ""
    """The text or messages that the policy reads next, unless done. The loss does not cover them."""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NoVerdict:
    """The reason for a response without a reward. The trainer leaves the sample out."""

    reason: str
    """A word that metrics and messages show, such as budget."""
    text: str
    """A sentence, or a traceback."""


class Environment(ABC):
    """Gives prompts and judges responses. An episode depends on nothing but its seed and the responses.

    An observation has the type of the prompt: text continues a text, and messages (or the text of a user's turn) continue
    messages. The constructor takes the split and the `args` of the settings, and raises UserError for a wrong argument.
    """

    size: int | None = None
    """Number of different episodes of the split, with seeds 0 to size - 1; None: endless."""
    max_turns: int = 1
    """An episode ends after this many responses, done or not. An environment that keeps the default has to be done after one."""
    judges_together: bool = False
    """Whether all responses of a micro batch go to `step_all` in one call; episodes then have a single response."""
    tool_schemas: tuple[Tool, ...] = ()
    """The descriptions of the functions that the policy may call."""
    waiting_seconds: float = 0.0
    """Seconds that the answer to a response may wait for another server, beyond the `timeout` of the settings."""
    compared_at_once: int = 0
    """How many comparisons of a response with the prompt's other responses fit into `waiting_seconds`; 0: no comparisons."""

    def __init__(self, split: str = "train"):
        assert split in SPLITS, split
        self.split = split

    @abstractmethod
    def reset(self, seed: int) -> Prompt:
        """Begin the episode of a seed. Returns its prompt."""

    @abstractmethod
    def step(self, response: str) -> Step | NoVerdict:
        """The answer to the policy's response, a text without the stop token."""

    def step_all(
        self, seeds: Sequence[int], responses: Sequence[str], groups: Sequence[int] | None = None
    ) -> list[Step | NoVerdict]:
        """The answers to responses to the prompts of these seeds, in their order.

        groups: the number of each response's group; None: the responses of one seed are a group. A prompt that a step draws
        twice has two groups.
        """
        raise NotImplementedError(f"{type(self).__name__} judges each response by itself")


def hold_out(
    items: Sequence[Item], share: float, twins: Callable[[Item], Hashable] | None = None
) -> dict[str, list[Item]]:
    """The items of the splits `train` and `validation`, always in the same order.

    share: the share of items for validation. twins: the key of an item; items with equal keys, such as 3 + 4 and 4 + 3, stay in
    the same split. At least a single key has to be unique, so that both splits have an item. Raises UserError for fewer than two
    or more than a million items.
    """
    require(0 < share < 1, f"held_out={share}: the value must be above 0 and below 1")
    require(
        2 <= len(items) <= MOST,
        f"there are {len(items):,} different episodes; two splits need 2 to {MOST:,}",
    )
    count = min(max(1, round(share * len(items))), len(items) - 1)
    alike: dict[Hashable, list[Item]] = {}
    for number, item in enumerate(items):
        alike.setdefault(twins(item) if twins else number, []).append(item)
    splits: dict[str, list[Item]] = {"train": [], "validation": []}
    for group in Random(1234).sample([*alike.values()], len(alike)):
        held = len(splits["validation"]) + len(group) <= count
        splits["validation" if held else "train"] += group
    return splits


def hold_out_prompts(
    items: Sequence[Item], share: float, prompt_of: Callable[[Item], Hashable]
) -> dict[str, list[Item]]:
    """The items of the splits, as `hold_out` splits their different prompts: items with equal prompts stay in the same split."""
    by_prompt: dict[Hashable, list[Item]] = {}
    for item in items:
        by_prompt.setdefault(prompt_of(item), []).append(item)
    splits = hold_out(list(by_prompt.values()), share)
    return {split: list(chain(*groups)) for split, groups in splits.items()}


def with_escapes(text: str) -> str:
    """A text with the code of half a surrogate pair, which no tokenizer reads, in place of the half."""
    return text.encode(errors="backslashreplace").decode()


def require(condition: bool, message: str) -> None:
    """Raise UserError(message) unless the condition holds. message: value and cure; the environment's name comes before it."""
    if not condition:
        raise UserError(message)
