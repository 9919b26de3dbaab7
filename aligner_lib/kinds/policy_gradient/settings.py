"""What the kinds that learn from their own responses share: PPO, with a critic, and GRPO, with groups.

Settings of the rollout, of the loop and of the objective, their metrics and charts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aligner_lib.config.environments import EnvironmentSettings
from aligner_lib.config.kind import MetricGroup, chart, metric
from aligner_lib.config.peft import Peft
from aligner_lib.config.schema import (
    PROBABILITY,
    Bound,
    Data,
    Loop,
    Model,
    above,
    at_least,
    one_of,
    setting,
    within,
)
from aligner_lib.config.training import LEAST_REWARD, LEAST_SHARE, TRAINING_FUNCTIONS
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
class Rollout:
    """model.ppo, model.grpo: what both share, rollouts and the loss that learns from them."""

    rollout_micro_batch_size: int = setting(8, at_least(1))  # prompts generated together
    rollout_epochs: int = setting(1, at_least(1))  # times that a step's rollout is learnt from
    num_val_samples: int | None = setting(None, at_least(1))  # held-out responses a validation; None: all
    val_rollout_micro_batch_size: int | None = setting(None, at_least(1))  # None: rollout_micro_batch_size
    val_use_greedy: bool = False  # a validation takes the likeliest token each time
    # sequences in one forward; None: model.micro_batch_size
    logprob_forward_micro_batch_size: int | None = setting(None, at_least(1))
    # compute the responses' log-probabilities once more before they are learnt from; False: generation's own are taken.
    # null: where a step needs them (a critic, a teacher, the KL in the reward, sampler_correction, vLLM's responses) or
    # where the sampler is cut (top_k, top_p, use_greedy, min_length), whose log-probabilities are not the policy's
    recompute_logprobs: bool | None = None
    entropy_bonus: float = setting(0.0, at_least(0))  # weight of the entropy in the loss
    # what makes up for a sampler that is not quite the trainer's policy: importance weights, truncated or masked at the cap
    sampler_correction: str = setting("none", one_of("none", "truncated", "masked"))
    sampler_correction_cap: float = setting(2.0, above(0))
    offload_adam_states: bool = True  # Adam's moments wait on the CPU while nothing is trained
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    length_params: LengthParams = field(default_factory=LengthParams)


@dataclass
class VllmCfg:
    """model.generation.vllm_cfg: the vLLM server that generates."""

    # http://HOST:PORT of one that is running; null: the run starts one on this machine, and ends it
    url: str | None = None
    executable: str = "vllm"  # the command that starts one: vLLM may have an environment of its own
    precision: str = setting("bfloat16", one_of("bfloat16", "float16", "float32"))
    tensor_parallel_size: int = setting(1, at_least(1))  # GPUs that share the server's weights
    gpu_memory_utilization: float = setting(0.5, PROBABILITY)  # of each GPU's memory; training has the rest
    enforce_eager: bool = False  # no CUDA graphs: slower, and ready sooner
    timeout: float = setting(600.0, above(0))  # seconds until a server that was started has to answer


@dataclass
class Generation:
    """model.generation: who generates the responses."""

    # megatron: the policy itself, in this process; vllm: a server that is given the policy's weights at every step
    backend: str = setting("megatron", one_of("megatron", "vllm"))
    vllm_cfg: VllmCfg = field(default_factory=VllmCfg)


@dataclass
class RolloutModel(Model):
    """model of a job that learns from its own responses."""

    generation: Generation = field(default_factory=Generation)
    # by name, with what each takes: see docs/environments.md; none: prompts from model.data, judged by the reward model
    environments: dict[str, EnvironmentSettings] = field(default_factory=dict)
    data: Data = field(default_factory=Data)
    peft: Peft = field(default_factory=Peft)


_NO_TRT_LLM = (
    "TensorRT-LLM is not used here; model.generation.backend=vllm has an engine of its own generate."
)


@dataclass
class TrtLlm:
    """trainer.ppo.trt_llm: NeMo-Aligner's other engine for generation."""

    enable: bool = setting(False, without_effect=_NO_TRT_LLM)
    reshard: bool = setting(True, without_effect=_NO_TRT_LLM)
    max_input_len: int = setting(1024, at_least(1), without_effect=_NO_TRT_LLM)
    max_input_tokens: int = setting(4096, at_least(1), without_effect=_NO_TRT_LLM)
    model_type: str = setting("llama", without_effect=_NO_TRT_LLM)
    unload_engine_train: bool = setting(False, without_effect=_NO_TRT_LLM)


@dataclass
class RolloutLoop(Loop):
    """trainer.ppo, trainer.grpo: the loop, the leash, and what is made of a reward."""

    # weight of the KL to the reference, in the reward of each token or in the loss
    initial_policy_kl_penalty: float = setting(0.01, at_least(0))
    # in nats a token: the weight grows by up to 1/50 a step where train_rollouts/kl is above it, and shrinks below; None: fixed
    target_kl: float | None = setting(None, above(0))
    use_absolute_kl: bool = True  # in the reward: |log π − log π_ref|
    # of init_policy_kl in nats; beyond it the run ends with an error, and a checkpoint; None: no bound
    max_init_policy_kl: float | None = setting(None, above(0))
    # of train_optim/policy_kl in nats a token; beyond it the step's other updates are left out; None: no bound
    max_policy_kl: float | None = setting(None, above(0))
    reward_clip: float | None = setting(None, above(0))  # rewards are held in ± this; None: not
    missing_eos_penalty: float = setting(
        0.0, at_least(0)
    )  # taken from the reward of a response that was cut off
    overlong_buffer: int | None = setting(
        None, at_least(1)
    )  # last tokens before max_length, which cost more and more
    overlong_penalty: float = setting(1.0, at_least(0))  # what a response that uses the whole buffer loses
    # leave responses that were cut off out of the actor's loss and normalisation, as NeMo-Aligner does
    mask_truncated_responses: bool = False
    trt_llm: TrtLlm = field(default_factory=TrtLlm)


@dataclass
class Address:
    """Where a server is: nowhere by default."""

    # host name or address of a job of its own; neither ip nor run: in the actor's process
    ip: str | None = None
    port: int = setting(5556, within(1, 65535))
    run: str | None = None  # in place of ip and port: that job's run folder, which says both


# what a run may have functions of its own in place of
POLICY_FUNCTIONS = {
    "loss": "aligner_lib.algorithms.ppo:clipped_surrogate",
    "loss_mask": "aligner_lib.algorithms.policy_gradient:loss_mask",
} | TRAINING_FUNCTIONS

KL_HORIZON = 10.0  # steps: the KL coefficient changes by at most 0.2 / this a step


# ---- what of them is read together ----------------------------------------------------------------------------------


def rollout_settings(config: DictConfig) -> DictConfig:
    """model.ppo or model.grpo."""
    return config.model.grpo if "grpo" in config.model else config.model.ppo


def loop_settings(config: DictConfig) -> DictConfig:
    """trainer.ppo or trainer.grpo."""
    return config.trainer.grpo if "grpo" in config.trainer else config.trainer.ppo


def val_rollout_micro_batch_size(config: DictConfig) -> int:
    """Prompts generated together in a validation."""
    rollout = rollout_settings(config)
    return rollout.val_rollout_micro_batch_size or rollout.rollout_micro_batch_size


def response_length(config: DictConfig) -> int:
    """The most tokens of a response: max_length, or half of encoder_seq_length."""
    return rollout_settings(config).length_params.max_length or config.model.encoder_seq_length // 2


def environments_of(config: DictConfig) -> dict[str, EnvironmentSettings]:
    """The environments that give prompts, by name; none where prompts come from model.data. GRPO has sums for a start."""
    named = {name: one for name, one in config.model.environments.items() if one.weight > 0}
    if not named and "grpo" in config.model and not config.model.data.data_prefix.get("train"):
        return {"sums": EnvironmentSettings()}
    return named


def generates_with_vllm(config: DictConfig) -> bool:
    """Whether a vLLM server generates the responses, and not the policy's own module."""
    return config.model.generation.backend == "vllm"


def judged_by_programs(config: DictConfig) -> bool:
    """Whether environments judge every response, so that no reward model is needed."""
    named = environments_of(config)
    return bool(named) and all((one.use or name) != "reward_model" for name, one in named.items())


def recomputes_logprobs(config: DictConfig, needed: bool) -> bool:
    """Whether responses pass through the policy once more before they are learnt from. needed: by the algorithm."""
    rollout = rollout_settings(config)
    if rollout.recompute_logprobs is None:
        corrected = rollout.sampler_correction != "none"
        return needed or corrected or generates_with_vllm(config) or cuts_the_sampler(config)
    return rollout.recompute_logprobs


def cuts_the_sampler(config: DictConfig) -> bool:
    """Whether some tokens can't be drawn, so that generation's log-probabilities are those of a narrower distribution
    than the policy's."""
    rollout = rollout_settings(config)
    sampling = rollout.sampling_params
    cut = sampling.use_greedy or sampling.top_k > 0 or sampling.top_p < 1
    return cut or rollout.length_params.min_length > 1


def check_lengths(config: DictConfig) -> None:
    """Prompt and response fit into the model's positions."""
    at = "model.grpo" if "grpo" in config.model else "model.ppo"
    length = rollout_settings(config).length_params
    if length.max_length is not None and length.max_length >= config.model.encoder_seq_length:
        raise ConfigError(
            f"{at}.length_params.max_length={length.max_length} leaves no room for a prompt in "
            f"model.encoder_seq_length={config.model.encoder_seq_length}"
        )
    if length.max_length is not None and length.min_length > length.max_length:
        raise ConfigError(
            f"{at}.length_params.min_length={length.min_length} is above max_length={length.max_length}"
        )
    if (
        rollout_settings(config).recompute_logprobs is False
        and rollout_settings(config).sampler_correction != "none"
    ):
        raise ConfigError(
            f"{at}.sampler_correction={rollout_settings(config).sampler_correction} compares generation's log-probabilities "
            f"with training's: leave {at}.recompute_logprobs at null, or set it to True"
        )
    buffer, longest = loop_settings(config).overlong_buffer, response_length(config)
    if buffer is not None and buffer > longest:
        raise ConfigError(
            f"trainer{at.removeprefix('model')}.overlong_buffer={buffer} is above the {longest} tokens of a response"
        )


def check_generation(config: DictConfig) -> None:
    """A server that all nodes ask is not started by one of them: it has to be somewhere."""
    nowhere = generates_with_vllm(config) and config.model.generation.vllm_cfg.url is None
    if nowhere and config.trainer.num_nodes > 1:
        raise ConfigError(
            f"trainer.num_nodes={config.trainer.num_nodes} with model.generation.backend=vllm: start a server that all nodes "
            "reach, and set model.generation.vllm_cfg.url to it (docs/generation.md)"
        )


def unused_settings(config: DictConfig) -> dict[str, str]:
    """What does nothing, given the other settings."""
    at, loop, found = "grpo" if "grpo" in config.model else "ppo", loop_settings(config), {}
    if rollout_settings(config).sampler_correction == "none":
        found[f"model.{at}.sampler_correction_cap"] = "sampler_correction=none weighs nothing."
    if environments_of(config):
        found[f"trainer.{at}.limit_val_batches"] = (
            f"model.{at}.num_val_samples says how many of an environment's held-out prompts are answered."
        )
    if loop.overlong_buffer is None:
        found[f"trainer.{at}.overlong_penalty"] = "without overlong_buffer no response is overlong."
    return found | unused_generation_settings(config)


def unused_generation_settings(config: DictConfig) -> dict[str, str]:
    """What of model.generation does nothing, given the rest of it."""
    if not generates_with_vllm(config):
        return {
            "model.generation.vllm_cfg.": "model.generation.backend=megatron: the policy itself generates."
        }
    if config.model.generation.vllm_cfg.url is None:
        return {}
    of_its_start = "executable precision tensor_parallel_size gpu_memory_utilization enforce_eager timeout"
    return dict.fromkeys(
        (f"model.generation.vllm_cfg.{name}" for name in of_its_start.split()),
        "the server at model.generation.vllm_cfg.url runs already.",
    )


# ---- metrics --------------------------------------------------------------------------------------------------------

RESPONSES = MetricGroup(
    "Rollouts, responses",
    "`train_rollouts/` is over the step's rollout, before its updates. `val_rollouts/` is over "
    "`num_val_samples` held-out prompts, sampled with the same random numbers at every validation.",
    (
        metric(
            "train_rollouts/rewards val_rollouts/rewards",
            "",
            "mean reward of a response, without the KL penalty. A reward model's: 0 is the average of its validation "
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
            "`length_params.max_length`, `missing_eos_penalty`",
        ),
        metric(
            "train_rollouts/rewards_failed val_rollouts/rewards_failed",
            "",
            "share of responses without a reward, because it raised, hung, died or was NaN, or because an environment gave no "
            "prompt. Where it is 1, the figures of rewards and advantages are null, and three such training steps in a row end "
            "the run",
            "0. See [the alarm](widgets.md#alarms)",
            "the reward's code, `model.environments.NAME.timeout`",
        ),
        metric(
            "train_rollouts/judged_by_program",
            "",
            "share of responses whose reward an environment's program gave. Where it is 1, the alarms on KL, entropy and "
            "reward hacking are silent: such a reward is what was asked for, and a task with one right answer ends in little "
            "entropy, far from the reference",
            "0 with a reward model alone",
        ),
        metric(
            "train_rollouts/rollout_size val_rollouts/rollout_size",
            "responses",
            "number of responses",
            "",
            "`model.ppo.num_rollout_samples`, `model.grpo.num_prompts_per_step`, `num_val_samples`",
        ),
        metric(
            "train_rollouts/tokens val_rollouts/tokens",
            "tokens",
            "tokens of all prompts and responses, padding not",
        ),
    ),
)
TOKENS = MetricGroup(
    "Rollouts, tokens and bookkeeping",
    "Means and deviations are over the response tokens of the rollout, unless they say otherwise.",
    (
        metric(
            "train_rollouts/kl",
            "nats a token",
            "mean of log π − log π_ref, which estimates the KL a token. π is the policy that generated, π_ref the one "
            "that PPO started from, both at the sampling temperature. `evaluation/kl` is the same on other prompts, at its own "
            "sampling temperature",
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
            "mean entropy of the policy's next-token distribution, in nats, at the sampling temperature. Where "
            "log-probabilities are not recomputed: estimated by the mean of −log π of the tokens that were drawn",
            "drifts slowly. Below 30 % of its start (the alarm) the policy no longer explores",
            "`entropy_bonus` up, `model.optim.lr` down",
        ),
        metric(
            "train_rollouts/kl_coef",
            "",
            "weight of the KL in this step's rewards, or in its loss",
            "",
            "`initial_policy_kl_penalty`, `target_kl`",
        ),
        metric(
            "train_rollouts/consumed_samples",
            "responses",
            "responses generated for training so far",
        ),
        metric(
            "train_rollouts/epoch",
            "epochs",
            "training prompts answered so far over how many there are; absent where an environment makes up endlessly many",
            "above 1: prompts repeat",
            "`max_steps`, `max_epochs`",
        ),
    ),
)
ACTOR = MetricGroup(
    "Policy",
    "Means over the tokens that are learnt from (with `mask_truncated_responses`: of properly ended responses; in GRPO: of "
    "responses with an advantage), one mean for each global batch, then over the step's updates. Absent during PPO's "
    "`critic_warmup_steps`, and where no token was learnt from: then no optimiser step is taken either.",
    (
        metric(
            "train_optim/loss",
            "",
            "the objective: of PPO, the mean of max(−A·r, −A·clip(r, 1−ε, 1+ε)) less `scaled_entropy`",
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
            "the same with r clipped (PPO: to 1 ± `ratio_eps`)",
            "close to `ppo_ratio`",
            "`ratio_eps`, `clip_low`, `clip_high`",
        ),
        metric(
            "train_optim/clip_fraction",
            "",
            "share of tokens whose ratio is clipped",
            "0 with one update a rollout; below 0.3",
            "`model.optim.lr` down, `model.global_batch_size` up",
        ),
        metric(
            "train_optim/policy_kl",
            "nats a token",
            "mean of r − 1 − log r, which estimates the KL of the policy as the step began to the policy before this update",
            "0 before the step's first update, then small",
            "`model.optim.lr` down, `rollout_epochs` down; `max_policy_kl` ends the step's updates",
        ),
        metric(
            "train_optim/updates",
            "optimiser steps",
            "taken in this step: global batches times `rollout_epochs`, less those that `max_policy_kl` left out",
            "",
            "`global_batch_size`, `rollout_epochs`",
        ),
        metric(
            "train_optim/tokens",
            "tokens",
            "that the step's updates learnt from, each as often as they did",
            "PPO: all response tokens, `generation_length` times `rollout_size`, times `rollout_epochs`. Fewer without "
            "`mask_truncated_responses` and the like: the mask leaves some out, the stop tokens perhaps",
            "`mask_truncated_responses`, `max_policy_kl`, `rollout_epochs`",
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
            "`entropy_bonus`",
        ),
        metric(
            "train_optim/grad_norm",
            "",
            "norm of the whole gradient, before it is clipped",
            "steady or falling",
            "`model.optim.lr`, `gradient_clip_val`",
        ),
        metric(
            "train_optim/lr",
            "",
            "learning rate, mean over the step's updates",
            "",
            "`model.optim`",
        ),
        metric(
            "train_optim/optim_step",
            "optimiser steps",
            "optimiser steps so far, on which the learning rate depends; PPO's critic warm-up takes none",
        ),
    ),
)
SAMPLER = MetricGroup(
    "Sampler against trainer",
    "Generation keeps the log-probability of each token that it draws; training computes it again, with the same weights. "
    "Where the two part, the policy learns from tokens that are not its own.",
    (
        metric(
            "train_rollouts/sampler_mismatch",
            "nats a token",
            "mean over response tokens of |log π_sampler − log π_trainer|. Without `recompute_logprobs` over the tokens of "
            "the step's first update, so absent where there is none",
            "below 1e-4 in float32, below 0.02 in bf16",
            "`sampling_params`: top_k, top_p, use_greedy and min_length part them by design",
        ),
        metric(
            "train_rollouts/sampler_mismatch_max",
            "nats",
            "the largest of them; only with `recompute_logprobs`",
            "below 0.5 in bf16",
        ),
        metric(
            "train_rollouts/sampler_effective_sample_size",
            "",
            "(Σ w)² / (N Σ w²) of the importance weights w = π_trainer / π_sampler of the N response tokens: the share of "
            "the tokens that the rollout is worth",
            "1, within 0.01",
            "`sampler_correction`",
        ),
        metric(
            "train_rollouts/sampler_weight",
            "",
            "mean importance weight that the loss gives a token: 1 with `sampler_correction=none`",
            "1, within 0.01",
            "`sampler_correction_cap`",
        ),
    ),
)
ENVIRONMENTS = MetricGroup(
    "Environments",
    "Only in runs with `model.environments`: a figure for each environment NAME, over the responses to its prompts.",
    (
        metric(
            "train_environments/*/reward val_environments/*/reward",
            "",
            "mean reward that the environment NAME gave",
            "rises",
        ),
        metric(
            "train_environments/*/samples val_environments/*/samples",
            "responses",
            "number of responses that it judged",
            "",
            "`model.environments.NAME.weight`",
        ),
        metric(
            "train_environments/*/failed val_environments/*/failed",
            "samples",
            "prompts and responses without a reward, because it raised, hung, died or answered NaN. They train nothing; "
            "`environment_failures.txt` in the run folder has the first traceback",
            "0",
            "`model.environments.NAME.timeout`, its code",
        ),
        metric(
            "train_environments/*/turns val_environments/*/turns",
            "turns",
            "mean number of the policy's turns in an episode",
            "1 where an answer is all there is",
        ),
        metric(
            "train_environments/*/* val_environments/*/*",
            "",
            "what the environment measures beside the reward, by its own names",
        ),
    ),
)
ROLLOUT_TIMERS = MetricGroup(
    "Seconds of a step with rollouts",
    "Parts of `timers/step_time`.",
    (
        metric(
            "timers/rollout_time",
            "s",
            "generation, rewards, PPO's values, and log-probabilities. Contains the next six; the rest, where critic and reward "
            "model are in the same process, is rewards and values",
        ),
        metric(
            "timers/refresh_generator",
            "s",
            "giving a vLLM server the step's weights; 0 where the policy itself generates",
            "",
            "`model.generation`",
        ),
        metric(
            "timers/generate",
            "s",
            "generating the responses",
            "",
            "`rollout_micro_batch_size`",
        ),
        metric(
            "timers/environments",
            "s",
            "waiting for environments; 0 without any",
            "",
            "`model.environments.NAME.processes`",
        ),
        metric(
            "timers/logprobs",
            "s",
            "log-probabilities and entropies under the policy",
            "",
            "`logprob_forward_micro_batch_size`",
        ),
        metric(
            "timers/init_logprobs",
            "s",
            "log-probabilities under the reference",
        ),
        metric(
            "timers/critic_wait",
            "s",
            "waiting for rewards and PPO's values that are not there yet; about 0 where they come from the same process",
        ),
        metric(
            "timers/train_time",
            "s",
            "all updates (PPO: of actor and critic)",
            "",
            "`model.micro_batch_size`",
        ),
    ),
)

CRITIC_TIMERS = MetricGroup(
    "Seconds of PPO's critic",
    "A part of `timers/train_time`.",
    (
        metric(
            "timers/critic_train_wait",
            "s",
            "waiting for the critic's training to end, once the actor's has; about 0 where the critic is in the same "
            "process",
        ),
    ),
)

# ---- charts and alarms ----------------------------------------------------------------------------------------------

REWARD = chart(
    "Reward",
    ("train", "train_rollouts/rewards"),
    ("validation", "val_rollouts/rewards"),
    hint="Rises. If it rises while KL and length run away, the policy is gaming the reward.",
    least=LEAST_REWARD,
)
KL = chart(
    "KL to the reference",
    ("train", "train_rollouts/kl"),
    hint="0 before the first update, then grows slowly and levels off.",
    least=0.001,
)
LENGTH = chart(
    "Response length",
    ("train", "train_rollouts/generation_length"),
    ("validation", "val_rollouts/generation_length"),
    hint="Drifts a little. A jump to the limit means that responses no longer end.",
    least=1.0,
)
PROGRESS = (
    chart(
        "Responses that ended",
        ("train", "train_rollouts/fraction_of_samples_properly_ended"),
        ("validation", "val_rollouts/fraction_of_samples_properly_ended"),
        hint="Near 1, or rising to it: the others were cut off at max_length.",
        least=LEAST_SHARE,
    ),
)
ENTROPY = chart(
    "Entropy",
    ("train", "train_rollouts/entropy"),
    hint="Drifts slowly; near 0 nothing new is tried.",
    least=0.01,
)
ENVIRONMENT_CHARTS = (
    chart(
        "Environments",
        ("train", "train_environments/*/reward"),
        ("validation", "val_environments/*/reward"),
        hint="The mean reward of each environment's responses.",
        least=LEAST_REWARD,
    ),
    chart(
        "*",
        ("train", "train_environments/*/*"),
        ("validation", "val_environments/*/*"),
        hint="What the environment measures beside the reward, by its own name.",
    ),
)
RATIO = chart(
    "Probability ratio",
    ("ratio", "train_optim/ppo_ratio"),
    ("clamped", "train_optim/ppo_ratio_clamped"),
    hint="Stays close to 1; exactly 1 before the first update.",
    least=0.001,
)
ALARMS = (
    alarms.not_finite,
    alarms.kl,
    alarms.reward_hacking,
    alarms.entropy,
    alarms.clip_fraction,
    alarms.first_ratio,
    alarms.endless,
    alarms.rewards_failed,
)
