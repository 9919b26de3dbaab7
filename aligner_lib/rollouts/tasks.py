"""Prompts for rollouts, from data files or environments. The prompts of a draw depend only on the draw's number."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from aligner_lib.algorithms.batching import global_batch, kept_order
from aligner_lib.datasets.chat_template import Conversation, as_written, call_form, encode
from aligner_lib.datasets.samples import PromptSample
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.datasets.tool_calls import Tool
from aligner_lib.errors import UserError
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.environments.pool import EnvironmentFailure, Environments, Episode

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task(PromptSample):
    """A prompt, and the judge of its response: an environment, or the reward model."""

    environment: str = ""
    """The environment that gave the prompt; empty: the prompt is from a data file."""
    seed: int = 0
    """The seed of the environment's episode."""
    conversation: Conversation = ""
    """The prompt as the environment gave it."""
    tools: tuple[Tool, ...] = ()
    """The tools of the environment."""
    by_model: bool = True
    """Whether the reward model judges the response."""
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    """The environment's metrics whose weighted sum is the reward, with their weights; empty: the environment gives a single
    reward."""


class TaskSource(Protocol):
    """A source of prompts."""

    size: int | None
    """Number of different training prompts; None: endless."""
    environments: Mapping[str, Environments]
    """The environments of each split; empty when only the reward model judges."""

    def train(self, draw: int, count: int) -> list[Task | EnvironmentFailure]:
        """The prompts of draw number `draw`, which starts at 0. Where an environment failed to give a prompt, the list has an
        EnvironmentFailure."""

    def validation(self, count: int | None) -> list[Task | EnvironmentFailure]:
        """The first `count` held-out prompts; None: all held-out prompts. Environments with fewer prompts repeat them.
        Empty if no environment has held-out prompts."""

    def close(self) -> None:
        """End the environments' processes."""


@dataclass
class FileTasks:
    """Prompts of data files, in a new order for each epoch. The reward model judges the responses."""

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


def _shares(weights: Mapping[str, float], count: int) -> dict[str, int]:
    """`count` prompts shared out by weight, with the largest remainders. An environment without a prompt gets one of the
    environment with most, if there are enough."""
    whole = sum(weights.values())
    exact = {name: count * weight / whole for name, weight in weights.items()}
    shares = {name: int(part) for name, part in exact.items()}
    by_remainder = sorted(exact, key=lambda name: shares[name] - exact[name])
    for name in by_remainder[: count - sum(shares.values())]:
        shares[name] += 1
    for name in [name for name, share in shares.items() if share == 0 and count >= len(weights)]:
        shares[max(shares, key=shares.__getitem__)] -= 1
        shares[name] = 1
    return shares


@dataclass
class EnvironmentTasks:
    """Prompts of one or several environments, drawn by their weights."""

    environments: Mapping[str, Environments]
    """The environments of each split: train and validation. An environment may be absent from validation."""
    weights: Mapping[str, float]
    by_model: frozenset[str]
    """The environments whose responses the reward model judges."""
    tokenizer: Tokenizer
    max_length: int
    """The largest number of tokens of a prompt. A longer prompt is left out like a failed one."""
    seed: int
    reward_weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """See Task; by environment."""
    _drawn: list[tuple[str, int]] = field(default_factory=list)
    """The environment of each draw, and how often the same environment was drawn before."""

    def __post_init__(self):
        self._random, self._counts = Random(self.seed), dict.fromkeys(self.weights, 0)
        self._tools = next(iter(self.environments.values())).tools()
        if any(self._tools.values()):
            call_form(self.tokenizer)  # refuses a template whose calls cannot be read

    @property
    def size(self) -> int | None:
        sizes = list(self.environments["train"].sizes().values())
        return None if None in sizes else sum(sizes)

    def train(self, draw: int, count: int) -> list[Task | EnvironmentFailure]:
        drawn = self._draws((draw + 1) * count)[draw * count : (draw + 1) * count]
        sizes = self.environments["train"].sizes()
        return self._tasks("train", [(name, self._seed_of(number, sizes[name])) for name, number in drawn])

    def validation(self, count: int | None) -> list[Task | EnvironmentFailure]:
        sizes = self.environments["validation"].sizes()
        weights = {name: self.weights[name] for name in sizes}
        shares = _shares(weights, count) if count is not None else {}
        episodes = []
        for name, size in sizes.items():
            share = shares.get(name, size or 64)
            episodes += [(name, number % size if size else number) for number in range(share)]
        if sizes and len(episodes) < parallel.dp_size():
            raise UserError(
                f"{len(episodes)} validation prompts leave some of the {parallel.dp_size()} copies of the model without a prompt: "
                "raise num_val_samples, or lower trainer.devices"
            )
        return self._tasks("validation", episodes)

    def close(self) -> None:
        for environments in self.environments.values():
            environments.close()

    def _draws(self, count: int) -> list[tuple[str, int]]:
        """At least the first `count` draws of the run, always the same."""
        names, weights = list(self.weights), list(self.weights.values())
        while len(self._drawn) < count:
            (name,) = self._random.choices(names, weights)
            self._drawn.append((name, self._counts[name]))
            self._counts[name] += 1
        return self._drawn

    def _seed_of(self, number: int, size: int | None) -> int:
        """The seed of an environment's episode `number`. Every seed is used once before any seed is used again."""
        if size is None:
            return number
        epoch, place = divmod(number, size)
        return kept_order(size, epoch, self.seed)[place]

    def _tasks(self, split: str, episodes: list[tuple[str, int]]) -> list[Task | EnvironmentFailure]:
        different = list(dict.fromkeys(episodes))
        prompts = None
        if parallel.is_first_rank():
            prompts = self.environments[split].reset([Episode(*episode) for episode in different])
        tasks = {
            episode: self._task(*episode, prompt)
            for episode, prompt in zip(different, parallel.from_first_rank(prompts))
        }
        return [tasks[episode] for episode in episodes]

    def _task(
        self, name: str, seed: int, prompt: Conversation | EnvironmentFailure
    ) -> Task | EnvironmentFailure:
        if isinstance(prompt, EnvironmentFailure):
            return prompt
        try:
            prompt = as_written(self.tokenizer, prompt)
        except UserError as error:
            return EnvironmentFailure(name, seed, "templated", str(error))
        tools = self._tools[name]
        tokens = encode(self.tokenizer, prompt, tools)
        if len(tokens) > self.max_length:
            return EnvironmentFailure(
                name,
                seed,
                "too_long",
                f"a prompt of {len(tokens)} tokens leaves no room for a response: model.encoder_seq_length less "
                f"length_params.max_length is {self.max_length}; raise the first, or lower the second",
            )
        text = self.tokenizer.decode(tokens, special_tokens=True)
        weights = self.reward_weights.get(name, {})
        return Task(tokens, text, name, seed, prompt, tools, name in self.by_model, weights)
