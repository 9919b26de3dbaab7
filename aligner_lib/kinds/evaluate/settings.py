"""A policy on held-out prompts: PPO's settings, and which policy it is. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aligner_lib.config.kind import JobKind
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.config.schema import PretrainedCheckpoint, at_least, setting
from aligner_lib.kinds.policy_gradient.settings import (
    check_generation,
    environments_of,
    judged_by_programs,
    unused_generation_settings,
)
from aligner_lib.kinds.ppo import settings as ppo

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class EvaluationSettings:
    """evaluation: what an evaluation has beside PPO's settings."""

    num_generations_per_prompt: int = setting(1, at_least(1))  # responses to each prompt


@dataclass
class EvaluateConfig(ppo.PPOConfig):
    """pretrained_checkpoint is the reference that KL is measured to."""

    policy: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)


_NOT_TRAINED = "an evaluation trains and saves nothing."


def _without_effect(config: DictConfig) -> dict[str, str]:
    """What an evaluation takes of PPO's settings is how to sample, on how many prompts, and the models."""
    of_models = (
        "model.optim.",
        "model.peft.",
        "model.activations_checkpoint_granularity",
        "model.activations_checkpoint_method",
        "model.activations_checkpoint_num_layers",
    )
    of_ppo = (
        "num_rollout_samples",
        "num_generations_per_prompt",
        "rollout_epochs",
        "critic_rollout_epochs",
        "recompute_logprobs",
        "ratio_eps",
        "entropy_bonus",
        "sampler_correction",
        "sampler_correction_cap",
        "offload_adam_states",
    )
    training = (
        "trainer.ppo.",
        "model.global_batch_size",
        *(f"{prefix}{name}" for prefix in ("", "critic.") for name in of_models),
        *(f"model.ppo.{name}" for name in of_ppo),
        "critic.model.micro_batch_size",
        "critic.model.loss_clip_val",
        "critic.model.new_head",
        "critic.model.num_layers_unfrozen",
        "critic.model.offload_adam_states",
        "critic.trainer.ppo.gradient_clip_val",
        "exp_manager.resume_if_exists",
        "exp_manager.resume_ignore_no_checkpoint",
        "exp_manager.create_checkpoint_callback",
        "exp_manager.checkpoint_callback_params.",
    )
    return {
        **unused_generation_settings(config),
        **dict.fromkeys(training, _NOT_TRAINED),
        **ppo.without_servers(config, "an evaluation has its reward model in its own process."),
        "model.data.data_prefix.train": "an evaluation reads data_prefix.validation alone.",
        **_of_environments(config),
    }


def _of_environments(config: DictConfig) -> dict[str, str]:
    """What does nothing because environments give the prompts, or judge them."""
    found = {}
    if environments_of(config):
        found["model.data.data_prefix.validation"] = "its prompts come from model.environments."
    if judged_by_programs(config):
        found["critic."] = "programs judge all of its responses, and no reward model."
    return found


KIND = JobKind(
    name="evaluate",
    command="evaluate",
    summary="A policy on held-out prompts: rewards, lengths, KL to its reference.",
    schema=EvaluateConfig,
    build="aligner_lib.kinds.evaluate.build:prepare",
    run="aligner_lib.jobs.run:run_evaluation",
    defaults="ppo",
    models=ppo.KIND.models,
    data={"model.data.data_prefix.validation": ["hh/test_prompts.jsonl"]},
    checks=(ppo.check_rollouts, ppo.check_servers, check_generation),
    without_effect=_without_effect,
    stage=9,
    **declared_in(Path(__file__).parent),
)
