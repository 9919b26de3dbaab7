"""What the kinds that learn from their own responses share: PPO, with a critic, and GRPO, with groups.

Settings of the rollout, of the loop and of the objective, their metrics and charts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aligner_lib.config.environments import EnvironmentSettings
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
from aligner_lib.config.training import TRAINING_FUNCTIONS
from aligner_lib.errors import ConfigError

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
    # null: where a step needs them (a critic, a teacher, the KL in the reward, sampler_correction, vLLM's responses), in
    # bf16, where generation rounds differently from training, and where the sampler is cut (top_k, top_p, use_greedy,
    # min_length), whose log-probabilities are not the policy's
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


def group_of(config: DictConfig) -> str:
    """The name of the kind's own settings, which `model` and `trainer` both have a group of: `ppo` or `grpo`."""
    (name,) = config.model.keys() & config.trainer.keys()
    return name


def rollout_settings(config: DictConfig) -> DictConfig:
    """model.ppo or model.grpo."""
    return config.model[group_of(config)]


def loop_settings(config: DictConfig) -> DictConfig:
    """trainer.ppo or trainer.grpo."""
    return config.trainer[group_of(config)]


def val_rollout_micro_batch_size(config: DictConfig) -> int:
    """Prompts generated together in a validation."""
    rollout = rollout_settings(config)
    return rollout.val_rollout_micro_batch_size or rollout.rollout_micro_batch_size


def response_length(config: DictConfig) -> int:
    """The most tokens of a response: max_length, or half of encoder_seq_length."""
    return rollout_settings(config).length_params.max_length or config.model.encoder_seq_length // 2


def environments_of(config: DictConfig) -> dict[str, EnvironmentSettings]:
    """The environments that give prompts, by name; none where prompts come from model.data.

    A kind without a critic can do without a reward model: where it is given no prompts either, it trains on sums.
    """
    named = {name: one for name, one in config.model.environments.items() if one.weight > 0}
    if not named and "critic" not in config and not config.model.data.data_prefix.get("train"):
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
    """Whether responses pass through the policy once more before they are learnt from.

    needed: whether the algorithm or the precision requires it.
    """
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
    at = f"model.{group_of(config)}"
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
    at, loop, found = group_of(config), loop_settings(config), {}
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
