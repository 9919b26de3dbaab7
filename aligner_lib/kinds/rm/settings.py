"""Reward-model training: settings, metrics, charts and alarms."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aligner_lib.config.kind import JobKind, TrainedModel
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.config.schema import (
    NO_GENERATION,
    NO_TEST_SPLIT,
    Loop,
    Trainer,
    at_least,
    conversion_without_effect,
    packing_without_effect,
    setting,
)
from aligner_lib.config.training import TRAINING_FUNCTIONS, ContinuedTrainingConfig, ScalarModel
from aligner_lib.errors import ConfigError
from aligner_lib.kinds.pairs.settings import PAIR_FILES, START, PairData

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class RewardModelModel(ScalarModel):
    """model of a reward-model job."""

    data: PairData = field(default_factory=PairData)
    reward_standardization: dict[str, Any] = setting(
        {"enable": True, "mean": None, "std": None}, names=("enable", "mean", "std")
    )
    """The model returns rewards as (r - mean) / std; null: mean and std are measured on the validation pairs at the end of
    training."""
    init_method_std: float = setting(0.0, at_least(0))
    """The standard deviation of a new head's weights; a run that starts from a reward model keeps its head. With 0 the first
    loss is exactly ln 2, but the gradient that reaches the transformer is scaled by the head's weights, so the first steps train
    only the head."""
    center_rewards_coefficient: float = setting(0.0, at_least(0))
    """The weight of an extra loss: the mean square of the rewards at all tokens of a text, the prompt's included, added up over
    the two texts of a pair. The comparison of two last tokens does not determine the rewards at earlier tokens. The extra loss
    keeps these rewards near 0. A critic that starts from the model then predicts a value near 0 for a response that has just
    begun."""


@dataclass
class RewardModelTrainerGroup(Trainer):
    """trainer of a reward-model job."""

    rm: Loop = field(default_factory=Loop)


FUNCTIONS = {"loss": "aligner_lib.algorithms.preference:preference_loss"} | TRAINING_FUNCTIONS


@dataclass
class RewardModelConfig(ContinuedTrainingConfig):
    """All settings of `aligner rm`."""

    trainer: RewardModelTrainerGroup = field(default_factory=RewardModelTrainerGroup)
    model: RewardModelModel = field(default_factory=RewardModelModel)


def _check_scale(config: DictConfig) -> None:
    """Check that mean and standard deviation are both given or both measured, and that their values are valid and used."""
    key, scale = "model.reward_standardization", config.model.reward_standardization
    mean, std = scale.get("mean"), scale.get("std")
    if (mean is None) != (std is None):
        missing = "std" if std is None else "mean"
        raise ConfigError(
            f"{key} has mean={mean} and std={std}: give {missing}, too, or neither, and both are measured on the "
            "validation pairs"
        )
    if not isinstance(scale.get("enable"), bool):
        raise ConfigError(f"{key}.enable={scale.get('enable')}: the value must be true or false")
    for name, value in (("mean", mean), ("std", std)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{key}.{name}={value!r}: the value must be a number")
    if std is not None and not std > 0:
        raise ConfigError(f"{key}.std={std}: the value must be above 0")
    if std is not None and not scale.enable:
        raise ConfigError(
            f"{key} has mean={mean} and std={std}, but enable=False leaves the rewards as they are: set enable=True, or leave "
            "mean and std out"
        )


def _trains(config: DictConfig) -> tuple[TrainedModel, ...]:
    model = config.model
    texts = 2 * model.global_batch_size
    return (TrainedModel("reward model", model.encoder_seq_length, model.micro_batch_size, texts),)


KIND = JobKind(
    name="rm",
    command="rm",
    summary="Reward model training.",
    schema=RewardModelConfig,
    trains=_trains,
    functions=FUNCTIONS,
    build="aligner_lib.kinds.rm.build:prepare",
    models=START,
    data=PAIR_FILES,
    checks=(_check_scale,),
    without_effect=lambda config: (
        NO_TEST_SPLIT
        | NO_GENERATION
        | packing_without_effect(config, "model.micro_batch_size")
        | conversion_without_effect(config)
    ),
    stage=2,
    **declared_in(Path(__file__).parent),
)
