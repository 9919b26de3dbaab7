"""The evaluation of a policy on held-out prompts: models, prompts and settings of the responses. Nothing is trained."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aligner_lib.config.kind import JobKind
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.config.schema import (
    NO_TEST_SPLIT,
    Bound,
    ForwardModel,
    ForwardPass,
    Precision,
    PretrainedCheckpoint,
    RunRecords,
    Trainer,
    at_least,
    setting,
)
from aligner_lib.kinds.critic.settings import ScoringSettings
from aligner_lib.kinds.policy_gradient.settings import (
    PromptSources,
    ResponseSettings,
    check_comparisons,
    check_generation,
    check_lengths,
    judged_by_programs,
    unused_data_settings,
    unused_generation_settings,
    unused_sampling_settings,
)
from aligner_lib.kinds.ppo.settings import KIND as PPO

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class EvaluatedModel(PromptSources, ForwardModel):
    """model of an evaluation: the policy and its reference."""

    ppo: ResponseSettings = field(default_factory=ResponseSettings)
    """The group has the same name as in `aligner ppo`."""


@dataclass
class JudgeTrainer(Precision):
    """critic.trainer of an evaluation."""

    ppo: ScoringSettings = field(default_factory=ScoringSettings)


@dataclass
class JudgeConfig:
    """critic of an evaluation: the reward model, which judges responses that no program judges. The group has the same name as
    in `aligner ppo`."""

    trainer: JudgeTrainer = field(default_factory=JudgeTrainer)
    pretrained_checkpoint: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    model: ForwardPass = field(default_factory=ForwardPass)


RUNS_OWN = ("checkpoints", "control", "exporters", "functions", "job", "tensorboard", "vllm", "wandb")
FOLDER_NAMES = Bound(
    lambda names: all(re.fullmatch(r"\w[\w-]*", name) and name not in RUNS_OWN for name in names),
    f"names of letters, digits, '_' and '-', because each is a folder's name, and none of {', '.join(RUNS_OWN)}",
)


@dataclass
class EvaluationSettings:
    """evaluation: the size of an evaluation, and its policies."""

    num_generations_per_prompt: int = setting(1, at_least(1))
    """Responses to each prompt."""
    policies: dict[str, str] = setting({}, FOLDER_NAMES)
    """Several policies in one job, as in {sft: runs/sft, ppo: runs/ppo}, in place of policy.restore_from_path. Each policy has a run
    folder of its name inside the job's run folder."""


@dataclass
class EvaluateConfig:
    """All settings of `aligner evaluate`."""

    trainer: Trainer = field(default_factory=Trainer)
    pretrained_checkpoint: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    """The reference of the KL."""
    policy: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    """The policy to evaluate, unless evaluation.policies names several."""
    model: EvaluatedModel = field(default_factory=EvaluatedModel)
    critic: JudgeConfig = field(default_factory=JudgeConfig)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    exp_manager: RunRecords = field(default_factory=RunRecords)


def _without_effect(config: DictConfig) -> dict[str, str]:
    unused = {
        **unused_generation_settings(config),
        **unused_sampling_settings(config),
        **unused_data_settings(config),
        **NO_TEST_SPLIT,
        "model.data.data_prefix.train": "an evaluation reads only data_prefix.validation.",
        "critic.model.cuda_graphs": "the reward model generates no responses.",
        "model.data.validation_fraction": "an evaluation reads only data_prefix.validation.",
    }
    if config.model.ppo.val_rollout_micro_batch_size is not None:
        unused["model.ppo.rollout_micro_batch_size"] = (
            "model.ppo.val_rollout_micro_batch_size is the number of prompts in a batch."
        )
    if config.evaluation.policies:
        unused["policy."] = "evaluation.policies names the policies."
    if judged_by_programs(config):
        unused["critic."] = "programs judge all responses, and no reward model does."
    return unused


KIND = JobKind(
    name="evaluate",
    command="evaluate",
    summary="A policy on held-out prompts: rewards, lengths, KL to its reference.",
    schema=EvaluateConfig,
    build="aligner_lib.kinds.evaluate.build:prepare",
    run="aligner_lib.jobs.run:run_evaluation",
    defaults="ppo",
    models=PPO.models,
    data={"model.data.data_prefix.validation": ["hh/test_prompts.jsonl"]},
    checks=(check_comparisons, check_lengths, check_generation),
    without_effect=_without_effect,
    stage=9,
    **declared_in(Path(__file__).parent),
)
