"""What an environment is: it gives a prompt, reads the policy's response, and rewards it or answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from aligner_lib.errors import UserError

Message = dict[str, str]  # {"role", "content"}
Prompt = str | list[Message]  # a plain text, or messages for the chat template
Item = TypeVar("Item")

SPLITS = ("train", "validation")
MOST = 1_000_000  # episodes that are enumerated


@dataclass(frozen=True)
class Step:
    """What an environment says to a response."""

    reward: float = 0.0
    done: bool = True
    observation: Prompt = ""  # what the policy reads next, where not done; in the context, in no loss
    metrics: Mapping[str, float] = field(default_factory=dict)


class Environment(ABC):
    """Prompts, and what follows on a response. All that an episode is depends on its seed and on the responses.

    An observation is of the prompt's kind: text behind text, messages (or the text of a user's turn) behind messages.
    Arguments come from `args` of its settings; a constructor raises UserError for a wrong one.
    """

    size: int | None = None  # how many different episodes its split has, seeds 0 to size - 1; None: endless
    max_turns: int = 1  # an episode ends with this many responses, done or not

    def __init__(self, split: str = "train"):
        assert split in SPLITS, split
        self.split = split

    @abstractmethod
    def reset(self, seed: int) -> Prompt:
        """Begin the episode of a seed: its prompt."""

    @abstractmethod
    def step(self, response: str) -> Step:
        """What follows on the policy's response, a text without the stop token."""


def hold_out(items: Sequence[Item], share: float) -> dict[str, list[Item]]:
    """The items of each split, in an order that is always the same: `share` of all are held out for validation.

    Both splits have one at least. Raises UserError where that can't be, and for over a million items.
    """
    require(0 < share < 1, f"held_out={share}: it must be above 0 and below 1")
    require(
        2 <= len(items) <= MOST,
        f"there are {len(items):,} different episodes; it takes 2 to {MOST:,} to have a split",
    )
    shuffled = Random(1234).sample(items, len(items))
    count = min(max(1, round(share * len(items))), len(items) - 1)
    return {"train": shuffled[count:], "validation": shuffled[:count]}


def require(holds: bool, words: str) -> None:
    """Raise UserError(words) unless the condition holds. words: value and cure; the environment's name comes before."""
    if not holds:
        raise UserError(words)
