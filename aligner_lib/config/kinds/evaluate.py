"""A policy on held-out prompts: PPO's settings, and which policy it is. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from aligner_lib.config.kind import JobKind, MetricGroup, metric
from aligner_lib.config.kinds import ppo
from aligner_lib.config.schema import PretrainedCheckpoint
from aligner_lib.config.training import TIMERS


@dataclass
class EvaluateConfig(ppo.PPOConfig):
    """pretrained_checkpoint is the reference that KL is measured to."""

    policy: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)


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
            "evaluation/rollout_size evaluation/tokens",
            "responses",
            "number of responses; tokens of prompts and responses",
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

KIND = JobKind(
    name="evaluate",
    command="evaluate",
    summary="A policy on held-out prompts: rewards, lengths, KL to its reference.",
    schema=EvaluateConfig,
    build="aligner_lib.jobs.build_trainers:evaluation",
    run="aligner_lib.jobs.run:run_evaluation",
    defaults="ppo",
    models=ppo.KIND.models,
    data=ppo.KIND.data,
    hosts=ppo.KIND.hosts,
    checks=(ppo.check_rollouts, ppo.check_servers),
    notices=ppo.notices,
    metrics=(FIGURES, replace(TIMERS, metrics=TIMERS.metrics[1:])),
    stage=6,
)
