"""Supervised fine-tuning: settings, metrics, charts and alarms."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aligner_lib.config.kind import JobKind, TrainedModel
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.config.schema import (
    LIMITED_BY_TOKENS,
    NO_GENERATION,
    NO_LOADERS,
    Loop,
    Optim,
    OwnColumns,
    Packed,
    Templated,
    Trainer,
    at_least,
    conversion_without_effect,
    packing_without_effect,
    setting,
)
from aligner_lib.config.training import TRAINING_FUNCTIONS, AdaptableModel, TrainingConfig

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class SFTDataset:
    """A data set and its batch sizes."""

    file_path: Any = None
    """A file with inputs and outputs or conversations, or a list of such files; a file in another known form is converted
    first."""
    micro_batch_size: int = setting(1, at_least(1))
    """Samples in one forward-backward pass."""
    global_batch_size: int = setting(128, at_least(1))
    """Samples in one optimizer step, or in a batch of the validation."""
    max_seq_length: int | None = setting(None, at_least(2))
    """null: model.encoder_seq_length."""
    shuffle: bool = True
    """Draw a new order of the samples in every epoch."""


@dataclass
class SFTData(Packed, OwnColumns, Templated):
    """model.data: the data sets for training and validation."""

    num_workers: int = setting(0, at_least(0), without_effect=NO_LOADERS)
    train_ds: SFTDataset = field(default_factory=SFTDataset)
    validation_ds: SFTDataset = field(default_factory=lambda: SFTDataset(shuffle=False))


@dataclass
class SFTModel(AdaptableModel):
    """model of an SFT job."""

    restore_from_path: str | None = None
    """The model that training starts from: a model name, model folder, checkpoint or run folder."""
    answer_only_loss: bool = True
    """Compute the loss only on the output and its stop token."""
    data: SFTData = field(default_factory=SFTData)
    optim: Optim = field(default_factory=lambda: Optim(lr=5e-6, weight_decay=0.01))


@dataclass
class SFTTrainerGroup(Trainer):
    """trainer of an SFT job."""

    sft: Loop = field(default_factory=Loop)


FUNCTIONS = {
    "loss": "aligner_lib.algorithms.supervised:token_losses",
    "loss_mask": "aligner_lib.algorithms.supervised:loss_mask",
} | TRAINING_FUNCTIONS


@dataclass
class SFTConfig(TrainingConfig):
    """All settings of `aligner sft`."""

    trainer: SFTTrainerGroup = field(default_factory=SFTTrainerGroup)
    model: SFTModel = field(default_factory=SFTModel)


def _trains(config: DictConfig) -> tuple[TrainedModel, ...]:
    train = config.model.data.train_ds
    longest = train.max_seq_length or config.model.encoder_seq_length
    return (TrainedModel("sft", longest, train.micro_batch_size, train.global_batch_size),)


def _without_effect(config: DictConfig) -> dict[str, str]:
    of_data = "SFT has its batch sizes with its data: model.data.train_ds and model.data.validation_ds."
    unused = {
        "model.micro_batch_size": of_data,
        "model.global_batch_size": of_data,
        "model.data.validation_ds.shuffle": "a validation is a mean over its samples, and their order does not matter.",
        **NO_GENERATION,
        **packing_without_effect(config, "model.data.train_ds.micro_batch_size"),
        **conversion_without_effect(config),
    }
    if config.model.data.packed_sequence:
        unused["model.data.validation_ds.micro_batch_size"] = (
            LIMITED_BY_TOKENS
            if config.model.data.packed_sequence_size
            else "with packed_sequence=True a micro batch has as many samples as train_ds.micro_batch_size times the length of the "
            "longest training sample allows."
        )
    return unused


KIND = JobKind(
    name="sft",
    command="sft",
    summary="Supervised fine-tuning.",
    schema=SFTConfig,
    trains=_trains,
    functions=FUNCTIONS,
    build="aligner_lib.kinds.sft.build:prepare",
    models={"model.restore_from_path": "model"},
    data={
        "model.data.train_ds.file_path": "sft/train.jsonl",
        "model.data.validation_ds.file_path": "sft/validation.jsonl",
    },
    without_effect=_without_effect,
    stage=1,
    **declared_in(Path(__file__).parent),
)
