"""Settings, metrics and replaceable functions that the kinds that train share, whichever algorithm they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aligner_lib.config.metrics_file import shelf_of
from aligner_lib.config.peft import Peft
from aligner_lib.config.schema import ExpManager, Model, PretrainedCheckpoint, at_least, setting

TRAINING_FUNCTIONS = {"learning_rate": "aligner_lib.algorithms.schedule:learning_rate"}

TIMERS = shelf_of(Path(__file__).with_name("metrics.toml")).sections["seconds"]
"""Seconds of a step and of a validation, for a kind of your own that declares its metrics in Python."""


@dataclass
class AdaptableModel(Model):
    """model of a kind that trains all weights or adapters."""

    peft: Peft = field(default_factory=Peft)


@dataclass
class ScalarModel(AdaptableModel):
    """model of a kind that trains a model with a scalar head: a reward model or a critic."""

    num_layers_unfrozen: int | None = setting(None, at_least(1))
    """The number of last layers that are trained, with the norm and the head above them; null: all weights are trained. No
    gradient is computed below these layers."""


@dataclass
class TrainingConfig:
    """The settings at the top level of every kind that trains."""

    exp_manager: ExpManager = field(default_factory=ExpManager)
    functions: dict[str, Any] = setting({})
    """FILE.py by the names of the kind's replaceable functions: see docs/your-code.md."""


@dataclass
class ContinuedTrainingConfig(TrainingConfig):
    """The settings at the top level of every kind that continues to train a model."""

    pretrained_checkpoint: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    """The model that training starts from. For a kind with a reference, this model is also the reference."""
