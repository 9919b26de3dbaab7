"""A policy on held-out prompts: PPO's settings, and which policy it is. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aligner_lib.config.kind import JobKind, MetricGroup, metric
from aligner_lib.config.schema import PretrainedCheckpoint, at_least, setting
from aligner_lib.config.training import TIMERS
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


FIGURES = MetricGroup(
    "Evaluation",
    "A policy on held-out prompts; nothing is trained.",
    (
        metric(
            "evaluation/rewards evaluation/rewards_std",
            "",
            "mean and standard deviation of the rewards of the responses",
            "the SFT policy's, on the same prompts with the same reward model",
        ),
        metric(
            "evaluation/rewards_failed",
            "",
            "share of responses without a reward, because it raised, hung, died or was NaN, or because an environment gave no "
            "prompt. Where it is 1, the figures of rewards are null",
            "0",
        ),
        metric(
            "evaluation/response_lengths evaluation/prompt_lengths evaluation/generation_length",
            "tokens",
            "mean tokens of prompt and response together, of the prompt, and of the response",
        ),
        metric(
            "evaluation/fraction_of_samples_properly_ended",
            "",
            "share of responses that end by themselves",
            "near 1",
        ),
        metric(
            "evaluation/rollout_size",
            "responses",
            "number of responses",
            "",
            "`model.ppo.num_val_samples`, `evaluation.num_generations_per_prompt`",
        ),
        metric(
            "evaluation/tokens",
            "tokens",
            "tokens of all prompts and responses, padding not",
        ),
        metric(
            "evaluation/kl evaluation/kl_std",
            "nats a token",
            "mean and standard deviation over response tokens of the *signed* log π − log π_ref, in nats. The mean "
            "estimates the KL a token, as `train_rollouts/kl` does in training",
            "0 for the reference itself",
        ),
    ),
)

ENVIRONMENTS = MetricGroup(
    "Environments of an evaluation",
    "Only with `model.environments`: as in training, for each environment NAME.",
    (
        metric("evaluation_environments/*/reward", "", "mean reward that the environment NAME gave"),
        metric("evaluation_environments/*/samples", "responses", "number of responses that it judged"),
        metric("evaluation_environments/*/failed", "samples", "prompts and responses without a reward", "0"),
        metric("evaluation_environments/*/turns", "turns", "mean number of the policy's turns in an episode"),
        metric("evaluation_environments/*/*", "", "what the environment measures beside the reward"),
    ),
)

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
    metrics=(FIGURES, ENVIRONMENTS, replace(TIMERS, metrics=TIMERS.metrics[1:])),
    stage=9,
)
