"""Builds a job of GRPO or a related algorithm from its settings: prompts, models and trainer."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.kinds.build_models import build_engine, build_reward_model, build_trainable_engine
from aligner_lib.kinds.functions import functions_of
from aligner_lib.kinds.grpo.settings import has_remote_rm, objective_of, rollouts_of_a_step
from aligner_lib.kinds.grpo.trainer import GRPOTrainer
from aligner_lib.kinds.inputs import model_folder, steps_of
from aligner_lib.kinds.policy_gradient.build import (
    build_policy,
    forward_micro_batch_size,
    read_inputs,
    sampling_settings,
    server_connections,
)
from aligner_lib.kinds.policy_gradient.settings import judged_by_programs
from aligner_lib.kinds.prepared_job import PreparedJob
from aligner_lib.models.architecture import Architecture
from aligner_lib.rollouts.collect import RolloutCollector
from aligner_lib.rollouts.interfaces import RewardSource
from aligner_lib.rollouts.policy import TokenScorer
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.lr import LRSchedule


def prepare(config: DictConfig) -> PreparedJob:
    """Prepare a job for GRPO or a related algorithm. A reward model runs in this process, in a separate job, or not at all."""
    model, loop, rollout = config.model, config.trainer.grpo, config.model.grpo
    functions = functions_of("grpo", config)
    start = model_folder(config, "pretrained_checkpoint.restore_from_path", "lm")
    scalar = (
        None
        if judged_by_programs(config) or has_remote_rm(config)
        else model_folder(config, "reward_model.rm_model_file", "scalar")
    )
    teacher = objective_of(config).baseline == "teacher"
    teacher = model_folder(config, "model.grpo.teacher.restore_from_path", "lm") if teacher else None
    inputs = read_inputs(config, start, {"reward model": scalar, "teacher": teacher})
    tokenizer = inputs.tokenizer
    reserved = rollout.num_prompts_per_step * rollouts_of_a_step(config)  # prompts of a step
    max_steps = steps_of(loop, inputs.tasks.size, reserved)
    responses = rollout.num_prompts_per_step * rollout.num_generations_per_prompt
    updates = responses // model.global_batch_size * rollout.rollout_epochs  # in a step

    def build(run):
        engine = build_trainable_engine(
            Architecture.load(start), config, loop.gradient_clip_val, start, rollout.offload_adam_states
        )
        policy = build_policy(engine, config, tokenizer, inputs.opened)
        return GRPOTrainer(
            policy=policy,
            collector=RolloutCollector(
                policy, _reward_source(config, tokenizer, scalar, run), model.seed, model.encoder_seq_length
            ),
            tasks=inputs.tasks,
            objective=objective_of(config),
            teacher=teacher and build_teacher(config, teacher),
            lr_schedule=LRSchedule(model.optim, max_steps * updates, functions.learning_rate),
            config=config,
            run=run,
            functions=functions,
        )

    return PreparedJob(build, max_steps, loop, inputs.hashes, inputs.opened.close)


def _reward_source(
    config: DictConfig, tokenizer: Tokenizer, rewards: Path | None, run: RunWriter | None
) -> RewardSource | None:
    """The reward model in the current process or in another job; None if programs judge all responses."""
    if rewards is not None:
        return build_reward_model(config, rewards, config.model.micro_batch_size)
    if judged_by_programs(config):
        return None
    from aligner_lib.remote_critic.client import RemoteRewardModel
    from aligner_lib.remote_critic.connection import Endpoint

    remote = config.remote_rm
    server = Endpoint("reward_model", remote.ip, remote.port, remote.run)
    connections = server_connections(config, {server: {"rewards"}}, tokenizer, remote.timeout, run)
    return RemoteRewardModel(connections, remote.pad_to_length, run)


def build_teacher(config: DictConfig, start: Path) -> TokenScorer:
    """Build a language model that scores the policy's tokens at the policy's temperature."""
    engine = build_engine(Architecture.load(start), config, start)
    return TokenScorer(engine, sampling_settings(config).temperature, forward_micro_batch_size(config))
