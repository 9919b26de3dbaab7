"""PPO: its settings (the actor's, and the critic's where it shares the actor's processes), metrics, charts and alarms."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from aligner_lib.config.kind import Component, JobKind, MetricGroup, chart, metric
from aligner_lib.config.kinds.critic import CriticConfig
from aligner_lib.config.schema import (
    NO_TEST_SPLIT,
    PROBABILITY,
    Bound,
    Data,
    ExpManager,
    Loop,
    Model,
    Optim,
    PretrainedCheckpoint,
    Sched,
    Trainer,
    above,
    at_least,
    setting,
    within,
)
from aligner_lib.config.training import TIMERS
from aligner_lib.errors import ConfigError
from aligner_lib.run_folder import alarms

if TYPE_CHECKING:
    from omegaconf import DictConfig

_TEMPERATURE = Bound(
    lambda value: value > 0, "above 0; for the likeliest token each time set use_greedy=True"
)


@dataclass
class SamplingParams:
    """How tokens are drawn."""

    use_greedy: bool = False
    temperature: float = setting(1.0, _TEMPERATURE)
    top_k: int = setting(0, at_least(0))  # 0: all tokens
    top_p: float = setting(1.0, PROBABILITY)  # 1: all tokens
    end_strings: list[str] = setting([])  # a response also ends with one of these


@dataclass
class LengthParams:
    """How long a response is, in tokens."""

    max_length: int | None = setting(None, at_least(1))  # tokens a response; None: half of encoder_seq_length
    min_length: int = setting(1, at_least(0))  # the stop token can't come before


@dataclass
class ActorPPO:
    """model.ppo: rollouts, and the loss that learns from them."""

    num_rollout_samples: int = setting(512, at_least(1))  # responses a PPO step
    rollout_micro_batch_size: int = setting(8, at_least(1))  # prompts generated together
    num_val_samples: int | None = setting(None, at_least(1))  # held-out prompts a validation; None: all
    val_rollout_micro_batch_size: int | None = setting(None, at_least(1))  # None: rollout_micro_batch_size
    # sequences in one forward; None: model.micro_batch_size
    logprob_forward_micro_batch_size: int | None = setting(None, at_least(1))
    ratio_eps: float = setting(0.2, above(0))  # the policy ratio is clipped to [1 - eps, 1 + eps]
    entropy_bonus: float = setting(0.0, at_least(0))  # weight of the entropy in the loss
    offload_adam_states: bool = True  # Adam's moments wait on the CPU while nothing is trained
    combine_rm_and_critic_server: bool = True  # False: rewards come from remote_critic_rm.reward_model
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    length_params: LengthParams = field(default_factory=LengthParams)


@dataclass
class ActorModel(Model):
    """model of the actor."""

    ppo: ActorPPO = field(default_factory=ActorPPO)
    data: Data = field(default_factory=Data)
    optim: Optim = field(default_factory=lambda: Optim(lr=9e-7, sched=Sched(min_lr=9e-8)))


@dataclass
class PPOLoop(Loop):
    """trainer.ppo: the loop, the KL penalty and the advantages."""

    # weight of the KL to the reference in the reward of each token
    initial_policy_kl_penalty: float = setting(0.01, at_least(0))
    use_absolute_kl: bool = True
    discount_factor: float = setting(1.0, within(0, 1))
    gae_lambda: float = setting(0.95, within(0, 1))
    normalize_advantages: bool = True
    critic_warmup_steps: int = setting(0, at_least(0))  # first steps, which train only the critic
    missing_eos_penalty: float = setting(
        0.0, at_least(0)
    )  # taken from the reward of a response that was cut off
    # leave responses that were cut off out of the actor's loss and normalisation, as NeMo-Aligner does
    mask_truncated_responses: bool = False
    # of init_policy_kl in nats; beyond it the run ends with an error, and a checkpoint; None: no bound
    max_init_policy_kl: float | None = setting(None, above(0))


@dataclass
class PPOTrainerGroup(Trainer):
    """trainer of the actor's job."""

    ppo: PPOLoop = field(default_factory=PPOLoop)


@dataclass
class Address:
    """Where a server is: nowhere by default."""

    # host name or address of a job of its own; neither ip nor run: in the actor's process (see has_remote_critic)
    ip: str | None = None
    port: int = setting(5556, within(1, 65535))
    run: str | None = None  # in place of ip and port: that job's run folder, which says both


@dataclass
class RemoteCriticRM:
    """The servers of a critic, and of a reward model, in jobs of their own."""

    critic: Address = field(default_factory=Address)
    reward_model: Address = field(default_factory=lambda: Address(port=5555))
    # requests are padded to this length; None: to the next of a few lengths
    pad_to_length: int | None = setting(None, at_least(1))
    timeout: float = setting(600.0, above(0))  # seconds that the actor waits for a server that is not there


@dataclass
class PPOConfig:
    """All settings of `aligner ppo`."""

    trainer: PPOTrainerGroup = field(default_factory=PPOTrainerGroup)
    # the SFT policy
    pretrained_checkpoint: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    model: ActorModel = field(default_factory=ActorModel)
    remote_critic_rm: RemoteCriticRM = field(default_factory=RemoteCriticRM)
    # used where remote_critic_rm.critic has neither ip nor run
    critic: CriticConfig = field(default_factory=CriticConfig)
    exp_manager: ExpManager = field(default_factory=ExpManager)


# ---- what several settings have to satisfy together ------------------------------------------------------------------


def has_remote_critic(config: DictConfig) -> bool:
    """Whether PPO's critic is a job of its own: where one is named; or where something is set for one and no model is given
    for a critic here, as in NeMo-Aligner's commands, which mean a server on this machine."""
    remote, here = config.remote_critic_rm, config.critic.pretrained_checkpoint.restore_from_path
    named = remote.critic.ip is not None or remote.critic.run is not None
    return named or (remote.pad_to_length is not None and here is None)


def val_rollout_micro_batch_size(config: DictConfig) -> int:
    """Prompts generated together in a validation."""
    rollout = config.model.ppo
    return rollout.val_rollout_micro_batch_size or rollout.rollout_micro_batch_size


def check_rollouts(config: DictConfig) -> None:
    """A step's responses are whole global batches, and prompt and response fit into the model's positions."""
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


def check_servers(config: DictConfig) -> None:
    """A reward model apart from the critic's server has to be somewhere."""
    remote = config.remote_critic_rm
    apart = has_remote_critic(config) and not config.model.ppo.combine_rm_and_critic_server
    if apart and remote.reward_model.ip is None and remote.reward_model.run is None:
        raise ConfigError(
            "model.ppo.combine_rm_and_critic_server=False: rewards come from a server of their own, so set "
            "remote_critic_rm.reward_model.ip and port (or run), and start `aligner serve-rm`"
        )


def _check_checkpoints(config: DictConfig) -> None:
    if has_remote_critic(config) and not config.exp_manager.create_checkpoint_callback:
        raise ConfigError(
            "exp_manager.create_checkpoint_callback=False: when a critic in a job of its own dies, both jobs go back to "
            "their newest common checkpoint, and without any to the start; leave it True, and raise "
            "trainer.ppo.save_interval for fewer checkpoints"
        )


def without_servers(config: DictConfig, why: str) -> dict[str, str]:
    """What does nothing where critic and reward model are in this process. why: nothing is asked of a server."""
    shared = "in one process the critic has the actor's; leave this out, or put it into a job of its own."
    of_servers = ("port", "address", "actor_timeout", "combine_rm_and_critic_server")
    found = dict.fromkeys(
        (
            "remote_critic_rm.",
            "model.ppo.combine_rm_and_critic_server",
            *(f"critic.trainer.ppo.{name}" for name in of_servers),
        ),
        why,
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
            found[f"critic.{name}"] = shared
    return found | {"critic.exp_manager.": shared} | NO_TEST_SPLIT


def _without_effect(config: DictConfig) -> dict[str, str]:
    if not has_remote_critic(config):
        return without_servers(
            config,
            "critic and reward model are in this process; remote_critic_rm.critic.ip or .run puts them into another job.",
        )
    found = {"critic.": "the critic is a job of its own: give it this there, without `critic.`."}
    if config.model.ppo.combine_rm_and_critic_server:
        found["remote_critic_rm.reward_model."] = (
            "the critic's server gives the rewards, too; model.ppo.combine_rm_and_critic_server=False asks another one."
        )
    return found | NO_TEST_SPLIT


# ---- metrics --------------------------------------------------------------------------------------------------------

RESPONSES = MetricGroup(
    "PPO, responses",
    "`train_rollouts/` is over the step's rollout, before its updates. `val_rollouts/` is over "
    "`model.ppo.num_val_samples` held-out prompts, sampled with the same random numbers at every validation.",
    (
        metric(
            "train_rollouts/rewards val_rollouts/rewards",
            "",
            "mean reward of a response, without the KL penalty. 0 is the average of the reward model's validation "
            "pairs, 1 their standard deviation",
            "rises slowly; the held-out one follows",
            "flat: `model.optim.lr` up. Up fast while length or KL drifts: `trainer.ppo.initial_policy_kl_penalty` up",
        ),
        metric(
            "train_rollouts/rewards_std val_rollouts/rewards_std",
            "",
            "standard deviation of the rewards over responses",
            "well above 0: without differences nothing can be learnt",
            "`temperature`, the reward model",
        ),
        metric(
            "train_rollouts/generation_length val_rollouts/generation_length",
            "tokens",
            "mean response tokens, the stop token included",
            "a slow drift. A jump up or down with rising rewards is the commonest sign of a gamed reward model",
            "`initial_policy_kl_penalty`, `length_params`",
        ),
        metric(
            "train_rollouts/prompt_lengths val_rollouts/prompt_lengths",
            "tokens",
            "mean prompt tokens",
            "varies with the prompts drawn; constant in validation",
        ),
        metric(
            "train_rollouts/response_lengths val_rollouts/response_lengths",
            "tokens",
            "mean tokens of prompt and response together; NeMo-Aligner's name for where the response ends",
            "",
            "`model.encoder_seq_length`",
        ),
        metric(
            "train_rollouts/fraction_of_samples_properly_ended val_rollouts/fraction_of_samples_properly_ended",
            "",
            "share of responses that end with the stop token or an end string, before `max_length`",
            "near 1, or rising to it. With `mask_truncated_responses` only these train the actor",
            "`model.ppo.length_params.max_length`, `missing_eos_penalty`",
        ),
        metric(
            "train_rollouts/rollout_size val_rollouts/rollout_size",
            "responses",
            "number of responses",
            "",
            "`model.ppo.num_rollout_samples`, `num_val_samples`",
        ),
        metric(
            "train_rollouts/tokens val_rollouts/tokens",
            "tokens",
            "tokens of all prompts and responses, padding not",
        ),
    ),
)
TOKENS = MetricGroup(
    "PPO, tokens and bookkeeping",
    "Means and deviations are over the response tokens of the rollout, unless they say otherwise.",
    (
        metric(
            "train_rollouts/kl",
            "nats a token",
            "mean of log π − log π_ref, which estimates the KL a token. π is the policy that generated, π_ref the one "
            "that PPO started from. `evaluation/kl` is the same on other prompts",
            "exactly 0 at step 1, then grows slowly. [The alarm](widgets.md#alarms) is at 0.2; the smoke model goes "
            "beyond 1",
            "up too fast: `initial_policy_kl_penalty` up, `model.optim.lr` down",
        ),
        metric(
            "train_rollouts/init_policy_kl",
            "nats a token",
            "what the penalty takes, and NeMo-Aligner's figure: each response's mean of |log π − log π_ref| (with "
            "`use_absolute_kl=False` of the signed difference), averaged over responses. Larger than `kl`, for there "
            "ups and downs cancel",
            "exactly 0 at step 1, then grows slowly",
            "`max_init_policy_kl` ends the run",
        ),
        metric(
            "train_rollouts/entropy",
            "nats a token",
            "mean entropy of the policy's next-token distribution, in nats, at the sampling temperature",
            "drifts slowly. Below 30 % of its start (the alarm) the policy no longer explores",
            "`model.ppo.entropy_bonus` up, `model.optim.lr` down",
        ),
        metric(
            "train_rollouts/rlhf_rewards",
            "",
            "mean over responses of the reward (less `missing_eos_penalty` where the end is missing) less `kl_coef` times "
            "the sum of the KL penalties of its tokens: what PPO really maximises",
            "rises. If it falls while `rewards` rises, the penalty outweighs the gain",
            "`initial_policy_kl_penalty`",
        ),
        metric(
            "train_rollouts/rewards_with_kl",
            "",
            "the same reward as a mean over each response's tokens, then over responses: NeMo-Aligner's figure",
            "about `rlhf_rewards` divided by the length of a response",
        ),
        metric(
            "train_rollouts/advantages_mean train_rollouts/advantages_std",
            "",
            "the advantages, before they are normalised",
            "the mean nears 0 as the critic learns",
            "`critic.model.optim.lr`",
        ),
        metric(
            "train_rollouts/returns_mean train_rollouts/returns_std",
            "",
            "advantages plus values: what the critic should predict",
            "the mean follows `rlhf_rewards`",
            "`discount_factor`, `gae_lambda`",
        ),
        metric(
            "train_rollouts/values_mean train_rollouts/values_std",
            "",
            "what the critic predicted",
            "the mean follows `returns_mean`",
            "`critic.model.optim.lr`, `critic_warmup_steps`",
        ),
        metric(
            "train_rollouts/explained_variance",
            "",
            "1 − Var(returns − values) / Var(returns): the share of the returns' differences that the critic foresaw. "
            "Absent where all returns are equal",
            "rises towards 1. At 0 a constant would do as well, below 0 better",
            "`critic.model.optim.lr`, `critic_warmup_steps`",
        ),
        metric(
            "train_rollouts/kl_coef",
            "",
            "weight of the KL in this step's rewards",
            "",
            "`initial_policy_kl_penalty`",
        ),
        metric(
            "train_rollouts/consumed_samples",
            "responses",
            "responses generated for training so far",
        ),
        metric(
            "train_rollouts/epoch",
            "epochs",
            "`consumed_samples` over the number of training prompts",
            "above 1: prompts repeat",
            "`max_steps`, `max_epochs`",
        ),
    ),
)
ACTOR = MetricGroup(
    "PPO, actor",
    "Means over the response tokens (with `mask_truncated_responses`: of properly ended responses), one mean for each "
    "global batch, then over the step's global batches. Absent during `critic_warmup_steps`, and where no token was "
    "learnt from: then no optimiser step is taken either.",
    (
        metric(
            "train_optim/loss",
            "",
            "mean of max(−A·r, −A·clip(r, 1−ε, 1+ε)) less `scaled_entropy`",
            "near 0 and noisy: with normalised advantages and one update a rollout it is the mean of −A. Not a measure"
            " of progress; look at rewards",
        ),
        metric(
            "train_optim/ppo_ratio",
            "",
            "mean ratio r = π_now / π_old of a token, π_old being the policy as the step began",
            "close to 1",
            "`model.optim.lr`",
        ),
        metric(
            "train_optim/ppo_ratio_clamped",
            "",
            "the same with r clipped to 1 ± `ratio_eps`",
            "close to `ppo_ratio`",
            "`model.ppo.ratio_eps`",
        ),
        metric(
            "train_optim/clip_fraction",
            "",
            "share of tokens whose ratio is clipped",
            "0 with one update a rollout; below 0.3",
            "`model.optim.lr` down, `model.global_batch_size` up",
        ),
        metric(
            "train_optim/first_ppo_ratio",
            "",
            "`ppo_ratio` in the first global batch, before any update",
            "1, within 0.02. Anything else: two passes with the same weights over the same tokens (the rollout's "
            "log-probabilities, and training's) disagree, and no other figure can be trusted",
            "precision, masks; nothing to tune",
        ),
        metric(
            "train_optim/scaled_entropy",
            "nats a token",
            "`entropy_bonus` times the mean entropy, in nats",
            "0 without a bonus",
            "`model.ppo.entropy_bonus`",
        ),
        metric(
            "train_optim/grad_norm",
            "",
            "norm of the actor's whole gradient, before it is clipped",
            "steady or falling",
            "`model.optim.lr`, `gradient_clip_val`",
        ),
        metric(
            "train_optim/lr",
            "",
            "the actor's learning rate, mean over the step's updates",
            "",
            "`model.optim`",
        ),
        metric(
            "train_optim/optim_step",
            "optimiser steps",
            "the actor's optimiser steps so far, on which its learning rate depends; the critic's warm-up takes none",
        ),
    ),
)
CRITIC = MetricGroup(
    "PPO, critic",
    "Means over the response tokens of all responses, ended or not, for each global batch; then over the "
    "step's global batches.",
    (
        metric(
            "critic/loss",
            "",
            "mean of ½·max((v − R)², (v_held − R)²), where v_held stays within `loss_clip_val` of the rollout's value",
            "falls, and jumps when the rewards do",
            "`critic.model.optim.lr`, `critic.model.loss_clip_val`",
        ),
        metric(
            "critic/grad_norm",
            "",
            "norm of the critic's whole gradient, before it is clipped",
            "steady",
            "`critic.trainer.ppo.gradient_clip_val`",
        ),
        metric(
            "critic/lr",
            "",
            "the critic's learning rate, mean over the step's updates",
            "",
            "`critic.model.optim`",
        ),
    ),
)
PPO_TIMERS = MetricGroup(
    "Seconds of a PPO step",
    "Parts of `timers/step_time`.",
    (
        metric(
            "timers/rollout_time",
            "s",
            "PPO: generation, values, rewards and log-probabilities. Contains the next four; the rest, where the critic is in "
            "the same process, is rewards and values",
        ),
        metric(
            "timers/generate",
            "s",
            "generating the responses",
            "",
            "`model.ppo.rollout_micro_batch_size`",
        ),
        metric(
            "timers/logprobs",
            "s",
            "log-probabilities and entropies under the policy",
            "",
            "`model.ppo.logprob_forward_micro_batch_size`",
        ),
        metric(
            "timers/init_logprobs",
            "s",
            "log-probabilities under the reference",
        ),
        metric(
            "timers/critic_wait",
            "s",
            "waiting for values and rewards that are not there yet; about 0 where the critic is in the same process",
        ),
        metric(
            "timers/train_time",
            "s",
            "PPO: all updates of actor and critic. Contains the next one",
            "",
            "`model.micro_batch_size`",
        ),
        metric(
            "timers/critic_train_wait",
            "s",
            "waiting for the critic's training to end, once the actor's has; about 0 where the critic is in the same "
            "process",
        ),
    ),
)

CHARTS = (
    chart(
        "Reward",
        ("train", "train_rollouts/rewards"),
        ("validation", "val_rollouts/rewards"),
        hint="Rises. If it rises while KL and length run away, the policy is gaming the reward model.",
    ),
    chart(
        "KL to the reference",
        ("train", "train_rollouts/kl"),
        hint="0 before the first update, then grows slowly and levels off.",
    ),
    chart(
        "Response length",
        ("train", "train_rollouts/generation_length"),
        ("validation", "val_rollouts/generation_length"),
        hint="Drifts a little. A jump to the limit means that responses no longer end.",
    ),
    chart(
        "Responses that ended",
        ("train", "train_rollouts/fraction_of_samples_properly_ended"),
        ("validation", "val_rollouts/fraction_of_samples_properly_ended"),
        hint="Near 1, or rising to it: the others were cut off at max_length.",
    ),
    chart(
        "Probability ratio",
        ("ratio", "train_optim/ppo_ratio"),
        ("clamped", "train_optim/ppo_ratio_clamped"),
        hint="Stays close to 1; exactly 1 before the first update.",
    ),
    chart("Actor loss", ("actor", "train_optim/loss"), hint="Hovers around 0: it is no measure of progress."),
    chart(
        "What the critic explains",
        ("explained variance", "train_rollouts/explained_variance"),
        hint="Rises towards 1. At 0 a constant would predict the returns as well.",
    ),
)

KIND = JobKind(
    name="ppo",
    command="ppo",
    summary="PPO: actor, reference, critic and reward model.",
    schema=PPOConfig,
    build="aligner_lib.jobs.build_trainers:ppo",
    models={
        "pretrained_checkpoint.restore_from_path": "policy",
        "critic.pretrained_checkpoint.restore_from_path": "reward_model",
    },
    data={
        "model.data.data_prefix.train": ["hh/train_prompts.jsonl"],
        "model.data.data_prefix.validation": ["hh/test_prompts.jsonl"],
    },
    components={
        "critic": Component("critic", "critic.", "critic", found_by="remote_critic_rm.critic.run"),
        "actor": Component("ppo"),
    },
    checks=(check_rollouts, check_servers, _check_checkpoints),
    without_effect=_without_effect,
    shares_cores=has_remote_critic,
    metrics=(RESPONSES, TOKENS, ACTOR, CRITIC, TIMERS, PPO_TIMERS),
    charts=CHARTS,
    alarms=(
        alarms.not_finite,
        alarms.kl,
        alarms.reward_hacking,
        alarms.entropy,
        alarms.clipping,
        alarms.first_ratio,
        alarms.endless,
    ),
    stage=3,
)
