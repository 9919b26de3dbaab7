"""Prompts for rollouts: of data files, or of environments. What is drawn is a function of the draw's number alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from aligner_lib.algorithms.batching import global_batch, sample_order
from aligner_lib.datasets.chat_template import Conversation, as_written, encode
from aligner_lib.datasets.samples import PromptSample
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.environments.pool import Environments, Episode, Failure

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task(PromptSample):
    """A prompt, and who judges the response: an environment, or the reward model."""

    environment: str = ""  # whose prompt it is; empty: of a data file
    seed: int = 0  # of the environment's episode
    conversation: Conversation = ""  # the prompt as the environment gave it
    by_model: bool = True  # whether the reward model judges it


class TaskSource(Protocol):
    """Where prompts come from."""

    size: int | None  # how many different ones there are to train on; None: endlessly many
    environments: Mapping[str, Environments]  # by split; empty where the reward model judges alone

    def train(self, draw: int, count: int) -> list[Task | Failure]:
        """The prompts of draw number `draw`, counted from 0; a Failure is a prompt that an environment did not give."""

    def validation(self, count: int | None) -> list[Task | Failure]:
        """The first `count` held-out prompts (environments begin again where they have fewer); None: all there are."""

    def close(self) -> None:
        """End the environments' processes."""


@dataclass
class FileTasks:
    """Prompts of data files, epoch by epoch in another order; the reward model judges."""

    train_prompts: list[PromptSample]
    val_prompts: list[PromptSample]
    seed: int
    environments: Mapping[str, Environments] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.train_prompts)

    def train(self, draw: int, count: int) -> list[Task]:
        picked = global_batch(self.size, draw, count, self.seed)
        return [Task(**vars(self.train_prompts[i])) for i in picked]

    def validation(self, count: int | None) -> list[Task]:
        return [Task(**vars(prompt)) for prompt in self.val_prompts[:count]]

    def close(self) -> None:
        pass


@dataclass
class EnvironmentTasks:
    """Prompts of one or several environments, drawn by their weights."""

    environments: Mapping[str, Environments]  # train and validation
    weights: Mapping[str, float]
    by_model: frozenset[str]  # the environments that give prompts alone
    tokenizer: Tokenizer
    max_length: int  # tokens of a prompt; a longer one is left out like one that failed
    seed: int
    _drawn: list[tuple[str, int]] = field(default_factory=list)  # environment, and which of its episodes

    def __post_init__(self):
        self._random, self._counts = Random(self.seed), dict.fromkeys(self.weights, 0)

    @property
    def size(self) -> int | None:
        sizes = list(self.environments["train"].sizes().values())
        return None if None in sizes else sum(sizes)

    def train(self, draw: int, count: int) -> list[Task | Failure]:
        drawn = self._draws((draw + 1) * count)[draw * count : (draw + 1) * count]
        sizes = self.environments["train"].sizes()
        return self._tasks("train", [(name, self._seed_of(number, sizes[name])) for name, number in drawn])

    def validation(self, count: int | None) -> list[Task | Failure]:
        sizes = self.environments["validation"].sizes()
        whole = sum(self.weights.values())
        wanted = []
        for name, weight in self.weights.items():
            size = sizes[name]
            episodes = (size or 64) if count is None else round(count * weight / whole)
            wanted += [(name, number % size if size else number) for number in range(episodes)]
        return self._tasks("validation", wanted)

    def close(self) -> None:
        for environments in self.environments.values():
            environments.close()

    def _draws(self, count: int) -> list[tuple[str, int]]:
        """The first `count` episodes of the run; always the same ones."""
        names, weights = list(self.weights), list(self.weights.values())
        while len(self._drawn) < count:
            (name,) = self._random.choices(names, weights)
            self._drawn.append((name, self._counts[name]))
            self._counts[name] += 1
        return self._drawn

    def _seed_of(self, number: int, size: int | None) -> int:
        """Every episode of an environment comes once before any comes again."""
        if size is None:
            return number
        epoch, place = divmod(number, size)
        return sample_order(size, epoch, self.seed)[place]

    def _tasks(self, split: str, wanted: list[tuple[str, int]]) -> list[Task | Failure]:
        asked = list(dict.fromkeys(wanted))
        prompts = None
        if parallel.is_first_rank():
            prompts = self.environments[split].reset([Episode(*one) for one in asked])
        made = {
            one: self._task(*one, prompt) for one, prompt in zip(asked, parallel.from_first_rank(prompts))
        }
        return [made[one] for one in wanted]

    def _task(self, name: str, seed: int, prompt: Conversation | Failure) -> Task | Failure:
        if isinstance(prompt, Failure):
            return prompt
        prompt = as_written(self.tokenizer, prompt)
        tokens = encode(self.tokenizer, prompt)
        if len(tokens) > self.max_length:
            return Failure(
                name,
                seed,
                "too_long",
                f"a prompt of {len(tokens)} tokens leaves no room for a response: model.encoder_seq_length less "
                f"length_params.max_length is {self.max_length}",
            )
        text = self.tokenizer.decode(tokens, special_tokens=True)
        return Task(tokens, text, name, seed, prompt, name in self.by_model)
