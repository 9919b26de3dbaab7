"""Which settings make sense, and which are accepted without an effect. Every message says what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from aligner_lib.errors import ConfigError
from aligner_lib.run_folder.alarms import Thresholds


class Bound(NamedTuple):
    holds: Callable[[Any], bool]
    words: str  # completes "must be …"


def _at_least(low: float) -> Bound:
    return Bound(lambda value: value >= low, f"at least {low}")


def _above(low: float) -> Bound:
    return Bound(lambda value: value > low, f"above {low}")


def _within(low: float, high: float) -> Bound:
    return Bound(lambda value: low <= value <= high, f"between {low} and {high}")


def _one_of(*choices: Any) -> Bound:
    return Bound(lambda value: value in choices, " or ".join(map(str, choices)))


_STEPS = Bound(lambda value: value == -1 or value >= 1, "at least 1, or -1 for all")
_PROBABILITY = Bound(lambda value: 0 < value <= 1, "above 0 and at most 1")

# By the last part of the key, which means the same wherever it stands.
BOUNDS: dict[str, Bound] = {
    # sizes
    "num_nodes": _at_least(1),
    "devices": _at_least(1),
    "micro_batch_size": _at_least(1),
    "global_batch_size": _at_least(1),
    "inference_micro_batch_size": _at_least(1),
    "rollout_micro_batch_size": _at_least(1),
    "val_rollout_micro_batch_size": _at_least(1),
    "logprob_forward_micro_batch_size": _at_least(1),
    "num_rollout_samples": _at_least(1),
    "num_val_samples": _at_least(1),
    "encoder_seq_length": _at_least(2),
    "max_seq_length": _at_least(2),
    "max_length": _at_least(1),
    "min_length": _at_least(0),
    "tensor_model_parallel_size": _at_least(1),
    "pipeline_model_parallel_size": _at_least(1),
    "activations_checkpoint_num_layers": _at_least(1),
    "pad_to_length": _at_least(1),
    "num_workers": _at_least(0),
    "port": _within(1, 65535),
    "actor_timeout": _above(0),
    "timeout": _above(0),
    "save_top_k": _at_least(1),
    "seed": _at_least(0),
    # the loop
    "max_epochs": _at_least(1),
    "limit_val_batches": _STEPS,
    "val_check_interval": _at_least(1),
    "save_interval": _at_least(1),
    "gradient_clip_val": _at_least(0),
    # the optimiser
    "lr": _above(0),
    "min_lr": _at_least(0),
    "weight_decay": _at_least(0),
    "eps": _above(0),
    "betas": Bound(
        lambda pair: len(pair) == 2 and all(0 <= b < 1 for b in pair),
        "two numbers in [0, 1), as in [0.9, 0.98]",
    ),
    "warmup_steps": _at_least(0),
    "constant_steps": _at_least(0),
    "critic_warmup_steps": _at_least(0),
    # PPO
    "ratio_eps": _above(0),
    "entropy_bonus": _at_least(0),
    "initial_policy_kl_penalty": _at_least(0),
    "max_init_policy_kl": _above(0),
    "discount_factor": _within(0, 1),
    "gae_lambda": _within(0, 1),
    "temperature": Bound(
        lambda value: value > 0, "above 0; for the likeliest token each time set use_greedy=True"
    ),
    "top_k": _at_least(0),
    "top_p": _PROBABILITY,
    # choices
    "precision": _one_of("bf16", "32"),
    "data_impl": Bound(
        lambda value: value == "jsonl", "jsonl, the only format that is read yet (mmap files are not)"
    ),
    "mcore_gpt": Bound(
        lambda value: value is True,
        "True: every model here is Megatron Core's; `aligner model import` brings others",
    ),
    "activations_checkpoint_granularity": _one_of("selective", "full"),
    "activations_checkpoint_method": _one_of("uniform", "block"),
}
BOUNDS_OF_KEYS: dict[str, Bound] = {
    "optim.name": _one_of("distributed_fused_adam"),
    "sched.name": _one_of("CosineAnnealing", "constant"),
    "sched.max_steps": _at_least(1),
    "sft.max_steps": _STEPS,
    "rm.max_steps": _STEPS,
    "ppo.max_steps": _STEPS,
    **{f"alarms.{limit.name}": _at_least(0) for limit in fields(Thresholds)},
}


def check(kind: str, config: DictConfig) -> None:
    """Raise ConfigError for the first value that makes no sense."""
    for key, value in leaves(config):
        bound = BOUNDS_OF_KEYS.get(".".join(key.split(".")[-2:])) or BOUNDS.get(key.rpartition(".")[2])
        if bound and value is not None and not bound.holds(value):
            raise ConfigError(f"{key}={value}: it must be {bound.words}")
    _check_names(config)
    _check_layout("", config)
    if "critic" in config:
        _check_layout("critic.", config.critic)
    if kind in ("ppo", "evaluate"):
        _check_rollouts(config)
        _check_servers(config)
    if kind == "ppo" and has_remote_critic(config) and not config.exp_manager.create_checkpoint_callback:
        raise ConfigError(
            "exp_manager.create_checkpoint_callback=False: beside a critic in a job of its own the actor keeps all that "
            "the critic has learnt since its last checkpoint, which would fill its memory; leave it True, and raise "
            "trainer.ppo.save_interval for fewer checkpoints"
        )


def leaves(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its full key."""
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, DictConfig):
            yield from leaves(value, f"{key}.")
        else:
            yield key, value


def _check_names(config: DictConfig) -> None:
    """The keys of the two free-form dicts."""
    known = {
        "model.data.data_prefix": ("train", "validation", "test"),
        "model.reward_standardization": ("enable", "mean", "std"),
    }
    for key, names in known.items():
        for name in OmegaConf.select(config, key) or ():
            if name not in names:
                raise ConfigError(f"there is no setting '{key}.{name}'; {key} takes {', '.join(names)}")


def copies_of_the_model(config: DictConfig) -> int:
    """Data-parallel ranks, each of which takes a share of every batch."""
    model, trainer = config.model, config.trainer
    processes = trainer.num_nodes * trainer.devices
    return processes // (model.tensor_model_parallel_size * model.pipeline_model_parallel_size)


def _check_layout(prefix: str, config: DictConfig) -> None:
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


def _check_rollouts(config: DictConfig) -> None:
    ppo, batch = config.model.ppo, config.model.global_batch_size
    if ppo.num_rollout_samples % batch:
        raise ConfigError(
            f"model.ppo.num_rollout_samples={ppo.num_rollout_samples} is not divisible by "
            f"model.global_batch_size={batch}: each PPO step trains on whole global batches"
        )
    length = ppo.length_params
    if length.max_length is not None and length.max_length >= config.model.encoder_seq_length:
        raise ConfigError(
            f"model.ppo.length_params.max_length={length.max_length} leaves no room for a prompt in "
            f"model.encoder_seq_length={config.model.encoder_seq_length}"
        )
    if length.max_length is not None and length.min_length > length.max_length:
        raise ConfigError(
            f"model.ppo.length_params.min_length={length.min_length} is above max_length={length.max_length}"
        )


def _check_servers(config: DictConfig) -> None:
    """A reward model apart from the critic's server has to be somewhere."""
    remote = config.remote_critic_rm
    apart = has_remote_critic(config) and not config.model.ppo.combine_rm_and_critic_server
    if apart and remote.reward_model.ip is None and remote.reward_model.run is None:
        raise ConfigError(
            "model.ppo.combine_rm_and_critic_server=False: rewards come from a server of their own, so set "
            "remote_critic_rm.reward_model.ip and port (or run), and start `aligner serve-rm`"
        )


def val_rollout_micro_batch_size(config: DictConfig) -> int:
    rollout = config.model.ppo
    return rollout.val_rollout_micro_batch_size or rollout.rollout_micro_batch_size


def has_remote_critic(config: DictConfig) -> bool:
    """Whether PPO's critic is a job of its own."""
    critic = config.remote_critic_rm.critic
    return critic.ip is not None or critic.run is not None


# ---- settings without an effect -------------------------------------------------------------------------------------


def notices(config: DictConfig) -> list[str]:
    """One sentence for each setting that was asked for and has no effect here."""
    without = dict(_WITHOUT_EFFECT)
    if "remote_critic_rm" in config and not has_remote_critic(config):
        without |= _WITHOUT_EFFECT_IN_PROCESS
    return [
        f"{key}={value}: {words}"
        for key, value in leaves(config)
        for suffix, (asked, words) in without.items()
        if (key == suffix or key.endswith(f".{suffix}")) and asked(value)
    ]


_WITHOUT_EFFECT: dict[str, tuple[Callable[[Any], bool], str]] = {
    "create_wandb_logger": (
        bool,
        "nothing is sent to Weights & Biases; metrics.jsonl and tensorboard/ have every metric.",
    ),
    "num_workers": (
        bool,
        "no loader processes are started; tokens are prepared once, before the first step.",
    ),
    "checkpoint_callback_params.monitor": (bool, "checkpoints are not ranked by a metric; the newest stay."),
    "save_nemo_on_train_end": (
        bool,
        "no .nemo file is written; the last checkpoint is a folder in checkpoints/.",
    ),
    "always_save_nemo": (bool, "no .nemo files are written; checkpoints are folders in checkpoints/."),
}

# … where the critic is in the actor's process
_WITHOUT_EFFECT_IN_PROCESS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model.ppo.combine_rm_and_critic_server": (
        lambda value: not value,
        "the reward model stays beside the critic, in the actor's process; set remote_critic_rm.critic for servers.",
    ),
    "remote_critic_rm.pad_to_length": (
        bool,
        "nothing is sent to a critic in the actor's process, so nothing is padded.",
    ),
}
