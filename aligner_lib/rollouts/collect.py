"""Collect rollouts: the policy generates responses while judges rate the finished ones. PPO, GRPO and the evaluation use this
module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from aligner_lib.algorithms.batching import length_grouped
from aligner_lib.config.environments import REWARD_MODEL
from aligner_lib.datasets.batches import concat_restore_order, concat_rows
from aligner_lib.datasets.chat_template import call_form, extend, render_observation
from aligner_lib.datasets.tool_calls import in_default_form
from aligner_lib.megatron import parallel
from aligner_lib.megatron.generate import Response
from aligner_lib.megatron.spans import span
from aligner_lib.rollouts.environments.base import Step
from aligner_lib.rollouts.environments.pool import EnvironmentFailure, Environments, Episode
from aligner_lib.rollouts.interfaces import GenerationBatch, RewardSource, ValueModel
from aligner_lib.rollouts.policy import Policy, Transcript, transcribed
from aligner_lib.rollouts.records import Rollouts
from aligner_lib.rollouts.seeds import response_seed
from aligner_lib.rollouts.tasks import Task
from aligner_lib.rollouts.timers import Timers


@dataclass
class EpisodeOutcome:
    """The result of an episode so far: its reward, turns and metrics, or the failure of its environment."""

    environment: str
    by_program: bool = False
    """Whether the environment's program gives the reward. Otherwise a reward model gives the reward."""
    reward: float = 0.0
    """The environment's own reward, the sum over all turns, or the reward model's score; NaN when the environment failed, and
    until the reward model has judged."""
    turns: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The metrics of the last turn."""
    failure: EnvironmentFailure | None = None
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    """See Task."""

    @property
    def rewards(self) -> list[float]:
        """The rewards in the order of `reward_weights`, or the single reward."""
        if not self.reward_weights:
            return [self.reward]
        if self.failure is not None:
            return [math.nan] * len(self.reward_weights)
        # an episode that was cut off before its last turn lacks metrics, and has the reward of a wrong answer
        return [self.metrics.get(name, 0.0) for name in self.reward_weights]

    def take_score(self, score: float) -> None:
        """Record the reward model's score, if the reward model judges this response and its environment did not fail."""
        if self.by_program or self.failure is not None:
            return
        self.reward = score
        if self.reward_weights:
            self.metrics = {**self.metrics, REWARD_MODEL: score}


@dataclass
class Judgements:
    """The rewards and values of this rank's responses."""

    rewards: Tensor
    """float32 [B], the weighted sum of a response's rewards; NaN where an environment failed or the sum is not finite."""
    values: Tensor | None
    """float32 [B, S-1]; None without `with_values`."""
    terms: Tensor
    """float32 [B, K], each response's rewards before they are added, padded with 0."""
    weights: Tensor
    """float32 [B, K], the weights of the terms, 0 for the padding."""

    @classmethod
    def of(cls, outcomes: list[EpisodeOutcome], values: Tensor | None = None) -> Judgements:
        """The judgements of complete outcomes. K is the largest number of rewards among these outcomes."""
        terms = [torch.tensor(outcome.rewards) for outcome in outcomes]
        weights = [torch.tensor([*outcome.reward_weights.values()] or [1.0]) for outcome in outcomes]
        terms, weights = (pad_sequence(rows, batch_first=True) for rows in (terms, weights))
        rewards = (terms * weights).sum(dim=1)
        return cls(rewards.where(rewards.isfinite(), math.nan), values, terms, weights)


@dataclass
class Collected:
    """The rollouts of this rank, with their outcomes, rewards and values."""

    rollouts: Rollouts
    outcomes: list[EpisodeOutcome]
    """One outcome per row of the rollouts."""
    wait_for_judgements: Callable[[], Judgements]
    """Waits for the judges, and completes the outcomes."""


@dataclass
class RolloutCollector:
    """Collects rollouts: the policy responds, and the reward source, the value model and the environments judge the
    responses."""

    policy: Policy
    reward_source: RewardSource | None
    """None: environments give all rewards."""
    seed: int
    longest: int
    """The largest number of tokens of prompt and response together."""
    value_model: ValueModel | None = None

    def __call__(
        self,
        tasks: list[tuple[int, int, Task]],
        step: int,
        micro_batch_size: int,
        environments: Environments | None = None,
        *,
        with_values: bool = False,
        greedy: bool = False,
        timers: Timers | None = None,
    ) -> Collected:
        """Collect a response to each of this rank's tasks, in the order of the tasks.

        tasks: for each task, the response's number among all ranks' responses of this step, the number of its prompt, and the
        task. The seed of a response depends only on the run's seed, the step, the number and the turn, so the samples do not
        depend on the parallel layout. micro_batch_size: the number of responses that are generated and judged together.

        The values of a micro batch are requested while the policy still generates other micro batches. The rewards are
        requested when all responses are complete. A reward model that shares its module with the critic then computes once a
        step, while the policy computes its log-probabilities.
        """
        timers = timers or Timers()
        with timers("refresh_generator"):
            self.policy.refresh_generator()
        episodes = [_Episode(*task) for task in tasks]
        groups = length_grouped([len(task.tokens) for _, _, task in tasks], micro_batch_size)
        micro_batches = [_MicroBatch([episodes[i] for i in group]) for group in groups]
        with timers("generate"):  # making the batch may first free memory
            generation = self.policy.batch(micro_batch_size)
        for micro_batch in self._played(micro_batches, generation, step, environments, greedy, timers):
            if with_values:
                with span("values"):
                    micro_batch.values = self.value_model.values(micro_batch.rollouts)
        batches = [micro_batch.rollouts for micro_batch in micro_batches]
        scoring = []
        if self.reward_source is not None:
            with span("rewards"):
                scoring = [self.reward_source.score(batch) for batch in batches]
        outcomes = [episode.outcome for episode in episodes]

        def wait_for_judgements() -> Judgements:
            requested = [micro_batch.values for micro_batch in micro_batches]
            values = concat_rows(self.value_model.collect(requested), groups) if with_values else None
            if self.reward_source is not None:
                scores = concat_rows(self.reward_source.collect(scoring), groups)
                for outcome, score in zip(outcomes, scores.tolist()):
                    outcome.take_score(score)
            return Judgements.of(outcomes, values)

        rollouts = concat_restore_order(batches, groups, fill=self.policy.tokenizer.pad_id)
        return Collected(rollouts, outcomes, wait_for_judgements)

    def _played(
        self,
        micro_batches: list[_MicroBatch],
        generation: GenerationBatch,
        step: int,
        environments: Environments | None,
        greedy: bool,
        timers: Timers,
    ) -> Iterator[_MicroBatch]:
        """Yields each micro batch when all of its episodes are over."""
        sampling = replace(self.policy.sampling, greedy=True) if greedy else self.policy.sampling

        def begin_turn(micro_batch: _MicroBatch) -> None:
            for episode in micro_batch.active:
                seed = response_seed(self.seed, step, episode.number, len(episode.texts))
                episode.response = generation.add(episode.transcript.tokens, seed, sampling)

        for micro_batch in micro_batches:
            begin_turn(micro_batch)
        unfinished = micro_batches
        while unfinished:
            with timers("generate"):
                generation.run(lambda waiting=unfinished: any(batch.has_responses for batch in waiting))
            for micro_batch in [batch for batch in unfinished if batch.has_responses]:
                self._end_turn(micro_batch, environments, timers)
                begin_turn(micro_batch)
                if not micro_batch.active:
                    yield micro_batch.recorded(self.policy.tokenizer.pad_id)
            unfinished = [batch for batch in unfinished if batch.active]

    def _end_turn(self, micro_batch: _MicroBatch, environments: Environments | None, timers: Timers) -> None:
        """Append the policy's responses to their episodes, then the environments' answers."""
        for episode in micro_batch.active:
            episode.transcript.add(episode.response)
            episode.texts.append(self._text(episode.response.tokens))
        # Prompts for a reward model have an environment as well: the environment gives metrics, and the model gives the reward.
        judged = [episode for episode in micro_batch.active if episode.task.environment]
        with timers("environments"):
            steps = self._step(environments, judged)
        micro_batch.active = [
            episode for episode, step in zip(judged, steps) if self._continues(episode, step, environments)
        ]

    def _step(
        self, environments: Environments | None, episodes: list[_Episode]
    ) -> list[Step | EnvironmentFailure]:
        """The environments' answers to the last responses. Only the replica's first rank asks the environments, and sends the
        answers to the replica's other ranks."""
        if not episodes:
            return []
        requests = [
            Episode(episode.task.environment, episode.task.seed, self._readable(episode), episode.group)
            for episode in episodes
        ]
        return parallel.from_replica_leader(environments.step(requests) if parallel.leads_replica() else None)

    def _continues(
        self, episode: _Episode, step: Step | EnvironmentFailure, environments: Environments
    ) -> bool:
        """Record an environment's answer. Returns whether the policy has to respond again."""
        outcome, task, transcript = episode.outcome, episode.task, episode.transcript
        outcome.turns = len(episode.texts)
        if isinstance(step, EnvironmentFailure):
            outcome.failure, outcome.reward = step, float("nan")
            return False
        outcome.reward += step.reward
        outcome.metrics = step.metrics
        if (
            step.done
            or not transcript.finished
            or outcome.turns >= environments.max_turns()[task.environment]
        ):
            return False
        tokenizer = self.policy.tokenizer
        # a response that ended with an end string has no stop token
        stopped = transcript.tokens[-1] in tokenizer.stop_ids
        text = render_observation(
            tokenizer, episode.conversation, step.observation, stopped, episode.task.tools
        )
        tokens = tokenizer.encode_parts([text])[0]
        if len(transcript.tokens) + len(tokens) + self.policy.sampling.max_length > self.longest:
            transcript.finished = False  # the sequence length leaves no room for another turn
            return False
        episode.conversation = extend(episode.conversation, episode.texts[-1], step.observation)
        transcript.observe(tokens)
        return True

    def _readable(self, episode: _Episode) -> tuple[str, ...]:
        """The responses as the environment reads them: with calls in the default form."""
        if not episode.task.tools:
            return tuple(episode.texts)
        form = call_form(self.policy.tokenizer)
        return tuple(in_default_form(text, form) for text in episode.texts)

    def _text(self, tokens: list[int]) -> str:
        return self.policy.tokenizer.decode(
            tokens[:-1] if tokens[-1] in self.policy.tokenizer.stop_ids else tokens, continues=True
        )


@dataclass(eq=False)
class _MicroBatch:
    """Episodes whose responses are generated and judged together. Most episodes have one turn."""

    episodes: list[_Episode]
    rollouts: Rollouts | None = None
    """Set when all episodes are over."""
    values: Future[Tensor] | None = None
    """float32 [B, S-1]."""

    def __post_init__(self):
        self.active = self.episodes

    @property
    def has_responses(self) -> bool:
        """Whether the policy has finished its responses of this turn."""
        return all(episode.response.is_over for episode in self.active)

    def recorded(self, pad_id: int) -> _MicroBatch:
        """Set `rollouts` from the transcripts of the episodes. Returns this micro batch."""
        transcripts, groups = zip(*((episode.transcript, episode.group) for episode in self.episodes))
        self.rollouts = transcribed(list(transcripts), list(groups), pad_id)
        return self


@dataclass
class _Episode:
    """An episode while the policy plays."""

    number: int
    group: int
    task: Task
    texts: list[str] = field(default_factory=list)
    response: Response | None = None
    """The response that the policy is generating."""

    def __post_init__(self):
        self.transcript, self.conversation = Transcript(self.task.tokens), self.task.conversation
        unknown = float("nan") if self.task.by_model else 0.0
        self.outcome = EpisodeOutcome(
            self.task.environment, not self.task.by_model, unknown, reward_weights=self.task.reward_weights
        )
