"""PPO: settings (the actor's, and the critic's if both share processes), metrics, charts and alarms."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from aligner_lib.config.kind import Component, JobKind, TrainedModel
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.config.schema import (
    NO_TEST_SPLIT,
    Optim,
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
from aligner_lib.kinds.critic.settings import CriticConfig
from aligner_lib.kinds.policy_gradient.settings import (
    POLICY_FUNCTIONS,
    RemoteServer,
    RolloutLoop,
    RolloutModel,
    RolloutSettings,
    ServerRequests,
    TrtLlm,
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


@dataclass
class ActorPPO(RolloutSettings):
    """model.ppo: rollouts and the loss."""

    num_rollout_samples: int = setting(512, at_least(1))
    """Responses in a PPO step."""
    num_generations_per_prompt: int = setting(1, at_least(1))
    """Responses to each prompt. The prompt is computed only once for all of them."""
    critic_rollout_epochs: int | None = setting(None, at_least(1))
    """Passes of the critic's updates over a step's rollout; null: rollout_epochs."""
    ratio_eps: float = setting(0.2, above(0))
    """The policy ratio is clipped to [1 - eps, 1 + eps]."""
    combine_rm_and_critic_server: bool = True
    """False: rewards come from remote_critic_rm.reward_model."""


@dataclass
class ActorModel(RolloutModel):
    """model of the actor."""

    ppo: ActorPPO = field(default_factory=ActorPPO)
    optim: Optim = field(default_factory=lambda: Optim(lr=9e-7, sched=Sched(min_lr=9e-8)))


@dataclass
class PPOLoop(RolloutLoop):
    """trainer.ppo: the loop, the KL penalty and the advantages."""

    discount_factor: float = setting(1.0, within(0, 1))
    """γ, the weight of the next token's reward and value."""
    gae_lambda: float = setting(0.95, within(0, 1))
    """λ of generalised advantage estimation. 1: no bias from the critic; 0: the least variance."""
    prompt_baseline: str = setting("none", one_of("none", "group_mean", "leave_one_out"))
    """The baseline to which the critic's output is added: the mean reward of all responses to the prompt, or of the other
    responses. With a baseline, the critic has to predict only the differences between responses to the same prompt. none: the
    values are the critic's output alone."""
    whiten_rewards: bool = False
    """Divide the token rewards, including the KL penalty, by their standard deviation."""
    normalize_advantages: bool = True
    """Give the step's advantages the mean 0 and the standard deviation 1."""
    critic_warmup_steps: int = setting(0, at_least(0))
    """The number of first steps that train only the critic."""


@dataclass
class PPOTrainerGroup(Trainer):
    """trainer of the actor's job."""

    ppo: PPOLoop = field(default_factory=PPOLoop)
    trt_llm: TrtLlm = field(default_factory=TrtLlm)
    """As trainer.ppo.trt_llm, because NeMo-Aligner's page on RLHF names trainer.trt_llm.model_type."""


@dataclass
class RemoteCriticRM(ServerRequests):
    """The servers of a critic and a reward model in separate jobs."""

    critic: RemoteServer = field(default_factory=RemoteServer)
    reward_model: RemoteServer = field(default_factory=lambda: RemoteServer(port=5555))


FUNCTIONS = POLICY_FUNCTIONS | {
    "token_rewards": "aligner_lib.algorithms.ppo:rewards_with_kl",
    "advantages": "aligner_lib.algorithms.ppo:advantages_and_returns",
    "normalize": "aligner_lib.algorithms.ppo:normalize",
    "trainer": "aligner_lib.trainers.loop:as_built",
}


@dataclass
class PPOConfig(ContinuedTrainingConfig):
    """All settings of `aligner ppo`."""

    trainer: PPOTrainerGroup = field(default_factory=PPOTrainerGroup)
    model: ActorModel = field(default_factory=ActorModel)
    remote_critic_rm: RemoteCriticRM = field(default_factory=RemoteCriticRM)
    critic: CriticConfig = field(default_factory=CriticConfig)
    """The critic in this process, if remote_critic_rm.critic has neither ip nor run."""


# ---- conditions on several settings together -------------------------------------------------------------------------


def has_remote_critic(config: DictConfig) -> bool:
    """Whether PPO's critic runs in a separate job: the settings contain its address or run folder.

    NeMo-Aligner's commands set only pad_to_length, without a model for a critic in this process, and thereby mean a server on
    this machine.
    """
    remote, here = config.remote_critic_rm, config.critic.pretrained_checkpoint.restore_from_path
    named = remote.critic.ip is not None or remote.critic.run is not None
    return named or (remote.pad_to_length is not None and here is None)


def critic_epochs(config: DictConfig) -> int:
    """Passes of the critic's updates over a step's rollout."""
    return config.model.ppo.critic_rollout_epochs or config.model.ppo.rollout_epochs


def _check_rollouts(config: DictConfig) -> None:
    """Check that each global batch consists of whole groups, and a step's responses of whole global batches."""
    ppo, batch = config.model.ppo, config.model.global_batch_size
    samples, group = ppo.num_rollout_samples, ppo.num_generations_per_prompt
    sizes = fitting_batch_sizes(config, samples)
    if batch % group:
        raise ConfigError(
            f"model.global_batch_size={batch} is not divisible by model.ppo.num_generations_per_prompt={group}: all "
            f"responses to a prompt must be in the same global batch: set {sizes or f'a multiple of {group}'}"
        )
    if samples % batch:
        also = f", or model.global_batch_size to {sizes}" if sizes else ""
        raise ConfigError(
            f"model.ppo.num_rollout_samples={samples} is not divisible by model.global_batch_size={batch}: each PPO step "
            f"trains on whole global batches: set num_rollout_samples to a multiple of {batch}{also}"
        )


def _check_baseline(config: DictConfig) -> None:
    """Check that prompts with a baseline have several responses, and that the baseline and the rewards have the same unit."""
    baseline, responses = config.trainer.ppo.prompt_baseline, config.model.ppo.num_generations_per_prompt
    if baseline != "none" and responses == 1:
        raise ConfigError(
            f"trainer.ppo.prompt_baseline={baseline} compares responses to the same prompt, but a prompt has a "
            "single response: set model.ppo.num_generations_per_prompt to 2 or more, or "
            "trainer.ppo.prompt_baseline=none"
        )
    if baseline != "none" and config.trainer.ppo.whiten_rewards:
        raise ConfigError(
            f"trainer.ppo.prompt_baseline={baseline} is a mean of unscaled rewards, but "
            "trainer.ppo.whiten_rewards=True divides rewards by their standard deviation: leave either setting out"
        )


def _check_servers(config: DictConfig) -> None:
    """Check that a reward model with a separate server has an address."""
    remote = config.remote_critic_rm
    combined = config.model.ppo.combine_rm_and_critic_server
    apart = has_remote_critic(config) and not combined and not judged_by_programs(config)
    if apart and remote.reward_model.ip is None and remote.reward_model.run is None:
        raise ConfigError(
            "model.ppo.combine_rm_and_critic_server=False: rewards come from a server of their own, so set "
            "remote_critic_rm.reward_model.ip and port (or run), and start `aligner serve-rm`"
        )


def _check_checkpoints(config: DictConfig) -> None:
    check_checkpoints(config, has_remote_critic(config), "a critic")


def _check_used_functions(config: DictConfig) -> None:
    if "normalize" in config.functions and not config.trainer.ppo.normalize_advantages:
        raise ConfigError(
            "functions.normalize: with trainer.ppo.normalize_advantages=False nothing is normalised: leave either "
            "setting out"
        )


def _without_servers(config: DictConfig) -> dict[str, str]:
    """The settings without effect if critic and reward model are in this process, with the reasons."""
    no_server = "critic and reward model are in this process; remote_critic_rm.critic.ip or .run puts them into another job."
    shared = (
        "in one process the critic has the actor's; leave this out, or put the critic into a job of its own."
    )
    of_servers = ("port", "address", "actor_timeout", "combine_rm_and_critic_server")
    unused = dict.fromkeys(
        (
            "remote_critic_rm.",
            "model.ppo.combine_rm_and_critic_server",
            *(f"critic.trainer.ppo.{name}" for name in of_servers),
        ),
        no_server,
    )
    of_the_actor = (
        "trainer.num_nodes",
        "trainer.devices",
        "trainer.distributed_timeout_minutes",
        "model.seed",
        "model.global_batch_size",
        "model.encoder_seq_length",
        "model.tensor_model_parallel_size",
        "model.pipeline_model_parallel_size",
    )
    for name in of_the_actor:
        if attrgetter(name)(config.critic) != attrgetter(name)(config):
            unused[f"critic.{name}"] = shared
    return unused | {
        "critic.exp_manager.": shared,
        "critic.model.cuda_graphs": "the critic generates no responses.",
    }


def _without_effect(config: DictConfig) -> dict[str, str]:
    unused = unused_settings(config) | NO_TEST_SPLIT
    if not has_remote_critic(config):
        return unused | _without_servers(config)
    unused["critic."] = "the critic is a job of its own: set this there, without `critic.`."
    if judged_by_programs(config):
        unused |= dict.fromkeys(
            ("model.ppo.combine_rm_and_critic_server", "remote_critic_rm.reward_model."),
            "the environments' programs judge, and no reward model does.",
        )
    elif config.model.ppo.combine_rm_and_critic_server:
        unused["remote_critic_rm.reward_model."] = (
            "the critic's server also gives the rewards; with model.ppo.combine_rm_and_critic_server=False another server does."
        )
    return unused


def _trains(config: DictConfig) -> tuple[TrainedModel, ...]:
    """Actor and critic. The reference and the reward model score each text once more."""
    model, ppo, critic = config.model, config.model.ppo, config.critic.model
    sequence, batch = model.encoder_seq_length, ppo.num_rollout_samples
    rows, epochs = ppo.rollout_micro_batch_size, critic_epochs(config)
    return (
        TrainedModel("actor", sequence, model.micro_batch_size, batch, ppo.rollout_epochs, 2, rows),
        TrainedModel("critic", sequence, critic.micro_batch_size, batch, epochs, 2, prefix="critic."),
    )


KIND = JobKind(
    name="ppo",
    command="ppo",
    summary="PPO: actor, reference, critic and reward model.",
    schema=PPOConfig,
    trains=_trains,
    functions=FUNCTIONS,
    build="aligner_lib.kinds.ppo.build:prepare",
    models={
        "pretrained_checkpoint.restore_from_path": "policy",
        "critic.pretrained_checkpoint.restore_from_path": "reward_model",
    },
    data={
        "model.data.data_prefix.train": ["hh/train_prompts.jsonl"],
        "model.data.data_prefix.validation": ["hh/test_prompts.jsonl"],
    },
    components={
        "critic": Component(
            "critic",
            "critic.",
            "critic",
            "remote_critic_rm.critic.run",
            "pretrained_checkpoint.restore_from_path",
            "trainer.ppo.port",
        ),
        "actor": Component("ppo"),
    },
    trains_server=has_remote_critic,
    checks=(
        _check_rollouts,
        _check_baseline,
        check_comparisons,
        check_lengths,
        check_learning,
        check_target_kl,
        check_generation,
        _check_servers,
        _check_checkpoints,
        _check_used_functions,
    ),
    without_effect=_without_effect,
    stage=3,
    **declared_in(Path(__file__).parent),
)
