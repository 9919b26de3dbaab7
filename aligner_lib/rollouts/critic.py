"""A critic, and the reward model from which the critic starts. In one process both share a module."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from aligner_lib.algorithms.ppo import critic_loss
from aligner_lib.datasets.batches import TokenBatch, alike_grouped
from aligner_lib.datasets.chat_template import save_tokenizer
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron import parallel
from aligner_lib.megatron.engine import Engine, FrozenWeights, LossTerms, NonFiniteError
from aligner_lib.megatron.spans import span
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.rollouts.records import CriticExperience


@dataclass
class RewardModel:
    """A `RewardSource` in this process."""

    engine: Engine
    scale: RewardScale
    micro_batch_size: int
    weights: FrozenWeights | None = None
    """The reward model's weights when the module belongs to a critic; None: the module's own weights."""

    def score(self, rollouts: TokenBatch) -> Future[Tensor]:
        """Compute the rewards: float32 [B]. The reward of a row is the model's output at the row's last token."""
        if self.weights is not None:
            # The reward model's weights stay in the module until the critic needs its own weights: one exchange a step.
            self.weights.put_in()
        at_tokens = _at_tokens(self.engine, rollouts, self.micro_batch_size)
        return _done(self.scale(at_tokens[torch.arange(rollouts.size), rollouts.lengths - 1]))

    def collect(self, requested: list[Future[Tensor]]) -> list[Tensor]:
        return [rewards.result() for rewards in requested]

    def reach(self) -> None:
        pass  # a model in the same process is always available


@dataclass
class Critic:
    """A `ValueModel` in this process."""

    engine: Engine
    loss_clip: float
    micro_batch_size: int
    inference_micro_batch_size: int
    scale: RewardScale = field(default_factory=RewardScale)
    """The scale of the reward model from which the critic starts."""
    tokenizer: Tokenizer | None = None
    """Saved with the weights, so that a checkpoint is a model folder."""
    new_head: bool = False
    """True: the values start at 0. False: the values start as the reward model's outputs."""
    _reward_weights: FrozenWeights | None = field(default=None, init=False)
    _has_learnt: bool = field(default=False, init=False)
    """Whether the critic has made a train step since its last values. The next values then belong to another rollout."""

    def __post_init__(self):
        self.engine.standardize_values(self.scale)  # values are in units of rewards from the start

    def reward_model(self) -> RewardModel:
        """A reward model with the critic's current weights, in the same module."""
        self._reward_weights = FrozenWeights(self.engine.module)
        return RewardModel(self.engine, RewardScale(), self.inference_micro_batch_size, self._reward_weights)

    def begin(self) -> None:
        """Prepare the critic for training. Call `begin` before the first step, and after a reward model with the same module
        has copied the weights."""
        if self.new_head:
            self.engine.draw_head(0.0, seed=0)

    def values(self, rollouts: TokenBatch) -> Future[Tensor]:
        self._put_own_weights_in()
        if self._has_learnt:
            self.engine.forget_frozen_outputs()
            self._has_learnt = False
        # The reward model and the critic's epochs read the same rows and share the frozen layers, so the outputs of the frozen
        # layers are kept.
        with self.engine.keeping_frozen_outputs():
            return _done(_at_tokens(self.engine, rollouts, self.inference_micro_batch_size)[:, :-1])

    def collect(self, requested: list[Future[Tensor]]) -> list[Tensor]:
        return [values.result() for values in requested]

    def train(self, experience: CriticExperience, lr: float) -> Future[dict[str, float]]:
        self._put_own_weights_in()
        self._has_learnt = True
        groups = alike_grouped(experience, self.micro_batch_size)
        micro_batches = [experience.rows(group) for group in groups]
        try:
            with span("critic_train"):
                return _done(self.engine.train_step(micro_batches, self._loss, lr))
        except NonFiniteError as error:
            raise NonFiniteError(f"in the critic, {error}", settings="critic.") from error

    def save(self, folder: Path) -> None:
        self._put_own_weights_in()
        self.engine.save(folder)
        if self.tokenizer is not None and parallel.is_first_rank():
            save_tokenizer(self.tokenizer, folder)

    def load(self, folder: Path | None) -> None:
        self._put_own_weights_in()
        self.engine.go_on_from(folder)
        if folder is None:
            self.engine.standardize_values(self.scale)
            self.begin()

    def _put_own_weights_in(self) -> None:
        if self._reward_weights is not None:
            self._reward_weights.put_back()

    def _loss(self, model, batch: CriticExperience, hidden: Tensor) -> LossTerms:
        values = model.values(hidden[:-1]).t()  # [B, S-1]
        losses = critic_loss(values, batch.values, batch.returns, self.loss_clip)
        return LossTerms((losses * batch.response_mask).sum(), batch.response_mask.sum())


def _at_tokens(engine: Engine, batch: TokenBatch, micro_batch_size: int) -> Tensor:
    """The output of a scalar head at every token: float32 [B, S]. Index i is the output after reading token i."""

    def function(model, batch, hidden):
        return model.values(hidden).t()

    return engine.map_rows(batch, function, micro_batch_size, extra=1)


def _done(result) -> Future:
    future = Future()
    future.set_result(result)
    return future
