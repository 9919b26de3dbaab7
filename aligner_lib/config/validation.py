"""Checks of settings, and notices of settings without effect. Every message suggests a valid value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import Field
from math import gcd

from omegaconf import DictConfig, OmegaConf

from aligner_lib.config import peft
from aligner_lib.config.functions import check_functions
from aligner_lib.config.kind import JobKind
from aligner_lib.config.schema import named_groups, settings
from aligner_lib.errors import ConfigError

CHECKPOINTS = "exp_manager.create_checkpoint_callback"


def check(kind: JobKind, config: DictConfig) -> None:
    """Raise ConfigError for the first invalid value."""
    for key, entry in _settings_of(kind, config):
        bound, names = entry.metadata.get("bound"), entry.metadata.get("names")
        if not bound and not names:
            continue  # looking up the value would cost more time than all checks
        value = OmegaConf.select(config, key)
        if bound and value is not None and not bound.holds(value):
            raise ConfigError(f"{key}={value}: the value must be {bound.words}")
        if names and (unknown := [name for name in value if name not in names]):
            raise ConfigError(f"there is no setting '{key}.{unknown[0]}'; {key} takes {', '.join(names)}")
    check_functions(OmegaConf.select(config, "functions") or {}, kind.functions)
    _check_parallelism(kind, config)
    for rule in kind.checks:
        rule(config)


def _settings_of(kind: JobKind, config: DictConfig) -> Iterator[tuple[str, Field]]:
    """Every setting of the schema, and of the user-named groups."""
    yield from settings(kind.schema)
    for key, group in named_groups(kind.schema):
        for name in OmegaConf.select(config, key):
            yield from settings(group, f"{key}.{name}.")


def notices(kind: JobKind, config: DictConfig, usual: DictConfig) -> list[str]:
    """Return notices on settings without effect that differ from the `usual` settings, a sentence for each reason, and on
    learning rates that can't decay."""
    idle, given = without_effect(kind, config), {}
    for key, reason in idle.items():
        value = OmegaConf.select(config, key)
        if value != OmegaConf.select(usual, key):
            given.setdefault(reason, []).append(f"{key}={value}")
    of_reasons = [f"{', '.join(names)}: {reason}" for reason, names in given.items()]
    return [*of_reasons, *_minima_above_peaks(kind, config, idle)]


def _minima_above_peaks(kind: JobKind, config: DictConfig, idle: dict[str, str]) -> Iterator[str]:
    """A notice on each min_lr above its lr. The user may have lowered lr alone, so min_lr need not differ from the profile's."""
    for key, _ in settings(kind.schema):
        if not key.endswith("optim.sched.min_lr") or key in idle or _has_own_learning_rate(config):
            continue
        of_peak = key.removesuffix("sched.min_lr") + "lr"
        least, peak = OmegaConf.select(config, key), OmegaConf.select(config, of_peak)
        if least > peak:
            yield f"{key}={least} is above {of_peak}={peak}: after the warm-up, the learning rate stays at {of_peak}."


def _has_own_learning_rate(config: DictConfig) -> bool:
    """Whether a user's function computes the learning rate. The function may use every setting of the schedule."""
    return "learning_rate" in (OmegaConf.select(config, "functions") or {})


def without_effect(kind: JobKind, config: DictConfig) -> dict[str, str]:
    """Return the settings without effect in any job or, according to the kind, in this job, with the reasons."""
    schema = dict(settings(kind.schema))
    reasons = dict(_idle_in_every_kind(schema, config))
    for key in schema:
        if key.endswith("model.peft.peft_scheme"):
            group = key.removesuffix(".peft_scheme")
            idle = peft.without_effect(OmegaConf.select(config, group))
            reasons |= {f"{group}.{name}": reason for name, reason in idle.items()}
            if peft.is_lora(OmegaConf.select(config, group)):
                reasons[group.removesuffix("peft") + "num_layers_unfrozen"] = (
                    "adapters are trained, in every layer."
                )
    for key, reason in kind.without_effect(config).items():
        group = [name for name in schema if key.endswith(".") and name.startswith(key)]
        reasons |= dict.fromkeys(group or [key], reason)
    if CHECKPOINTS in schema and CHECKPOINTS not in reasons:
        reasons |= _idle_without_checkpoints(schema, config)
    if config.model.tensor_model_parallel_size == 1:
        alone = [key for key in schema if key.endswith("model.sequence_parallel")]
        reasons |= dict.fromkeys(
            alone, "with tensor_model_parallel_size=1 there is no other rank to share tokens with."
        )
    for key in schema:
        exporter = re.fullmatch(r"exp_manager\.(\w+)_logger_kwargs\.\w+", key)
        if exporter and not config.exp_manager[switch := f"create_{exporter[1]}_logger"]:
            reasons[key] = f"nothing is sent there without exp_manager.{switch}=True."
    anywhere = {key: entry.metadata.get("without_effect") for key, entry in schema.items()}
    return {key: reason for key, reason in anywhere.items() if reason} | reasons


def _idle_without_checkpoints(schema: Iterable[str], config: DictConfig) -> dict[str, str]:
    """The settings without effect because no checkpoint is written or none is ranked, with the reasons."""
    group, manager = "exp_manager.checkpoint_callback_params", config.exp_manager
    if not manager.create_checkpoint_callback:
        names = [f"{group}.{name}" for name in ("save_best", "monitor", "mode", "save_top_k")]
        intervals = [key for key in schema if re.fullmatch(r"trainer\.\w+\.save_interval", key)]
        return dict.fromkeys([*names, *intervals], f"with {CHECKPOINTS}=False no checkpoint is written.")
    callback = manager.checkpoint_callback_params
    if callback.save_best or callback.monitor:
        return {}
    return {f"{group}.mode": f"without {group}.save_best no checkpoint is the best."}


def _idle_in_every_kind(schema: Iterable[str], config: DictConfig) -> Iterator[tuple[str, str]]:
    """The settings without effect because of another setting of the same group, in every kind with the group, with the
    reasons."""
    of_schedule, of_checkpoints = "optim.sched.name", ".activations_checkpoint_granularity"
    for key in schema:
        at = key.rpartition(".")[0]
        if not key.endswith((of_schedule, of_checkpoints)):
            continue  # looking up the value would cost most of the time
        value = OmegaConf.select(config, key)
        if key.endswith(of_schedule) and value == "constant" and not _has_own_learning_rate(config):
            for unused in ("constant_steps", "min_lr", "max_steps"):
                yield f"{at}.{unused}", f"with {key}=constant the learning rate does not decay."
        if key.endswith(of_checkpoints) and value != "full":
            for unused in ("method", "num_layers"):
                yield f"{at}.activations_checkpoint_{unused}", f"only {key}=full recomputes whole layers."


# ---- conditions on several settings together -------------------------------------------------------------------------


def copies_of_the_model(config: DictConfig) -> int:
    """The number of data-parallel ranks. Each rank takes an equal share of every batch."""
    model, trainer = config.model, config.trainer
    processes = trainer.num_nodes * trainer.devices
    return processes // (model.tensor_model_parallel_size * model.pipeline_model_parallel_size)


def _check_parallelism(kind: JobKind, config: DictConfig) -> None:
    """Check that the processes divide evenly into copies of the model, and global batches into micro batches."""
    model, trainer = config.model, config.trainer
    processes = trainer.num_nodes * trainer.devices
    tensor, pipeline = model.tensor_model_parallel_size, model.pipeline_model_parallel_size
    if processes % (tensor * pipeline):
        raise ConfigError(
            f"model.tensor_model_parallel_size={tensor} × model.pipeline_model_parallel_size={pipeline} do not "
            f"divide the {processes} processes of trainer.num_nodes × trainer.devices"
        )
    copies = copies_of_the_model(config)
    packed = OmegaConf.select(config, "model.data.packed_sequence")
    problems = [_uneven(at, batch, copies, packed) for at, batch in _batches(kind, config)]
    if any(problems):
        raise ConfigError("; ".join(filter(None, problems)))


def _uneven(at: str, batch: DictConfig, copies: int, packed: bool) -> str:
    """What is wrong with batch sizes that do not divide evenly, with the cure; "" if they do."""
    size, micro = batch.global_batch_size, 1 if packed else batch.micro_batch_size
    if size % (micro * copies) == 0:
        return ""
    of_micro = "the" if packed else f"{at}.micro_batch_size={micro} ×"
    cure = f"set a multiple of {micro * copies}"
    if size % copies == 0:
        cure += f", or {at}.micro_batch_size={gcd(micro, size // copies)}"
    return (
        f"{at}.global_batch_size={size} is not divisible by {of_micro} {copies} copies of the model (trainer.num_nodes × "
        f"trainer.devices over the parallel sizes): {cure}"
    )


def _batches(kind: JobKind, config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """The groups with a job's batch sizes: SFT has a group for each data set; servers and evaluations have none."""
    idle = without_effect(kind, config)
    for at in ("model", "model.data.train_ds", "model.data.validation_ds"):
        batch = OmegaConf.select(config, at)
        if batch is not None and "global_batch_size" in batch and f"{at}.global_batch_size" not in idle:
            yield at, batch
