"""Reward model training: its settings, metrics, charts and alarms."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aligner_lib.config.kind import JobKind
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.config.peft import Peft
from aligner_lib.config.schema import (
    NO_TEST_SPLIT,
    ExpManager,
    Loop,
    Model,
    Optim,
    PretrainedCheckpoint,
    Trainer,
    at_least,
    packing_without_effect,
    setting,
)
from aligner_lib.config.training import (
    TRAINING_FUNCTIONS,
)
from aligner_lib.errors import ConfigError
from aligner_lib.kinds.pairs.settings import PairData

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class RewardModelModel(Model):
    """model of a reward model's job."""

    data: PairData = field(default_factory=PairData)
    peft: Peft = field(default_factory=Peft)
    # rewards leave the model as (r - mean) / std; None: measured on the validation pairs when training ends
    reward_standardization: dict[str, Any] = setting(
        {"enable": True, "mean": None, "std": None}, names=("enable", "mean", "std")
    )
    # standard deviation of the new head's weights. At 0 the first loss is ln 2 to the last digit; but a head passes on to the
    # model no more than it weighs, so that one of zeros is slow to begin
    init_method_std: float = setting(0.0, at_least(0))
    # weight of the rewards' mean square, over all tokens of both answers, in the loss: it holds near 0 what a comparison of two
    # last tokens leaves free, and a critic that begins with this model expects nothing of an answer that has only begun
    center_rewards_coefficient: float = setting(0.0, at_least(0))
    # how many of the last layers are trained, with the norm and the head above them; null: all weights are. Below them nothing
    # is computed backwards
    num_layers_unfrozen: int | None = setting(None, at_least(1))
    optim: Optim = field(default_factory=Optim)


@dataclass
class RewardModelTrainerGroup(Trainer):
    """trainer of a reward model's job."""

    rm: Loop = field(default_factory=Loop)


FUNCTIONS = {"loss": "aligner_lib.algorithms.preference:preference_loss"} | TRAINING_FUNCTIONS


@dataclass
class RewardModelConfig:
    """All settings of `aligner rm`."""

    trainer: RewardModelTrainerGroup = field(default_factory=RewardModelTrainerGroup)
    pretrained_checkpoint: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    model: RewardModelModel = field(default_factory=RewardModelModel)
    exp_manager: ExpManager = field(default_factory=ExpManager)
    functions: dict[str, Any] = setting({})  # FILE.py by the names in FUNCTIONS: see docs/your-code.md


def _check_scale(config: DictConfig) -> None:
    """A scale is a mean and a standard deviation, both given or both measured."""
    key, scale = "model.reward_standardization", config.model.reward_standardization
    mean, std = scale.get("mean"), scale.get("std")
    if (mean is None) != (std is None):
        missing = "std" if std is None else "mean"
        raise ConfigError(
            f"{key} has mean={mean} and std={std}: give {missing}, too, or neither, and both are measured on the "
            "validation pairs"
        )
    if not isinstance(scale.get("enable"), bool):
        raise ConfigError(f"{key}.enable={scale.get('enable')}: it must be true or false")
    for name, value in (("mean", mean), ("std", std)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{key}.{name}={value!r}: it must be a number")
    if std is not None and not std > 0:
        raise ConfigError(f"{key}.std={std}: it must be above 0")


KIND = JobKind(
    name="rm",
    command="rm",
    summary="Reward model training.",
    schema=RewardModelConfig,
    functions=FUNCTIONS,
    build="aligner_lib.kinds.rm.build:prepare",
    models={"pretrained_checkpoint.restore_from_path": "policy"},
    data={
        "model.data.data_prefix.train": ["hh/train_comparisons.jsonl"],
        "model.data.data_prefix.validation": ["hh/test_comparisons.jsonl"],
    },
    checks=(_check_scale,),
    without_effect=lambda config: NO_TEST_SPLIT | packing_without_effect(config),
    stage=2,
    **declared_in(Path(__file__).parent),
)
