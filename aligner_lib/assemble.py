"""Each kind of job from its config: data, models and trainer put together.

Data is read and checked before any model is built, so that a mistake in a path costs seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf

from aligner_lib.architecture import Architecture
from aligner_lib.config_rules import has_remote_critic
from aligner_lib.critic import CriticAlone, CriticService, InProcessCritic, RewardModelAlone
from aligner_lib.datasets import Dropped, load_pairs, load_prompts, load_sft
from aligner_lib.errors import UserError
from aligner_lib.megatron.cpu import HAS_CUDA
from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.generate import Sampling
from aligner_lib.megatron.model import Numerics
from aligner_lib.models import model_hash, resolve
from aligner_lib.models.hash import file_hash
from aligner_lib.policy import Policy
from aligner_lib.reward_scale import RewardScale
from aligner_lib.run_writer import RunWriter
from aligner_lib.tokenizer import Tokenizer
from aligner_lib.trainers.evaluate import Evaluation
from aligner_lib.trainers.loop import Trainer
from aligner_lib.trainers.ppo import PPOSettings, PPOTrainer
from aligner_lib.trainers.rate import Rate
from aligner_lib.trainers.reward_model import RewardModelTrainer
from aligner_lib.trainers.sft import SFTTrainer
from aligner_lib.two_jobs.worker import Worker

Say = Callable[[str], None]


@dataclass(frozen=True)
class Assembly:
    """A job, ready but for its models: `make` builds them, given the run's writer (None on all ranks but the first)."""

    make: Callable[[RunWriter | None], Trainer]
    max_steps: int
    loop: DictConfig  # a config_schema.Loop
    hashes: dict[str, str]


def assemble(kind: str, config: DictConfig, say: Say) -> Assembly:
    """The parts of a job of this kind. `say` is told how much data there is and what was left out."""
    parts = {"sft": sft, "rm": reward_model, "ppo": ppo, "evaluate": evaluation}
    return parts[kind](config, say)


def sft(config: DictConfig, say: Say) -> Assembly:
    model, data, loop = config.model, config.model.data, config.trainer.sft
    start = _folder(model.restore_from_path, "model.restore_from_path")
    tokenizer = Tokenizer(start)

    def load(dataset: DictConfig, name: str) -> list:
        files = _files(dataset.file_path, f"model.data.{name}.file_path")
        return _told(
            say, name, load_sft(files, tokenizer, dataset.max_seq_length or model.encoder_seq_length)
        )

    train, validation = load(data.train_ds, "train_ds"), load(data.validation_ds, "validation_ds")
    max_steps = _max_steps(loop, len(train), data.train_ds.global_batch_size)

    def make(run):
        return SFTTrainer(
            engine=_trainable(Architecture.load(start), config, loop.gradient_clip_val, start),
            tokenizer=tokenizer,
            train=train,
            validation=_limited(validation, loop, data.validation_ds.global_batch_size),
            rate=Rate(model.optim, max_steps),
            global_batch_size=data.train_ds.global_batch_size,
            micro_batch_size=data.train_ds.micro_batch_size,
            seed=model.seed,
            shuffle=data.train_ds.shuffle,
            answer_only_loss=model.answer_only_loss,
        )

    return Assembly(
        make, max_steps, loop, _hashes(start, data.train_ds.file_path, data.validation_ds.file_path)
    )


def reward_model(config: DictConfig, say: Say) -> Assembly:
    model, loop = config.model, config.trainer.rm
    start = _pretrained(config)
    tokenizer = Tokenizer(start)

    def load(split: str) -> list:
        files = _files_of_split(config, split)
        return _told(say, split, load_pairs(files, tokenizer, model.encoder_seq_length))

    train, validation = load("train"), load("validation")
    max_steps = _max_steps(loop, len(train), model.global_batch_size)
    scaling = model.reward_standardization
    fixed = scaling["enable"] and scaling["mean"] is not None

    def make(run):
        return RewardModelTrainer(
            engine=_trainable(_scalar(start), config, loop.gradient_clip_val, start),
            tokenizer=tokenizer,
            train=train,
            validation=_limited(validation, loop, model.global_batch_size),
            rate=Rate(model.optim, max_steps),
            global_batch_size=model.global_batch_size,
            micro_batch_size=model.micro_batch_size,
            seed=model.seed,
            scale=RewardScale(scaling["mean"], scaling["std"]) if fixed else RewardScale(),
            measure_scale=scaling["enable"] and not fixed,
        )

    return Assembly(make, max_steps, loop, _hashes(start, *model.data.data_prefix.values()))


def ppo(config: DictConfig, say: Say) -> Assembly:
    model, loop, rollout = config.model, config.trainer.ppo, config.model.ppo
    start = _pretrained(config)
    rewards = None if has_remote_critic(config) else _reward_model(config.critic)
    tokenizer = Tokenizer(start)
    train = _prompts(config, "train", tokenizer, say)
    validation = _prompts(config, "validation", tokenizer, say)
    max_steps = _max_steps(loop, len(train), rollout.num_rollout_samples)
    updates = max_steps * (rollout.num_rollout_samples // model.global_batch_size)
    settings = ppo_settings(config)
    _warn_of_sampling(_sampling(config), say)

    def make(run):
        clip, offload = loop.gradient_clip_val, rollout.offload_adam_states
        engine = _trainable(Architecture.load(start), config, clip, start, offload)
        critic, critic_optim = _critic_service(config, rewards, run)
        return PPOTrainer(
            policy=_policy(engine, config, tokenizer),
            critic=critic,
            train_prompts=train,
            val_prompts=_limited(validation, loop, settings.val_rollout_micro_batch_size)[
                : rollout.num_val_samples
            ],
            rate=Rate(model.optim, updates),
            critic_rate=Rate(critic_optim, updates),
            settings=settings,
            run=run,
        )

    hashes = _hashes(start, *model.data.data_prefix.values())
    if rewards is not None:  # else the server's run has it
        hashes["reward_model"] = model_hash(rewards)
    return Assembly(make, max_steps, loop, hashes)


def ppo_settings(config: DictConfig) -> PPOSettings:
    model, loop, rollout = config.model, config.trainer.ppo, config.model.ppo
    return PPOSettings(
        num_rollout_samples=rollout.num_rollout_samples,
        global_batch_size=model.global_batch_size,
        micro_batch_size=model.micro_batch_size,
        rollout_micro_batch_size=rollout.rollout_micro_batch_size,
        val_rollout_micro_batch_size=rollout.val_rollout_micro_batch_size or rollout.rollout_micro_batch_size,
        initial_policy_kl_penalty=loop.initial_policy_kl_penalty,
        use_absolute_kl=loop.use_absolute_kl,
        discount_factor=loop.discount_factor,
        gae_lambda=loop.gae_lambda,
        normalize_advantages=loop.normalize_advantages,
        ratio_eps=rollout.ratio_eps,
        entropy_bonus=rollout.entropy_bonus,
        critic_warmup_steps=loop.critic_warmup_steps,
        max_init_policy_kl=loop.max_init_policy_kl,
        seed=model.seed,
    )


def evaluation(config: DictConfig, say: Say) -> Assembly:
    """PPO's config with `policy.restore_from_path`: the reference is pretrained_checkpoint, as in PPO."""
    rollout = config.model.ppo
    reference, rewards = _pretrained(config), _reward_model(config.critic)
    start = _folder(config.policy.restore_from_path, "policy.restore_from_path")
    tokenizer = Tokenizer(reference)
    prompts = _prompts(config, "validation", tokenizer, say)

    def make(run):
        policy = _policy(_engine(Architecture.load(reference), config, reference), config, tokenizer)
        policy.engine.load(start)  # now that it has taken its copy of the reference
        return Evaluation(
            policy=policy,
            critic=_reward_model_alone(
                config.critic, rewards, config.critic.trainer.ppo.inference_micro_batch_size
            ),
            prompts=prompts[: rollout.num_val_samples],
            rollout_micro_batch_size=rollout.val_rollout_micro_batch_size or rollout.rollout_micro_batch_size,
            seed=config.model.seed,
            run=run,
        )

    files = _files_of_split(config, "validation")
    return Assembly(
        make, 0, config.trainer.ppo, _hashes(start, files) | {"reward_model": model_hash(rewards)}
    )


# ---- PPO's servers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Serving:
    """What a server's job serves, ready but for its model: `make` builds this rank's part."""

    make: Callable[[], Worker]
    vocab_size: int
    hashes: dict[str, str]
    about: dict  # what an actor has to know of it


def serving(kind: str, config: DictConfig) -> Serving:
    """`critic`: critic and reward model (or the critic alone); `reward_server`: a reward model alone."""
    parts = {"critic": critic_server, "reward_server": reward_server}
    return parts[kind](config)


def critic_server(config: DictConfig) -> Serving:
    start = _pretrained(config)
    combined = config.trainer.ppo.combine_rm_and_critic_server

    def make():
        kind = InProcessCritic if combined else CriticAlone
        return Worker(_in_process_critic(config, start, kind), start)

    about = {
        "optim": OmegaConf.to_container(config.model.optim),
        "gives": ["values"] + ["rewards"] * combined,
    }
    return Serving(make, Architecture.load(start).vocab_size, {"model": model_hash(start)}, about)


def reward_server(config: DictConfig) -> Serving:
    start = _folder(config.rm_model_file, "rm_model_file")

    def make():
        return Worker(_reward_model_alone(config, start, config.inference.micro_batch_size), start)

    return Serving(
        make, Architecture.load(start).vocab_size, {"model": model_hash(start)}, {"gives": ["rewards"]}
    )


def _critic_service(
    config: DictConfig, rewards: Path | None, run: RunWriter | None
) -> tuple[CriticService, DictConfig]:
    """PPO's critic, in this process or in another job, and the settings of its optimiser."""
    if rewards is not None:
        return _in_process_critic(config.critic, rewards), config.critic.model.optim
    from aligner_lib.two_jobs.client import RemoteCritic
    from aligner_lib.two_jobs.link import Where

    remote = config.remote_critic_rm
    apart = not config.model.ppo.combine_rm_and_critic_server
    critic = RemoteCritic(
        critic=Where("critic", **remote.critic),
        reward_model=Where("reward_model", **remote.reward_model) if apart else None,
        run=Path(config.exp_manager.explicit_log_dir),
        timeout_s=remote.timeout,
        pad_to=remote.pad_to_length,
        writer=run,
    )
    return critic, OmegaConf.create(critic.about["optim"])


# ---- models ---------------------------------------------------------------------------------------------------------


def _trainable(
    architecture: Architecture, config: DictConfig, clip: float, start: Path, offload: bool = False
) -> Engine:
    """offload: whether Adam's moments wait on the CPU while nothing is trained."""
    optim = config.model.optim
    settings = {
        "lr": optim.lr,
        "weight_decay": optim.weight_decay,
        "betas": list(optim.betas),
        "eps": optim.eps,
    }
    engine = _engine(architecture, config, start, optim=settings, clip=clip)
    engine.offloads_adam = offload
    return engine


def _engine(architecture: Architecture, config: DictConfig, start: Path, **training) -> Engine:
    """An engine with the weights of `start`; without `training` it only computes."""
    model = config.model
    numerics = Numerics(
        bf16=HAS_CUDA and str(config.trainer.precision).startswith("bf16"),
        recompute_granularity=model.activations_checkpoint_granularity,
        recompute_method=model.activations_checkpoint_method,
        recompute_num_layers=model.activations_checkpoint_num_layers,
    )
    engine = Engine(architecture, numerics, **training)
    engine.load(start)
    return engine


def _policy(engine: Engine, config: DictConfig, tokenizer: Tokenizer) -> Policy:
    forward = config.model.ppo.logprob_forward_micro_batch_size or config.model.micro_batch_size
    return Policy(engine, tokenizer, _sampling(config), forward_micro_batch_size=forward)


def _in_process_critic(
    critic: DictConfig, start: Path, kind: type[InProcessCritic] = InProcessCritic
) -> InProcessCritic:
    clip, offload = critic.trainer.ppo.gradient_clip_val, critic.model.offload_adam_states
    return kind(
        engine=_trainable(_scalar(start), critic, clip, start, offload),
        scale=RewardScale.load(start),
        loss_clip=critic.model.loss_clip_val,
        micro_batch_size=critic.model.micro_batch_size,
        inference_micro_batch_size=critic.trainer.ppo.inference_micro_batch_size,
    )


def _reward_model_alone(config: DictConfig, start: Path, micro_batch_size: int) -> RewardModelAlone:
    return RewardModelAlone(
        engine=_engine(_scalar(start), config, start),
        scale=RewardScale.load(start),
        inference_micro_batch_size=micro_batch_size,
    )


def _scalar(start: Path) -> Architecture:
    return replace(Architecture.load(start), head="scalar")


def _sampling(config: DictConfig) -> Sampling:
    params, lengths = config.model.ppo.sampling_params, config.model.ppo.length_params
    return Sampling(
        max_length=_response_length(config),
        min_length=lengths.min_length,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        greedy=params.use_greedy,
        end_strings=tuple(params.end_strings),
    )


def _warn_of_sampling(sampling: Sampling, say: Say) -> None:
    if sampling.temperature != 1.0:
        say(
            f"temperature is {sampling.temperature}: the log-probabilities that PPO compares are scaled by it, too"
        )
    if sampling.top_k or sampling.top_p != 1.0:
        say(
            f"top_k={sampling.top_k}, top_p={sampling.top_p}: responses come from a cut distribution, which the "
            "log-probabilities that PPO compares don't know of; prefer top_k=0, top_p=1 in training"
        )


# ---- data -----------------------------------------------------------------------------------------------------------


def _prompts(config: DictConfig, split: str, tokenizer: Tokenizer, say: Say) -> list:
    room = config.model.encoder_seq_length - _response_length(config)
    return _told(say, split, load_prompts(_files_of_split(config, split), tokenizer, room))


def _response_length(config: DictConfig) -> int:
    return config.model.ppo.length_params.max_length or config.model.encoder_seq_length // 2


def _files_of_split(config: DictConfig, split: str) -> list[Path]:
    key = f"model.data.data_prefix.{split}"
    return _files(config.model.data.data_prefix.get(split), key)


def _files(value, key: str) -> list[Path]:
    _required(value, key)
    files = list(value) if isinstance(value, list | ListConfig) else [value]
    return [Path(file).expanduser() for file in files]


def _told(say: Say, split: str, loaded: tuple[list, Dropped]) -> list:
    samples, dropped = loaded
    say(f"{split.removesuffix('_ds')}: {len(samples)} samples")
    for line in dropped.lines():
        say(f"{split.removesuffix('_ds')}: {line}")
    return samples


def _limited(samples: list, loop: DictConfig, batch_size: int) -> list:
    return samples if loop.limit_val_batches < 0 else samples[: loop.limit_val_batches * batch_size]


def _max_steps(loop: DictConfig, samples: int, batch_size: int) -> int:
    by_epochs = max(loop.max_epochs * samples // batch_size, 1)
    return by_epochs if loop.max_steps < 0 else loop.max_steps


def _hashes(start: Path, *files) -> dict[str, str]:
    flat = [file for value in files for file in (value if isinstance(value, list | ListConfig) else [value])]
    return {"model": model_hash(start)} | {Path(f).name: file_hash(Path(f).expanduser()) for f in flat}


# ---- paths ----------------------------------------------------------------------------------------------------------


def _pretrained(config: DictConfig) -> Path:
    return _folder(config.pretrained_checkpoint.restore_from_path, "pretrained_checkpoint.restore_from_path")


def _reward_model(critic: DictConfig) -> Path:
    """The reward model's folder, which the critic begins as."""
    return _folder(
        critic.pretrained_checkpoint.restore_from_path, "critic.pretrained_checkpoint.restore_from_path"
    )


def _folder(path: str | None, key: str) -> Path:
    return resolve(_required(path, key))


def _required(value, key: str):
    if not value:
        raise UserError(f"{key} is not set: give it as {key}=…")
    return value
