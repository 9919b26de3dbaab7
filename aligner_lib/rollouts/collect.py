"""The policy answers prompts, and others judge what is already there. PPO, GRPO and the evaluation do this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from aligner_lib.algorithms.batching import length_grouped
from aligner_lib.datasets.batches import concat_restore_order, concat_rows
from aligner_lib.datasets.chat_template import extend, render_observation
from aligner_lib.megatron import parallel
from aligner_lib.megatron.generate import Response
from aligner_lib.rollouts.environments.base import Step
from aligner_lib.rollouts.environments.pool import Environments, Episode, Failure
from aligner_lib.rollouts.interfaces import GenerationBatch, RewardSource, ValueModel
from aligner_lib.rollouts.policy import Policy, Transcript, transcribed
from aligner_lib.rollouts.records import Rollouts
from aligner_lib.rollouts.seeds import response_seed
from aligner_lib.rollouts.tasks import Task
from aligner_lib.rollouts.timers import Timers


@dataclass
class Outcome:
    """What an environment said of one response, or of all that an episode has."""

    environment: str
    by_program: bool = False  # whether the environment's program judged it, and no reward model
    reward: float = 0.0  # of all turns together; NaN where it failed, or where the reward model judges
    turns: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    failure: Failure | None = None


@dataclass
class Collected:
    """A rollout of this rank, and what it is worth."""

    rollouts: Rollouts
    outcomes: list[Outcome]  # of each row
    # Waits for rewards, float32 [B], NaN where an environment failed; and for values, float32 [B, S-1], where they were
    # asked for.
    judged: Callable[[], tuple[Tensor, Tensor | None]]


@dataclass
class Rollout:
    """How rollouts are made: who answers, and who judges."""

    policy: Policy
    reward_source: RewardSource | None  # None: environments judge all of it
    seed: int
    longest: int  # tokens of prompt and response together
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
        """A response to each of this rank's tasks, in their order.

        tasks: each with its number among all ranks' responses of this step, and the number of its prompt. A response's
        seed is its place in the run, so no layout changes what is drawn. micro_batch_size: responses that are generated at
        the same time, and that the others judge together: values are asked for while the policy writes other micro
        batches. Rewards are asked for when it has written all: a reward model that shares its module with the critic has
        it once a step, while the policy computes its log-probabilities.
        """
        timers = timers or Timers()
        with timers("refresh_generator"):
            self.policy.refresh_generator()
        episodes = [_Episode(*task) for task in tasks]
        groups = length_grouped([len(task.tokens) for _, _, task in tasks], micro_batch_size)
        micro_batches = [_MicroBatch([episodes[i] for i in group]) for group in groups]
        with timers("generate"):  # it may make room first
            generation = self.policy.batch(micro_batch_size)
        for micro_batch in self._played(micro_batches, generation, step, environments, greedy, timers):
            if with_values:
                micro_batch.values = self.value_model.values(micro_batch.rollouts)
        batches = [one.rollouts for one in micro_batches]
        scoring = (
            [self.reward_source.score(batch) for batch in batches] if self.reward_source is not None else []
        )
        outcomes = [one.outcome for one in episodes]

        def judged() -> tuple[Tensor, Tensor | None]:
            asked = [one.values for one in micro_batches]
            values = concat_rows(self.value_model.collect(asked), groups) if with_values else None
            rewards = torch.tensor([outcome.reward for outcome in outcomes])
            if self.reward_source is not None:
                scores = concat_rows(self.reward_source.collect(scoring), groups)
                by_model = torch.tensor([task.by_model for _, _, task in tasks])
                rewards = torch.where(by_model, scores, rewards)
            return rewards, values

        rollouts = concat_restore_order(batches, groups, fill=self.policy.tokenizer.pad_id)
        return Collected(rollouts, outcomes, judged)

    def _played(
        self,
        micro_batches: list[_MicroBatch],
        generation: GenerationBatch,
        step: int,
        environments: Environments | None,
        greedy: bool,
        timers: Timers,
    ) -> Iterator[_MicroBatch]:
        """The micro batches, each when its episodes are over."""
        sampling = replace(self.policy.sampling, greedy=True) if greedy else self.policy.sampling

        def begin_turn(micro_batch: _MicroBatch) -> None:
            for one in micro_batch.going_on:
                seed = response_seed(self.seed, step, one.number, len(one.texts))
                one.response = generation.add(one.transcript.tokens, seed, sampling)

        for micro_batch in micro_batches:
            begin_turn(micro_batch)
        unfinished = micro_batches
        while unfinished:
            with timers("generate"):
                generation.run(lambda those=unfinished: any(one.has_responses for one in those))
            for micro_batch in [one for one in unfinished if one.has_responses]:
                self._end_turn(micro_batch, environments, timers)
                begin_turn(micro_batch)
                if not micro_batch.going_on:
                    yield micro_batch.recorded(self.policy.tokenizer.pad_id)
            unfinished = [one for one in unfinished if one.going_on]

    def _end_turn(self, micro_batch: _MicroBatch, environments: Environments | None, timers: Timers) -> None:
        """Take down what the policy said, and what the environments say to it."""
        for one in micro_batch.going_on:
            one.transcript.add(one.response)
            one.texts.append(self._text(one.response.tokens))
        # a reward model's prompts are an environment, too: its metrics stand beside the model's rewards
        asking = [one for one in micro_batch.going_on if one.task.environment]
        with timers("environments"):
            answers = self._ask(environments, asking)
        micro_batch.going_on = [
            one for one, said in zip(asking, answers) if self._goes_on(one, said, environments)
        ]

    def _ask(self, environments: Environments | None, episodes: list[_Episode]) -> list[Step | Failure]:
        """What the environments say to the last responses: the first rank of the replica asks for all of it."""
        if not episodes:
            return []
        asked = [Episode(one.task.environment, one.task.seed, tuple(one.texts)) for one in episodes]
        return parallel.from_replica_leader(environments.step(asked) if parallel.leads_replica() else None)

    def _goes_on(self, episode: _Episode, said: Step | Failure, environments: Environments) -> bool:
        """Take down what an environment said; whether the policy has to answer to it."""
        outcome, task, transcript = episode.outcome, episode.task, episode.transcript
        outcome.turns = len(episode.texts)
        if isinstance(said, Failure):
            outcome.failure, outcome.reward = said, float("nan")
            return False
        outcome.reward += said.reward
        outcome.metrics = said.metrics
        if (
            said.done
            or not transcript.finished
            or outcome.turns >= environments.max_turns()[task.environment]
        ):
            return False
        tokenizer = self.policy.tokenizer
        stopped = (
            transcript.tokens[-1] in tokenizer.stop_ids
        )  # an end string ends a response, too, without a stop token
        text = render_observation(tokenizer, episode.conversation, said.observation, stopped)
        tokens = tokenizer.encode_parts([text])[0]
        if len(transcript.tokens) + len(tokens) + self.policy.sampling.max_length > self.longest:
            transcript.finished = False  # there is no room for another turn
            return False
        episode.conversation = extend(episode.conversation, episode.texts[-1], said.observation)
        transcript.observe(tokens)
        return True

    def _text(self, tokens: list[int]) -> str:
        return self.policy.tokenizer.decode(
            tokens[:-1] if tokens[-1] in self.policy.tokenizer.stop_ids else tokens, continues=True
        )


@dataclass(eq=False)
class _MicroBatch:
    """Episodes that are judged together, on their way. Most have one turn."""

    episodes: list[_Episode]
    rollouts: Rollouts | None = None  # when all are over
    values: Future[Tensor] | None = None  # float32 [B, S-1]

    def __post_init__(self):
        self.going_on = self.episodes

    @property
    def has_responses(self) -> bool:
        """Whether the policy has said all that it says in this turn."""
        return all(one.response.is_over for one in self.going_on)

    def recorded(self, pad_id: int) -> _MicroBatch:
        """Itself, with a record of what was said."""
        transcripts, groups = zip(*((one.transcript, one.group) for one in self.episodes))
        self.rollouts = transcribed(list(transcripts), list(groups), pad_id)
        return self


@dataclass
class _Episode:
    """An episode on its way."""

    number: int
    group: int
    task: Task
    texts: list[str] = field(default_factory=list)
    response: Response | None = None  # of the turn that the policy writes

    def __post_init__(self):
        self.transcript, self.conversation = Transcript(self.task.tokens), self.task.conversation
        unknown = float("nan") if self.task.by_model else 0.0
        self.outcome = Outcome(self.task.environment, not self.task.by_model, unknown)
