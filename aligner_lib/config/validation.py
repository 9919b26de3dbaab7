"""Which settings make sense, and which are accepted without an effect. Every message says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from aligner_lib.config.kind import JobKind
from aligner_lib.config.schema import settings
from aligner_lib.errors import ConfigError


def check(kind: JobKind, config: DictConfig) -> None:
    """Raise ConfigError for the first value that makes no sense."""
    for key, one in settings(kind.schema):
        bound, value = one.metadata.get("bound"), OmegaConf.select(config, key)
        if bound and value is not None and not bound.holds(value):
            raise ConfigError(f"{key}={value}: it must be {bound.words}")
        names = one.metadata.get("names")
        if names and (unknown := [name for name in value if name not in names]):
            raise ConfigError(f"there is no setting '{key}.{unknown[0]}'; {key} takes {', '.join(names)}")
    check_parallelism("", config)
    for prefix in kind.hosts:
        check_parallelism(prefix, OmegaConf.select(config, prefix.rstrip(".")))
    for rule in kind.checks:
        rule(config)


def notices(kind: JobKind, config: DictConfig) -> list[str]:
    """One sentence for each setting that was asked for and has no effect here."""
    idle = [(key, one.metadata.get("without_effect")) for key, one in settings(kind.schema)]
    found = [
        f"{key}={value}: {words}" for key, words in idle if words and (value := OmegaConf.select(config, key))
    ]
    if config.model.sequence_parallel and config.model.tensor_model_parallel_size == 1:
        found.append(
            "model.sequence_parallel=True: with tensor_model_parallel_size=1 there is nobody to share with"
        )
    return found + kind.notices(config)


# ---- what several settings have to satisfy together ------------------------------------------------------------------


def copies_of_the_model(config: DictConfig) -> int:
    """Data-parallel ranks, each of which takes a share of every batch."""
    model, trainer = config.model, config.trainer
    processes = trainer.num_nodes * trainer.devices
    return processes // (model.tensor_model_parallel_size * model.pipeline_model_parallel_size)


def check_parallelism(prefix: str, config: DictConfig) -> None:
    """Processes must divide into copies of the model, and global batches into their micro batches."""
    model, trainer = config.model, config.trainer
    processes = trainer.num_nodes * trainer.devices
    tensor, pipeline = model.tensor_model_parallel_size, model.pipeline_model_parallel_size
    if processes % (tensor * pipeline):
        raise ConfigError(
            f"{prefix}model.tensor_model_parallel_size={tensor} × {prefix}model.pipeline_model_parallel_size={pipeline} "
            f"don't divide the {processes} processes of {prefix}trainer.num_nodes × {prefix}trainer.devices"
        )
    copies = copies_of_the_model(config)
    for at, batch in _batches(prefix, model):
        if batch.global_batch_size % (batch.micro_batch_size * copies):
            raise ConfigError(
                f"{at}.global_batch_size={batch.global_batch_size} is not divisible by {at}.micro_batch_size="
                f"{batch.micro_batch_size} × {copies} copies of the model ({prefix}trainer.num_nodes × "
                f"{prefix}trainer.devices over the parallel sizes); make it a multiple of {batch.micro_batch_size * copies}"
            )


def _batches(prefix: str, model: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """Where the batch sizes that a job uses stand: SFT has them with each data set."""
    if "train_ds" in model.get("data", {}):
        yield "model.data.train_ds", model.data.train_ds
        yield "model.data.validation_ds", model.data.validation_ds
    else:
        yield f"{prefix}model", model
