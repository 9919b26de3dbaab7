"""Which settings make sense, and which are accepted without an effect. Every message says what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import Field

from omegaconf import DictConfig, OmegaConf

from aligner_lib.config import peft
from aligner_lib.config.functions import check_functions
from aligner_lib.config.kind import JobKind
from aligner_lib.config.schema import named_groups, settings
from aligner_lib.errors import ConfigError


def check(kind: JobKind, config: DictConfig) -> None:
    """Raise ConfigError for the first value that makes no sense."""
    for key, one in _settings_of(kind, config):
        bound, value = one.metadata.get("bound"), OmegaConf.select(config, key)
        if bound and value is not None and not bound.holds(value):
            raise ConfigError(f"{key}={value}: it must be {bound.words}")
        names = one.metadata.get("names")
        if names and (unknown := [name for name in value if name not in names]):
            raise ConfigError(f"there is no setting '{key}.{unknown[0]}'; {key} takes {', '.join(names)}")
    check_functions(OmegaConf.select(config, "functions") or {}, kind.functions)
    _check_parallelism(kind, config)
    for rule in kind.checks:
        rule(config)


def _settings_of(kind: JobKind, config: DictConfig) -> Iterator[tuple[str, Field]]:
    """Every setting of the schema, and those of the groups that the user has named."""
    yield from settings(kind.schema)
    for key, group in named_groups(kind.schema):
        for name in OmegaConf.select(config, key):
            yield from settings(group, f"{key}.{name}.")


def notices(kind: JobKind, config: DictConfig, usual: DictConfig) -> list[str]:
    """One sentence for the settings that were given, that is differ from the `usual` ones, and have no effect for the same
    reason."""
    given: dict[str, list[str]] = {}
    for key, words in without_effect(kind, config).items():
        value = OmegaConf.select(config, key)
        if value != OmegaConf.select(usual, key):
            given.setdefault(words, []).append(f"{key}={value}")
    return [f"{', '.join(names)}: {words}" for words, names in given.items()]


def without_effect(kind: JobKind, config: DictConfig) -> dict[str, str]:
    """Why settings do nothing: those that the kind names, in groups or one by one, and those that do nothing anywhere."""
    schema, why = dict(settings(kind.schema)), {}
    for key in schema:
        if key.endswith("model.peft.peft_scheme"):
            group = key.removesuffix(".peft_scheme")
            idle = peft.without_effect(OmegaConf.select(config, group))
            why |= {f"{group}.{name}": words for name, words in idle.items()}
            if peft.is_lora(OmegaConf.select(config, group)):
                why[group.removesuffix("peft") + "num_layers_unfrozen"] = (
                    "adapters are trained, in every layer."
                )
    for key, words in kind.without_effect(config).items():
        group = [name for name in schema if key.endswith(".") and name.startswith(key)]
        why |= dict.fromkeys(group or [key], words)
    if config.model.tensor_model_parallel_size == 1:
        alone = [key for key in schema if key.endswith("model.sequence_parallel")]
        why |= dict.fromkeys(alone, "with tensor_model_parallel_size=1 there is nobody to share tokens with.")
    for key in schema:
        exporter = re.fullmatch(r"exp_manager\.(\w+)_logger_kwargs\.\w+", key)
        if exporter and not config.exp_manager[asked := f"create_{exporter[1]}_logger"]:
            why[key] = f"nothing is sent there without exp_manager.{asked}=True."
    anywhere = {key: one.metadata.get("without_effect") for key, one in schema.items()}
    return {key: words for key, words in anywhere.items() if words} | why


# ---- what several settings have to satisfy together ------------------------------------------------------------------


def copies_of_the_model(config: DictConfig) -> int:
    """Data-parallel ranks, each of which takes a share of every batch."""
    model, trainer = config.model, config.trainer
    processes = trainer.num_nodes * trainer.devices
    return processes // (model.tensor_model_parallel_size * model.pipeline_model_parallel_size)


def _check_parallelism(kind: JobKind, config: DictConfig) -> None:
    """Processes must divide into copies of the model, and global batches into their micro batches."""
    model, trainer = config.model, config.trainer
    processes = trainer.num_nodes * trainer.devices
    tensor, pipeline = model.tensor_model_parallel_size, model.pipeline_model_parallel_size
    if processes % (tensor * pipeline):
        raise ConfigError(
            f"model.tensor_model_parallel_size={tensor} × model.pipeline_model_parallel_size={pipeline} don't divide the "
            f"{processes} processes of trainer.num_nodes × trainer.devices"
        )
    copies = copies_of_the_model(config)
    packed = OmegaConf.select(config, "model.data.packed_sequence")
    for at, batch in _batches(kind, config):
        if packed and batch.global_batch_size % copies:
            raise ConfigError(
                f"{at}.global_batch_size={batch.global_batch_size} is not divisible by the {copies} copies of the model "
                f"(trainer.num_nodes × trainer.devices over the parallel sizes); make it a multiple of {copies}"
            )
        if not packed and batch.global_batch_size % (batch.micro_batch_size * copies):
            raise ConfigError(
                f"{at}.global_batch_size={batch.global_batch_size} is not divisible by {at}.micro_batch_size="
                f"{batch.micro_batch_size} × {copies} copies of the model (trainer.num_nodes × trainer.devices over the "
                f"parallel sizes); make it a multiple of {batch.micro_batch_size * copies}"
            )


def _batches(kind: JobKind, config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """Where the batch sizes that a job uses stand: SFT has them with each data set, and a server has none."""
    idle = without_effect(kind, config)
    for at in ("model", "model.data.train_ds", "model.data.validation_ds"):
        batch = OmegaConf.select(config, at)
        if batch is not None and f"{at}.global_batch_size" not in idle:
            yield at, batch
