"""Each kind of job from its config: data, models and trainer put together.

Data is read and checked before any model is built, so that a mistake in a path costs seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from aligner_lib.algorithms.objective import PRESETS
from aligner_lib.config.kinds.dpo import WITHOUT_REFERENCE
from aligner_lib.config.kinds.grpo import has_remote_rm, objective_of
from aligner_lib.config.kinds.ppo import critic_epochs, has_remote_critic
from aligner_lib.config.policy_gradient import (
    environments_of,
    judged_by_programs,
    val_rollout_micro_batch_size,
)
from aligner_lib.datasets.load import load_sft
from aligner_lib.datasets.tokenizer import Tokenizer, check_same_tokenizer
from aligner_lib.jobs.build_models import (
    build_critic,
    build_engine,
    build_policy,
    build_reward_model,
    build_teacher,
    build_trainable_engine,
    sampling_settings,
    warn_about_sampling,
)
from aligner_lib.jobs.functions import functions_of
from aligner_lib.jobs.inputs import (
    check_positions,
    files_of,
    files_of_split,
    for_validation,
    hash_of_adapters,
    hashes_of,
    held_out_tasks,
    limited,
    loaders,
    log_report,
    model_folder,
    packed_tokens,
    policy_tokenizer,
    steps_of,
    task_source,
    warn_about_template,
)
from aligner_lib.jobs.overlap import warn_about_overlap
from aligner_lib.megatron.generate import Sampling
from aligner_lib.models import model_hash
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.rollouts.collect import Rollout
from aligner_lib.rollouts.interfaces import RewardSource, ValueModel
from aligner_lib.rollouts.policy import Policy
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.dpo import DPOTrainer
from aligner_lib.trainers.evaluate import Evaluation
from aligner_lib.trainers.grpo import GRPOTrainer
from aligner_lib.trainers.kto import KTOTrainer
from aligner_lib.trainers.loop import Trainer
from aligner_lib.trainers.lr import LRSchedule
from aligner_lib.trainers.ppo import PPOTrainer
from aligner_lib.trainers.reference_logprobs import precompute
from aligner_lib.trainers.reward_model import RewardModelTrainer
from aligner_lib.trainers.sft import SFTTrainer

if TYPE_CHECKING:
    from aligner_lib.remote_critic.connection import Endpoint
    from aligner_lib.remote_critic.connections import ServerConnections

REWARD_MODEL = "critic.pretrained_checkpoint.restore_from_path"  # and what the critic begins as


@dataclass(frozen=True)
class PreparedJob:
    """A job, ready but for its models: `build` makes them, given the run's writer (None on all ranks but the first)."""

    build: Callable[[RunWriter | None], Trainer | Evaluation]
    max_steps: int
    loop: DictConfig  # a config.schema.Loop
    hashes: dict[str, str]
    close: Callable[[], None] = lambda: (
        None
    )  # ends what it has started beside itself: environments' processes


def sft(config: DictConfig) -> PreparedJob:
    """Supervised fine-tuning."""
    model, data, loop = config.model, config.model.data, config.trainer.sft
    functions = functions_of("sft", config)
    start = model_folder(config, "model.restore_from_path", "lm")
    tokenizer = policy_tokenizer(config, start)

    def load(dataset: DictConfig, name: str) -> list:
        files = files_of(dataset.file_path, f"model.data.{name}.file_path")
        longest = dataset.max_seq_length or model.encoder_seq_length
        check_positions(start, longest, f"model.data.{name}.max_seq_length")
        return log_report(name, load_sft(files, tokenizer, longest))

    train, validation = load(data.train_ds, "train_ds"), load(data.validation_ds, "validation_ds")
    validation = for_validation(limited(validation, loop, data.validation_ds.global_batch_size), config)
    warn_about_overlap(train, validation)
    max_steps = steps_of(loop, len(train), data.train_ds.global_batch_size)

    def build(run):
        return SFTTrainer(
            engine=build_trainable_engine(Architecture.load(start), config, loop.gradient_clip_val, start),
            tokenizer=tokenizer,
            train=train,
            validation=validation,
            lr_schedule=LRSchedule(model.optim, max_steps, functions.learning_rate),
            functions=functions,
            global_batch_size=data.train_ds.global_batch_size,
            micro_batch_size=data.train_ds.micro_batch_size,
            validation_micro_batch_size=data.validation_ds.micro_batch_size,
            seed=model.seed,
            shuffle=data.train_ds.shuffle,
            packed_tokens=packed_tokens(config, data.train_ds.micro_batch_size, train),
            answer_only_loss=model.answer_only_loss,
        )

    hashes = hashes_of(start, data.train_ds.file_path, data.validation_ds.file_path)
    return PreparedJob(build, max_steps, loop, hashes | hash_of_adapters(config, start))


def reward_model(config: DictConfig) -> PreparedJob:
    """Reward model training."""
    start = model_folder(config, "pretrained_checkpoint.restore_from_path")
    architecture = Architecture.load(start)
    scaling = config.model.reward_standardization
    fixed = scaling["enable"] and scaling["mean"] is not None
    is_new = architecture.head == "lm"  # a reward model, trained further, keeps its own head

    def trainer(loop, common):
        engine = build_trainable_engine(
            replace(architecture, head="scalar"),
            config,
            loop.gradient_clip_val,
            start,
            new_head=is_new,
        )
        if is_new:
            engine.draw_head(config.model.init_method_std, config.model.seed)
        scale = RewardScale(scaling["mean"], scaling["std"]) if fixed else RewardScale()
        return RewardModelTrainer(
            engine,
            **common,
            scale=scale,
            measure_scale=scaling["enable"] and not fixed,
            centering=config.model.center_rewards_coefficient,
        )

    return _on_pairs("rm", config, config.trainer.rm, start, loaders(config).load_pairs, trainer)


def dpo(config: DictConfig) -> PreparedJob:
    """Direct preference optimisation."""
    start = model_folder(config, "pretrained_checkpoint.restore_from_path", "lm")
    model, settings = config.model, config.model.dpo
    has_reference = settings.preference_loss not in WITHOUT_REFERENCE
    precomputes = has_reference and settings.precompute_reference_logprobs
    kto, read = settings.preference_loss == "kto", loaders(config)
    kind, load = (KTOTrainer, read.load_labelled) if kto else (DPOTrainer, read.load_preferences)

    def trainer(loop, common):
        policy = None
        engine = build_trainable_engine(Architecture.load(start), config, loop.gradient_clip_val, start)
        if has_reference and not precomputes:
            sampling = Sampling(max_length=settings.val_response_length or model.encoder_seq_length // 2)
            policy = Policy(
                engine, common["tokenizer"], sampling, forward_micro_batch_size=model.micro_batch_size
            )
        made = kind(engine, **common, settings=settings, policy=policy)
        if precomputes:
            max_steps = steps_of(loop, len(made.train), model.global_batch_size)
            reference = " ".join([model_hash(start), *hash_of_adapters(config, start).values()])
            precompute(made, max_steps, Path(config.exp_manager.explicit_log_dir), reference)
        return made

    return _on_pairs("dpo", config, config.trainer.dpo, start, load, trainer)


def _on_pairs(
    kind: str,
    config: DictConfig,
    loop: DictConfig,
    start: Path,
    load: Callable,
    trainer: Callable[..., Trainer],
) -> PreparedJob:
    """A job that learns from pairs. load: of files, tokenizer and longest length; trainer: of the loop's settings and of
    what both trainers take."""
    model, tokenizer, functions = config.model, policy_tokenizer(config, start), functions_of(kind, config)

    def split(name: str) -> list:
        return log_report(name, load(files_of_split(config, name), tokenizer, model.encoder_seq_length))

    train, validation = split("train"), split("validation")
    validation = for_validation(limited(validation, loop, model.global_batch_size), config)
    warn_about_overlap(train, validation)
    max_steps = steps_of(loop, len(train), model.global_batch_size)
    common = {
        "tokenizer": tokenizer,
        "train": train,
        "validation": validation,
        "lr_schedule": LRSchedule(model.optim, max_steps, functions.learning_rate),
        "functions": functions,
        "global_batch_size": model.global_batch_size,
        "micro_batch_size": model.micro_batch_size,
        "validation_micro_batch_size": model.micro_batch_size,
        "packed_tokens": packed_tokens(config, model.micro_batch_size, train),
        "seed": model.seed,
    }
    hashes = hashes_of(start, *model.data.data_prefix.values(), mmap=model.data.data_impl == "mmap")
    hashes |= hash_of_adapters(config, start)
    return PreparedJob(lambda run: trainer(loop, common), max_steps, loop, hashes)


def ppo(config: DictConfig) -> PreparedJob:
    """PPO, with its critic in this process or in a job of its own."""
    model, loop, rollout = config.model, config.trainer.ppo, config.model.ppo
    functions = functions_of("ppo", config)
    start = model_folder(config, "pretrained_checkpoint.restore_from_path", "lm")
    # a program that judges needs no reward model: the critic may then begin as any model
    head = None if judged_by_programs(config) else "scalar"
    rewards = None if has_remote_critic(config) else model_folder(config, REWARD_MODEL, head)
    tokenizer = policy_tokenizer(config, start)
    if rewards is not None:
        check_same_tokenizer(tokenizer, Tokenizer(rewards).hash, f"the reward model in {rewards}")
        warn_about_template(tokenizer, rewards, "the reward model")
    tasks, opened = task_source(config, tokenizer), ExitStack()
    opened.callback(tasks.close)
    max_steps = steps_of(loop, tasks.size or 0, rollout.num_rollout_samples)
    global_batches = rollout.num_rollout_samples // model.global_batch_size  # a step
    actor_steps = max(max_steps - loop.critic_warmup_steps, 1) * global_batches * rollout.rollout_epochs
    critic_steps = max_steps * global_batches * critic_epochs(config)
    warn_about_sampling(sampling_settings(config))

    def build(run):
        clip, offload = loop.gradient_clip_val, rollout.offload_adam_states
        engine = build_trainable_engine(Architecture.load(start), config, clip, start, offload)
        reward_source, critic, critic_optim = _reward_source_and_critic(config, tokenizer, rewards, run)
        policy = build_policy(engine, config, tokenizer, opened)
        trainer = PPOTrainer(
            policy=policy,
            roll_out=Rollout(policy, reward_source, model.seed, model.encoder_seq_length, critic),
            tasks=tasks,
            objective=replace(
                PRESETS["ppo"],
                clip_low=rollout.ratio_eps,
                clip_high=rollout.ratio_eps,
                scale="batch_std" if loop.normalize_advantages else "none",
            ),
            critic=critic,
            lr_schedule=LRSchedule(model.optim, actor_steps, functions.learning_rate),
            critic_lr_schedule=LRSchedule(critic_optim, critic_steps),
            config=config,
            run=run,
            functions=functions,
        )
        return functions.trainer(trainer)

    hashes = hashes_of(start, *model.data.data_prefix.values(), mmap=model.data.data_impl == "mmap")
    hashes |= hash_of_adapters(config, start)
    if rewards is not None:  # else the server's run has it
        hashes["reward_model"] = model_hash(rewards)
    return PreparedJob(build, max_steps, loop, hashes, opened.close)


def grpo(config: DictConfig) -> PreparedJob:
    """GRPO and its relatives."""
    model, loop, rollout = config.model, config.trainer.grpo, config.model.grpo
    functions = functions_of("grpo", config)
    start = model_folder(config, "pretrained_checkpoint.restore_from_path", "lm")
    tokenizer = policy_tokenizer(config, start)
    hashes = hashes_of(start, *model.data.data_prefix.values(), mmap=model.data.data_impl == "mmap")
    hashes |= hash_of_adapters(config, start)
    scalar = (
        None
        if judged_by_programs(config) or has_remote_rm(config)
        else model_folder(config, "reward_model.rm_model_file", "scalar")
    )
    teacher = objective_of(config).baseline == "teacher"
    teacher = model_folder(config, "model.grpo.teacher.restore_from_path", "lm") if teacher else None
    for name, folder in {"reward_model": scalar, "teacher": teacher}.items():
        if folder is not None:
            name_of_it = f"the {name.replace('_', ' ')}"
            check_same_tokenizer(tokenizer, Tokenizer(folder).hash, f"{name_of_it} in {folder}")
            warn_about_template(tokenizer, folder, name_of_it)
            hashes[name] = model_hash(folder)
    tasks, opened = task_source(config, tokenizer), ExitStack()
    opened.callback(tasks.close)
    max_steps = steps_of(loop, tasks.size or 0, rollout.num_prompts_per_step)
    responses = rollout.num_prompts_per_step * rollout.num_generations_per_prompt
    updates = responses // model.global_batch_size * rollout.rollout_epochs  # a step
    warn_about_sampling(sampling_settings(config))

    def build(run):
        engine = build_trainable_engine(
            Architecture.load(start), config, loop.gradient_clip_val, start, rollout.offload_adam_states
        )
        policy = build_policy(engine, config, tokenizer, opened)
        return GRPOTrainer(
            policy=policy,
            roll_out=Rollout(
                policy, _reward_source(config, tokenizer, scalar, run), model.seed, model.encoder_seq_length
            ),
            tasks=tasks,
            objective=objective_of(config),
            teacher=teacher and build_teacher(config, teacher),
            lr_schedule=LRSchedule(model.optim, max_steps * updates, functions.learning_rate),
            config=config,
            run=run,
            functions=functions,
        )

    return PreparedJob(build, max_steps, loop, hashes, opened.close)


def evaluation(config: DictConfig) -> PreparedJob:
    """PPO's config with `policy.restore_from_path`: the reference is pretrained_checkpoint, as in PPO."""
    rollout = config.model.ppo
    reference = model_folder(config, "pretrained_checkpoint.restore_from_path", "lm")
    rewards = None if judged_by_programs(config) else model_folder(config, REWARD_MODEL, "scalar")
    start = model_folder(config, "policy.restore_from_path", "lm")
    tokenizer = policy_tokenizer(config, start)
    for name, folder in {"reference": reference, "reward model": rewards}.items():
        if folder is not None:
            check_same_tokenizer(tokenizer, Tokenizer(folder).hash, f"the {name} in {folder}")
            warn_about_template(tokenizer, folder, f"the {name}")
    tasks, opened = held_out_tasks(config, tokenizer), ExitStack()
    opened.callback(tasks.close)

    def build(run):
        policy = build_policy(
            build_engine(Architecture.load(reference), config, reference), config, tokenizer, opened
        )
        policy.engine.load(start)  # now that it has taken its copy of the reference
        reward_source = rewards and build_reward_model(
            config.critic, rewards, config.critic.trainer.ppo.inference_micro_batch_size
        )
        return Evaluation(
            roll_out=Rollout(policy, reward_source, config.model.seed, config.model.encoder_seq_length),
            tasks=tasks,
            num_prompts=rollout.num_val_samples,
            generations_per_prompt=config.evaluation.num_generations_per_prompt,
            rollout_micro_batch_size=val_rollout_micro_batch_size(config),
            greedy=rollout.val_use_greedy,
            run=run,
        )

    files = [] if environments_of(config) else files_of_split(config, "validation")
    hashes = hashes_of(start, files, mmap=config.model.data.data_impl == "mmap")
    hashes |= {} if rewards is None else {"reward_model": model_hash(rewards)}
    return PreparedJob(build, 0, config.trainer.ppo, hashes, opened.close)


def _reward_source_and_critic(
    config: DictConfig, tokenizer: Tokenizer, rewards: Path | None, run: RunWriter | None
) -> tuple[RewardSource | None, ValueModel, DictConfig]:
    """Who judges PPO's rollouts, in this process or in other jobs, and the settings of the critic's optimiser. No reward
    source where programs judge all of them."""
    if rewards is not None:
        critic, reward_model = build_critic(config.critic, rewards, judges=not judged_by_programs(config))
        return reward_model, critic, config.critic.model.optim
    from aligner_lib.remote_critic.client import RemoteCritic
    from aligner_lib.remote_critic.connection import Endpoint

    remote = config.remote_critic_rm
    where = dict(remote.critic)
    if where["ip"] is None and where["run"] is None:  # see has_remote_critic
        where["ip"] = "localhost"
    if config.model.ppo.combine_rm_and_critic_server:
        servers = {Endpoint("critic", **where): {"values", "rewards"}}
    else:
        reward_model = Endpoint("reward_model", **remote.reward_model)
        servers = {Endpoint("critic", **where): {"values"}, reward_model: {"rewards"}}
    connections = _connections(config, servers, tokenizer, remote.timeout)
    critic = RemoteCritic(connections, remote.pad_to_length, run)
    return None if judged_by_programs(config) else critic, critic, OmegaConf.create(critic.about["optim"])


def _reward_source(
    config: DictConfig, tokenizer: Tokenizer, rewards: Path | None, run: RunWriter | None
) -> RewardSource | None:
    """Who judges GRPO's rollouts: a reward model in this process or in another job; None where programs judge all."""
    if rewards is not None:
        return build_reward_model(config, rewards, config.model.micro_batch_size)
    if judged_by_programs(config):
        return None
    from aligner_lib.remote_critic.client import RemoteRewardModel
    from aligner_lib.remote_critic.connection import Endpoint

    remote = config.remote_rm
    server = Endpoint("reward_model", remote.ip, remote.port, remote.run)
    connections = _connections(config, {server: {"rewards"}}, tokenizer, remote.timeout)
    return RemoteRewardModel(connections, remote.pad_to_length, run)


def _connections(
    config: DictConfig, servers: Mapping[Endpoint, set[str]], tokenizer: Tokenizer, timeout: float
) -> ServerConnections:
    """Of this run to its servers: see ServerConnections."""
    from aligner_lib.remote_critic.connections import ServerConnections

    return ServerConnections(
        servers,
        tokenizer,
        run=str(Path(config.exp_manager.explicit_log_dir).absolute()),
        timeout_s=timeout,
        answer_s=60 * config.trainer.distributed_timeout_minutes,
        longest_sample=config.model.encoder_seq_length,
    )
