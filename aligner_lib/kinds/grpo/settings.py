"""GRPO and its relatives: settings, metrics, charts and alarms. Groups of responses to the same prompt replace the critic."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aligner_lib.algorithms.objective import (
    AGGREGATIONS,
    BASELINES,
    CLIPPINGS,
    KLS,
    NORMALIZERS,
    PRESETS,
    RATIOS,
    SCALES,
    Objective,
)
from aligner_lib.config.kind import Component, JobKind, TrainedModel
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.config.schema import (
    NO_TEST_SPLIT,
    Optim,
    PretrainedCheckpoint,
    Sched,
    Trainer,
    above,
    at_least,
    one_of,
    setting,
    within,
)
from aligner_lib.config.training import ContinuedTrainingConfig
from aligner_lib.errors import ConfigError
from aligner_lib.kinds.policy_gradient.settings import (
    POLICY_FUNCTIONS,
    RemoteServer,
    RolloutLoop,
    RolloutModel,
    RolloutSettings,
    ServerRequests,
    check_checkpoints,
    check_comparisons,
    check_generation,
    check_learning,
    check_lengths,
    check_target_kl,
    fitting_batch_sizes,
    judged_by_programs,
    unused_settings,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

_NAMES = [name for name, preset in PRESETS.items() if preset.baseline != "critic"]


@dataclass
class GroupedRollout(RolloutSettings):
    """model.grpo: rollouts in groups, and the training objective."""

    num_prompts_per_step: int = setting(32, at_least(1))
    """Prompts in a step."""
    num_generations_per_prompt: int = setting(8, at_least(2))
    """Responses to each prompt. Together they form a group."""
    objective: str = setting("grpo", one_of(*_NAMES))
    """The named objective (see docs/objectives.md). Each of the next nine settings changes a switch of the objective; null
    keeps the switch."""
    baseline: str | None = setting(None, one_of(*(name for name in BASELINES if name != "critic")))
    """The value that is subtracted from a reward."""
    scale: str | None = setting(None, one_of(*SCALES))
    """The divisor of the advantages."""
    aggregation: str | None = setting(None, one_of(*AGGREGATIONS))
    """Several rewards: normalise their weighted sum, or normalise each of them in its group and then add them."""
    ratio: str | None = setting(None, one_of(*RATIOS))
    """The probability ratio of the policy now and at the step's begin: of each token, of a whole response, or no ratio."""
    clipping: str | None = setting(None, one_of(*CLIPPINGS))
    """pessimistic: the worse of the clipped and the unclipped term; stop_gradient: the clipped ratio is a constant weight."""
    clip_low: float | None = setting(None, above(0))
    """The ratio is clipped below 1 less this number."""
    clip_high: float | None = setting(None, above(0))
    """The ratio is clipped above 1 plus this number."""
    normalizer: str | None = setting(None, one_of(*NORMALIZERS))
    """The mean of the tokens' losses: over each response and then over responses, over all tokens, or a sum divided by a
    constant."""
    kl: str | None = setting(None, one_of(*KLS))
    """The KL to the reference: an estimator in the loss (k1, k2, k3), a part of the reward, or none."""
    max_rollouts_per_step: int | None = setting(None, at_least(1))
    """The largest number of rollouts in a step. Groups with equal rewards are left out, and rollouts repeat until enough groups
    remain. null: 3 with dapo, else 1."""
    teacher: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    """distill: the policy whose log-probabilities are learned. The teacher needs the same tokenizer."""


@dataclass
class GRPOModel(RolloutModel):
    """model of a GRPO job."""

    grpo: GroupedRollout = field(default_factory=GroupedRollout)
    optim: Optim = field(default_factory=lambda: Optim(lr=1e-6, sched=Sched(name="constant")))


@dataclass
class GRPOTrainerGroup(Trainer):
    """trainer of a GRPO job."""

    grpo: RolloutLoop = field(default_factory=lambda: RolloutLoop(use_absolute_kl=False))


@dataclass
class RewardModelHere:
    """The reward model in this process. A reward model in a separate job has the settings of `aligner serve-rm`."""

    rm_model_file: str | None = None
    """A model folder, checkpoint or run folder."""


@dataclass
class RemoteRM(ServerRequests, RemoteServer):
    """The server of a reward model in a separate job."""

    port: int = setting(5555, within(1, 65535))
    """The server's port."""


FUNCTIONS = POLICY_FUNCTIONS | {
    "advantages": "aligner_lib.algorithms.policy_gradient:grpo_advantages",
    "kl": "aligner_lib.algorithms.policy_gradient:kl_loss",
}


@dataclass
class GRPOConfig(ContinuedTrainingConfig):
    """All settings of `aligner grpo`."""

    trainer: GRPOTrainerGroup = field(default_factory=GRPOTrainerGroup)
    model: GRPOModel = field(default_factory=GRPOModel)
    reward_model: RewardModelHere = field(default_factory=RewardModelHere)
    """Judges responses to the prompts of model.data, if no environment does."""
    remote_rm: RemoteRM = field(default_factory=RemoteRM)


def objective_of(config: DictConfig) -> Objective:
    """The named objective with the switches that are set. A user's function for advantages replaces the baseline and the
    scale."""
    grpo = config.model.grpo
    switches = {switch.name: grpo[switch.name] for switch in fields(Objective)}
    objective = replace(
        PRESETS[grpo.objective], **{name: value for name, value in switches.items() if value is not None}
    )
    if "advantages" in (config.get("functions") or {}) and objective.baseline != "teacher":
        return replace(objective, baseline="group_mean", scale="group_std")
    return objective


def rollouts_of_a_step(config: DictConfig) -> int:
    """The largest number of rollouts in a step. More than 1 means dynamic sampling."""
    grpo = config.model.grpo
    if not objective_of(config).compares_within_groups:
        return 1  # groups with equal rewards teach as much as others
    return grpo.max_rollouts_per_step or (3 if grpo.objective == "dapo" else 1)


def has_remote_rm(config: DictConfig) -> bool:
    """Whether the reward model runs in a separate job."""
    return config.remote_rm.ip is not None or config.remote_rm.run is not None


def _check_groups(config: DictConfig) -> None:
    """Check that each global batch consists of whole groups, and a step's responses of whole global batches."""
    grpo, batch = config.model.grpo, config.model.global_batch_size
    responses = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
    if batch % grpo.num_generations_per_prompt or responses % batch:
        raise ConfigError(
            f"model.global_batch_size={batch} must consist of whole groups of "
            f"model.grpo.num_generations_per_prompt={grpo.num_generations_per_prompt} responses, and to divide the "
            f"{responses} responses of a step (model.grpo.num_prompts_per_step={grpo.num_prompts_per_step} times as "
            f"many): set {fitting_batch_sizes(config, responses)}"
        )
    from aligner_lib.config.validation import copies_of_the_model

    copies, group = copies_of_the_model(config), grpo.num_generations_per_prompt
    if rollouts_of_a_step(config) > 1 and group % copies:
        raise ConfigError(
            f"dynamic sampling needs a part of every group on each of the {copies} copies of the model: set "
            f"model.grpo.num_generations_per_prompt={group} to a multiple of {copies}, or max_rollouts_per_step=1"
        )


def _check_teacher(config: DictConfig) -> None:
    teacher, learns = config.model.grpo.teacher.restore_from_path, objective_of(config).baseline == "teacher"
    if learns and not teacher:
        raise ConfigError(
            "model.grpo.baseline=teacher, as in objective=distill, learns from a teacher: set "
            "model.grpo.teacher.restore_from_path to a policy's folder"
        )
    if learns and objective_of(config).kl == "reward":
        raise ConfigError(
            "model.grpo.kl=reward with baseline=teacher: the policy learns from the teacher's log-probabilities, and from no "
            "reward that contains a KL; set model.grpo.kl=k1, k2, k3 or none"
        )


def _check_scale(config: DictConfig) -> None:
    """Check that advantages over the batch's mean are not divided by a group's deviation, which is 0 for equal rewards."""
    objective = objective_of(config)
    if (objective.baseline, objective.scale) == ("batch_mean", "group_std"):
        raise ConfigError(
            "model.grpo.scale=group_std with baseline=batch_mean: a group of equal rewards has the deviation 0, and would get "
            "advantages of thousands; set model.grpo.scale=batch_std or none"
        )


def _check_kl(config: DictConfig) -> None:
    """Check the weight of the KL, if the objective has a KL."""
    if objective_of(config).kl != "none":
        check_target_kl(config)


def _check_aggregation(config: DictConfig) -> None:
    """Check that rewards which are normalised each within the group have no other baseline, scale or KL penalty."""
    objective = objective_of(config)
    given = {"baseline": objective.baseline, "scale": objective.scale}
    if objective.aggregation != "normalize_then_sum":
        return
    if given != {"baseline": "group_mean", "scale": "group_std"} or objective.kl == "reward":
        switches = ", ".join(f"{name}={value}" for name, value in {**given, "kl": objective.kl}.items())
        raise ConfigError(
            f"model.grpo.aggregation=normalize_then_sum with {switches}: each reward is normalised by its group's mean and standard "
            "deviation, and the KL is no such reward; set model.grpo.baseline=group_mean, model.grpo.scale=group_std and "
            "model.grpo.kl=k3 or none"
        )


def _check_checkpoints(config: DictConfig) -> None:
    check_checkpoints(config, has_remote_rm(config), "a reward model")


def _check_used_functions(config: DictConfig) -> None:
    """Check that the objective calls every user function in the settings."""
    objective = objective_of(config)
    idle = {
        "kl": not objective.kl_in_loss and f"kl={objective.kl}: the loss has no KL",
        "advantages": objective.baseline == "teacher" and "baseline=teacher: rewards are not compared",
        "loss": (objective.ratio == "none" or objective.clipping != "pessimistic")
        and f"ratio={objective.ratio} and clipping={objective.clipping}: training does not minimise the clipped loss",
    }
    for name, why in idle.items():
        if why and name in config.functions:
            raise ConfigError(
                f"functions.{name}: model.grpo.objective={config.model.grpo.objective} has {why}: leave the function "
                "out, or choose another objective"
            )


def _without_effect(config: DictConfig) -> dict[str, str]:
    objective, unused = objective_of(config), unused_settings(config) | NO_TEST_SPLIT
    if judged_by_programs(config):
        unused |= dict.fromkeys(
            ("reward_model.", "remote_rm."), "the environments' programs judge, and no reward model does."
        )
    elif has_remote_rm(config):
        unused["reward_model."] = (
            "the reward model is a job of its own: set this there, without `reward_model.`."
        )
    else:
        unused["remote_rm."] = (
            "the reward model is in this process; remote_rm.ip or .run puts it into another job."
        )
    if objective.baseline != "teacher":
        unused["model.grpo.teacher."] = f"baseline={objective.baseline} has no teacher."
    else:
        unused |= dict.fromkeys(
            (
                *(f"model.grpo.{name}" for name in ("scale", "aggregation", "max_rollouts_per_step")),
                *(f"trainer.grpo.{name}" for name in ("reward_clip", "missing_eos_penalty")),
                *(f"trainer.grpo.overlong_{name}" for name in ("buffer", "penalty")),
            ),
            "the policy learns from a teacher's log-probabilities and not from rewards.",
        )
    if "advantages" in config.functions:
        instead = "functions.advantages says what a reward is compared with, and what it is divided by."
        grpo = config.model.grpo
        unused |= {
            f"model.grpo.{name}": instead
            for name in ("baseline", "scale")
            if grpo[name] not in (None, getattr(objective, name))
        }
    if objective.kl == "none":
        unused["trainer.grpo.initial_policy_kl_penalty"] = (
            "this objective has no KL; model.grpo.kl adds a KL."
        )
        unused["trainer.grpo.target_kl"] = "this objective has no KL whose weight could follow a target."
    if objective.baseline == "batch_mean":
        unused["model.grpo.max_rollouts_per_step"] = (
            "rewards are compared with the batch's mean, so groups with equal rewards are not left out."
        )
    if objective.ratio == "none":
        unused |= dict.fromkeys(
            ("model.grpo.clip_low", "model.grpo.clip_high", "model.grpo.clipping"),
            "this objective has no ratio to clip.",
        )
    return unused


def _trains(config: DictConfig) -> tuple[TrainedModel, ...]:
    """The policy. The policy and its reference each score every text once, as do a teacher and, where no programs judge, a
    reward model."""
    model, grpo = config.model, config.model.grpo
    has_teacher = objective_of(config).baseline == "teacher"
    scored = 2 + has_teacher + (not judged_by_programs(config))
    batch = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
    rows = grpo.rollout_micro_batch_size
    return (
        TrainedModel(
            "actor",
            model.encoder_seq_length,
            model.micro_batch_size,
            batch,
            grpo.rollout_epochs,
            scored,
            rows,
        ),
    )


KIND = JobKind(
    name="grpo",
    command="grpo",
    summary="GRPO and its relatives: groups of responses, judged by a program or a reward model, without a critic.",
    schema=GRPOConfig,
    trains=_trains,
    functions=FUNCTIONS,
    build="aligner_lib.kinds.grpo.build:prepare",
    models={"pretrained_checkpoint.restore_from_path": "model"},
    components={
        "reward_model": Component(
            "reward_server",
            "reward_model.",
            "reward_model",
            "remote_rm.run",
            "rm_model_file",
            "inference.port",
        ),
        "actor": Component("grpo"),
    },
    checks=(
        _check_groups,
        check_comparisons,
        check_lengths,
        check_learning,
        _check_kl,
        check_generation,
        _check_teacher,
        _check_aggregation,
        _check_scale,
        _check_checkpoints,
        _check_used_functions,
    ),
    without_effect=_without_effect,
    stage=7,
    **declared_in(Path(__file__).parent),
)
