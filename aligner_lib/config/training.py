"""Settings, metrics and replaceable functions for all kinds of training, regardless of the algorithm."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aligner_lib.config.metrics_file import shelf_of
from aligner_lib.config.peft import Peft
from aligner_lib.config.schema import ExpManager, Model, PretrainedCheckpoint, at_least, setting

TRAINING_FUNCTIONS = {"learning_rate": "aligner_lib.algorithms.schedule:learning_rate"}

TIMERS = shelf_of(Path(__file__).with_name("metrics.toml")).sections["seconds"]
"""Seconds of a step and of a validation, for your own kind if it declares its metrics in Python."""


@dataclass
class AdaptableModel(Model):
    """model of a kind for training all weights or adapters."""

    peft: Peft = field(default_factory=Peft)


@dataclass
class ScalarModel(AdaptableModel):
    """model of a kind with a scalar head: a reward model or a critic."""

    num_layers_unfrozen: int | None = setting(None, at_least(1))
    """The number of last layers to train, together with the final norm and the head; null: all weights are trained. No gradient
    is computed for the layers below."""


@dataclass
class TrainingConfig:
    """The top-level settings of every kind of training."""

    exp_manager: ExpManager = field(default_factory=ExpManager)
    functions: dict[str, Any] = setting({})
    """FILE.py by the names of the kind's replaceable functions: see docs/your-code.md."""


@dataclass
class ContinuedTrainingConfig(TrainingConfig):
    """The top-level settings of every kind that continues the training of an existing model."""

    pretrained_checkpoint: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    """The model at the start of training. For a kind with a reference, the model is also the reference."""
