"""The settings for all kinds with rollouts: PPO, GRPO, and the evaluation of a policy.

The module holds the groups of settings for rollouts, the loop and servers, the values derived from several settings, and checks
on several settings together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aligner_lib.config.environments import REWARD_MODEL, EnvironmentSettings
from aligner_lib.config.schema import (
    ADDRESS,
    CONVERSION,
    PROBABILITY,
    Bound,
    Data,
    Loop,
    above,
    at_least,
    conversion_without_effect,
    one_of,
    setting,
    within,
)
from aligner_lib.config.training import TRAINING_FUNCTIONS, AdaptableModel
from aligner_lib.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_TEMPERATURE = Bound(
    lambda value: value > 0, "above 0; for the likeliest token each time set use_greedy=True"
)


@dataclass
class SamplingParams:
    """The distribution for sampling tokens."""

    use_greedy: bool = False
    """Take the likeliest token each time."""
    temperature: float = setting(1.0, _TEMPERATURE)
    """The logits are divided by this number before a token is drawn."""
    top_k: int = setting(0, at_least(0))
    """0: all tokens."""
    top_p: float = setting(1.0, PROBABILITY)
    """1: all tokens."""
    end_strings: list[str] = setting([])
    """A response also ends after any of these strings."""


@dataclass
class LengthParams:
    """The length of a response, in tokens."""

    max_length: int | None = setting(None, at_least(1))
    """null: half of encoder_seq_length."""
    min_length: int = setting(1, at_least(0))
    """No stop token is sampled before this length."""


@dataclass
class ResponseSettings:
    """model.ppo, model.grpo: settings of the responses to prompts, for training and evaluation."""

    rollout_micro_batch_size: int = setting(8, at_least(1))
    """Prompts per batch of generation."""
    num_val_samples: int | None = setting(None, at_least(1))
    """Held-out prompts in a validation; null: all."""
    val_rollout_micro_batch_size: int | None = setting(None, at_least(1))
    """Held-out prompts per batch of generation; null: rollout_micro_batch_size."""
    val_use_greedy: bool = False
    """A validation always takes the most likely token."""
    logprob_forward_micro_batch_size: int | None = setting(None, at_least(1))
    """Sequences in a forward pass; null: model.micro_batch_size."""
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    length_params: LengthParams = field(default_factory=LengthParams)


@dataclass
class RolloutSettings(ResponseSettings):
    """model.ppo, model.grpo: rollouts and the loss."""

    rollout_epochs: int = setting(1, at_least(1))
    """Passes of the updates over a step's rollout."""
    recompute_logprobs: bool | None = None
    """True: before the updates, the trainer computes the responses' log-probabilities again; False: the trainer uses the
    log-probabilities of generation. null: the trainer computes them again in three cases: a step needs them (a critic, a
    teacher, the KL in the reward, sampler_correction, vLLM's responses); in bf16, where generation rounds differently from
    training; and with top_k, top_p, use_greedy or min_length, because the sampler's log-probabilities then differ from the
    policy's. In the third case, False is refused."""
    entropy_bonus: float = setting(0.0, at_least(0))
    """The weight of the entropy in the loss."""
    sampler_correction: str = setting("none", one_of("none", "truncated", "masked"))
    """Importance weights for a sampler whose probabilities differ from the trainer's: truncated or masked at the cap."""
    sampler_correction_cap: float = setting(2.0, above(0))
    offload_adam_states: bool = True
    """Adam's moments stay on the CPU between updates."""


@dataclass
class VllmCfg:
    """model.generation.vllm_cfg: the vLLM server that generates responses."""

    url: str | None = setting(None, ADDRESS)
    """http://HOST:PORT of a running server; null: the run starts a server on this machine, and stops the server at the end."""
    executable: str = "vllm"
    """The command that starts a server. vLLM may be installed in a separate environment."""
    precision: str = setting("bfloat16", one_of("bfloat16", "float16", "float32"))
    tensor_parallel_size: int = setting(1, at_least(1))
    """GPUs that share the server's weights."""
    gpu_memory_utilization: float = setting(0.5, PROBABILITY)
    """The fraction of each GPU's memory for the server; training uses the rest."""
    enforce_eager: bool = False
    """Use no CUDA graphs: generation is slower, and the server starts faster."""
    timeout: float = setting(600.0, above(0))
    """Seconds that the run waits for the first answer of a server that it starts."""


@dataclass
class GenerationSettings:
    """model.generation: the engine that generates responses."""

    backend: str = setting("megatron", one_of("megatron", "vllm"))
    """megatron: the policy's own module, in this process; vllm: a server, which receives the policy's weights in every step."""
    vllm_cfg: VllmCfg = field(default_factory=VllmCfg)


@dataclass
class PromptSources:
    """model of a job that responds to prompts: the engine for generation, and the source of prompts and rewards."""

    generation: GenerationSettings = field(default_factory=GenerationSettings)
    environments: dict[str, EnvironmentSettings] = field(default_factory=dict)
    """By name; see docs/environments.md. Without environments, prompts come from model.data and rewards from a reward model."""
    data: Data = field(default_factory=Data)


@dataclass
class RolloutModel(PromptSources, AdaptableModel):
    """model of a job that learns from its own responses."""


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


_NO_BALANCING = "the ranks share out a step's prompts in advance, and no server balances their work."


@dataclass
class BatchIterator:
    """trainer.ppo.batch_iterator: NeMo-Aligner's server that balances generation over the ranks."""

    use_flask: bool = setting(False, without_effect=_NO_BALANCING)
    port: int = setting(5557, within(1, 65535), without_effect=_NO_BALANCING)


@dataclass
class RolloutLoop(Loop):
    """trainer.ppo, trainer.grpo: the loop, the KL penalty and its bounds, and the shaping of rewards."""

    initial_policy_kl_penalty: float = setting(0.01, at_least(0))
    """The weight of the KL to the reference, in the reward of each token or in the loss."""
    target_kl: float | None = setting(None, above(0))
    """In nats per token. While train_rollouts/kl is above the target, the weight grows by up to 1/50 per step; below the
    target, the weight shrinks. null: the weight is constant."""
    use_absolute_kl: bool = True
    """The penalty in the reward, and init_policy_kl, use |log π − log π_ref|."""
    max_init_policy_kl: float | None = setting(None, above(0))
    """A bound on init_policy_kl in nats. Above the bound the run ends with an error and a checkpoint. null: no bound."""
    max_policy_kl: float | None = setting(None, above(0))
    """A bound on train_optim/policy_kl in nats per token. Above the bound the step's remaining updates are skipped. null: no
    bound."""
    reward_clip: float | None = setting(None, above(0))
    """Rewards are clipped to ± this value; null: no clipping."""
    missing_eos_penalty: float = setting(0.0, at_least(0))
    """Subtracted from the reward of a truncated response."""
    overlong_buffer: int | None = setting(None, at_least(1))
    """The number of last tokens before max_length in which the penalty grows with each token of the last turn; null: no
    penalty."""
    overlong_penalty: float = setting(1.0, at_least(0))
    """The penalty of a response that uses the whole buffer."""
    mask_truncated_responses: bool = False
    """Exclude truncated responses from the actor's loss, from PPO's normalize_advantages and from the batch's mean and deviation in
    REINFORCE++. A group's mean and deviation include the truncated responses, as in TRL."""
    trt_llm: TrtLlm = field(default_factory=TrtLlm)
    batch_iterator: BatchIterator = field(default_factory=BatchIterator)


@dataclass
class RemoteServer:
    """The address of a server. By default there is no server, and the model is in the actor's process."""

    ip: str | None = None
    """Host name or address of the server's job."""
    port: int = setting(5556, within(1, 65535))
    """The server's port."""
    run: str | None = None
    """The run folder of the server's job, which records the server's ip and port. Replaces both settings."""


@dataclass
class ServerRequests:
    """Settings of the requests that a run sends to a server."""

    pad_to_length: int | None = setting(None, at_least(1))
    """Requests are padded to this length; null: to the next of a few lengths."""
    timeout: float = setting(600.0, above(0))
    """Seconds that the run waits for a server that has not answered yet."""


POLICY_FUNCTIONS = {
    "loss": "aligner_lib.algorithms.ppo:clipped_surrogate",
    "loss_mask": "aligner_lib.algorithms.policy_gradient:loss_mask",
} | TRAINING_FUNCTIONS
"""The library's functions that a PPO or GRPO run may replace by a user's functions."""

KL_HORIZON = 10.0  # in steps: the KL coefficient changes by at most 0.2 / KL_HORIZON per step


# ---- values derived from several settings ---------------------------------------------------------------------------


def group_of(config: DictConfig) -> str:
    """The name of the kind's own group in `model` (and, if the kind trains, in `trainer`): `ppo` or `grpo`."""
    from omegaconf import OmegaConf

    groups = {name: OmegaConf.select(config.model, name) for name in config.model}
    return next(
        name for name, group in groups.items() if OmegaConf.is_dict(group) and "length_params" in group
    )


def rollout_settings(config: DictConfig) -> DictConfig:
    """model.ppo or model.grpo."""
    return config.model[group_of(config)]


def loop_settings(config: DictConfig) -> DictConfig:
    """trainer.ppo or trainer.grpo."""
    return config.trainer[group_of(config)]


def val_rollout_micro_batch_size(config: DictConfig) -> int:
    """Held-out prompts per batch of generation."""
    rollout = rollout_settings(config)
    return rollout.val_rollout_micro_batch_size or rollout.rollout_micro_batch_size


def response_length(config: DictConfig) -> int:
    """The greatest length of a response in tokens: max_length, or half of encoder_seq_length."""
    return rollout_settings(config).length_params.max_length or config.model.encoder_seq_length // 2


def shaping_settings(config: DictConfig) -> dict[str, float | None]:
    """The arguments `clip` and further ones of `algorithms.policy_gradient.shaped_terms`."""
    loop = loop_settings(config)
    return {
        "clip": loop.reward_clip,
        "missing_eos_penalty": loop.missing_eos_penalty or 0.0,
        "max_length": response_length(config),
        "overlong_buffer": loop.overlong_buffer or 0,
        "overlong_penalty": loop.overlong_penalty,
    }


def environments_of(config: DictConfig) -> dict[str, EnvironmentSettings]:
    """The environments that provide prompts, by name; empty if the prompts come from model.data.

    A kind without a critic can run without a reward model. If such a job has neither environments nor prompts, it trains on
    sums. Raises ConfigError if such a job has environments, but none with a weight.
    """
    named = {
        name: environment for name, environment in config.model.environments.items() if environment.weight > 0
    }
    if not named and "critic" not in config and not config.model.data.data_prefix.get("train"):
        if config.model.environments:
            raise ConfigError(
                "every model.environments.*.weight is 0, so there are no prompts: give one a weight above 0"
            )
        return {"sums": EnvironmentSettings()}
    return named


def generates_with_vllm(config: DictConfig) -> bool:
    """Whether a vLLM server generates the responses, and not the policy's own module."""
    return config.model.generation.backend == "vllm"


def judged_by_programs(config: DictConfig) -> bool:
    """Whether environments judge every response, so that the job needs no reward model."""
    named = environments_of(config)
    return bool(named) and all(
        (environment.use or name) != REWARD_MODEL for name, environment in named.items()
    )


def comparing_environments(config: DictConfig) -> list[str]:
    """The names of the environments whose judge compares the responses to the same prompt."""
    return [
        name
        for name, environment in environments_of(config).items()
        if (environment.use or name) == "judge" and environment.args.get("compare")
    ]


def recomputes_logprobs(config: DictConfig, needed: bool) -> bool:
    """Whether the policy computes the responses' log-probabilities again before learning from them.

    needed: whether the algorithm or the precision requires the computation.
    """
    rollout = rollout_settings(config)
    if rollout.recompute_logprobs is None:
        corrected = rollout.sampler_correction != "none"
        return needed or corrected or generates_with_vllm(config) or bool(sampler_cuts(config))
    return rollout.recompute_logprobs


def sampler_cuts(config: DictConfig) -> list[str]:
    """The settings that exclude some tokens from sampling, as in `sampling_params.top_p=0.9`. The sampler's distribution is then
    narrower than the policy's."""
    rollout = rollout_settings(config)
    sampling, least = rollout.sampling_params, rollout.length_params.min_length
    cuts = {
        f"sampling_params.use_greedy={sampling.use_greedy}": sampling.use_greedy,
        f"sampling_params.top_k={sampling.top_k}": sampling.top_k > 0,
        f"sampling_params.top_p={sampling.top_p}": sampling.top_p < 1,
        f"length_params.min_length={least}": least > 1,
    }
    return [name for name, excludes in cuts.items() if excludes]


def fitting_batch_sizes(config: DictConfig, responses: int) -> str:
    """List the values of model.global_batch_size that divide the responses of a step and consist of whole groups, as in
    "4 or 8"; "" if there is none.

    Values that micro batches don't divide are left out, unless they are all.
    """
    from aligner_lib.config.validation import copies_of_the_model

    group = rollout_settings(config).num_generations_per_prompt
    rows = config.model.micro_batch_size * copies_of_the_model(config)
    sizes = [size for size in range(group, responses + 1, group) if responses % size == 0]
    return " or ".join(map(str, [size for size in sizes if size % rows == 0] or sizes))


def check_lengths(config: DictConfig) -> None:
    """Check that a prompt and a response fit into the model's positions, and that a response can have its least length."""
    at, length = f"model.{group_of(config)}", rollout_settings(config).length_params
    if length.max_length is not None and length.max_length >= config.model.encoder_seq_length:
        raise ConfigError(
            f"{at}.length_params.max_length={length.max_length} leaves no room for a prompt in "
            f"model.encoder_seq_length={config.model.encoder_seq_length}"
        )
    longest = response_length(config)
    if length.min_length > longest:
        by_default = ", which is half of model.encoder_seq_length" if length.max_length is None else ""
        raise ConfigError(
            f"{at}.length_params.min_length={length.min_length} is above max_length={longest}{by_default}: lower min_length, or "
            "raise max_length"
        )


def check_comparisons(config: DictConfig) -> None:
    """Check that a judge that compares the responses to a prompt gets all of them: a micro batch of a rank is judged in one call."""
    from omegaconf import OmegaConf

    from aligner_lib.config.validation import copies_of_the_model

    at, copies = f"model.{group_of(config)}", copies_of_the_model(config)
    rows, together = "rollout_micro_batch_size", rollout_settings(config).rollout_micro_batch_size
    responses = f"{at}.num_generations_per_prompt"
    if "evaluation" in config:
        rows, together = "val_rollout_micro_batch_size", val_rollout_micro_batch_size(config)
        responses = "evaluation.num_generations_per_prompt"
    group = OmegaConf.select(config, responses)
    for name in comparing_environments(config):
        compare = f"model.environments.{name}.args.compare"
        if group == 1:
            raise ConfigError(
                f"{compare}: the judge compares responses to the same prompt, but a prompt has a single response: set "
                f"{responses} to 2 or more"
            )
        if copies > 1 or together % group:
            raise ConfigError(
                f"{compare}: the judge would compare parts of a group: set {at}.{rows}={together} to a multiple of "
                f"{responses}={group}, and use a single copy of the model (now {copies})"
            )


def check_target_kl(config: DictConfig) -> None:
    """Check that a KL weight which follows a target does not begin at 0."""
    at, loop = group_of(config), loop_settings(config)
    if loop.target_kl is not None and loop.initial_policy_kl_penalty == 0:
        raise ConfigError(
            f"trainer.{at}.initial_policy_kl_penalty=0 with trainer.{at}.target_kl={loop.target_kl}: the weight grows by a "
            "fraction of itself, so a weight of 0 stays 0: set initial_policy_kl_penalty above 0, or target_kl=null"
        )


def check_learning(config: DictConfig) -> None:
    """Check that the updates and the sampler correction have the policy's log-probabilities, and that the overlong buffer fits
    into a response."""
    at, rollout = group_of(config), rollout_settings(config)
    if rollout.recompute_logprobs is False and rollout.sampler_correction != "none":
        raise ConfigError(
            f"model.{at}.sampler_correction={rollout.sampler_correction} compares generation's log-probabilities "
            f"with training's: set model.{at}.recompute_logprobs to null or True"
        )
    if rollout.recompute_logprobs is False and (cuts := sampler_cuts(config)):
        raise ConfigError(
            f"model.{at}.{cuts[0]} cuts the sampler, so generation's log-probabilities are not the policy's, and clipping would "
            f"remove gradients: set model.{at}.recompute_logprobs to null or True"
        )
    buffer, longest = loop_settings(config).overlong_buffer, response_length(config)
    if buffer is not None and buffer > longest:
        raise ConfigError(
            f"trainer.{at}.overlong_buffer={buffer} is above the {longest} tokens of a response"
        )


def check_generation(config: DictConfig) -> None:
    """Check that a run on several nodes has the address of a vLLM server. A run starts a server only on a single node."""
    starts_server = generates_with_vllm(config) and config.model.generation.vllm_cfg.url is None
    if starts_server and config.trainer.num_nodes > 1:
        raise ConfigError(
            f"trainer.num_nodes={config.trainer.num_nodes} with model.generation.backend=vllm: start a server within "
            "reach of all nodes, and set model.generation.vllm_cfg.url to the server's address (docs/generation.md)"
        )


def check_checkpoints(config: DictConfig, is_remote: bool, server: str) -> None:
    """Check that a run with a server saves checkpoints. The run needs a checkpoint to resume after the server dies.

    server: the server's name in the message.
    """
    if is_remote and not config.exp_manager.create_checkpoint_callback:
        raise ConfigError(
            f"exp_manager.create_checkpoint_callback=False: when {server} in a job of its own dies, all jobs of the "
            "run return to their newest common checkpoint, and without a checkpoint to the start; set "
            f"create_checkpoint_callback=True, and raise trainer.{group_of(config)}.save_interval for fewer "
            "checkpoints"
        )


def unused_settings(config: DictConfig) -> dict[str, str]:
    """The settings that have no effect because of other settings, with the reasons."""
    at, loop, unused = group_of(config), loop_settings(config), unused_data_settings(config)
    if rollout_settings(config).sampler_correction == "none":
        unused[f"model.{at}.sampler_correction_cap"] = "sampler_correction=none has no weights to cap."
    if environments_of(config):
        unused[f"trainer.{at}.limit_val_batches"] = (
            f"model.{at}.num_val_samples limits the held-out prompts of environments."
        )
    if loop.overlong_buffer is None:
        unused[f"trainer.{at}.overlong_penalty"] = (
            "without overlong_buffer there is no penalty on long responses."
        )
    return unused | unused_sampling_settings(config) | unused_generation_settings(config)


def unused_sampling_settings(config: DictConfig) -> dict[str, str]:
    """The settings of the sampling distribution without effect, with the reasons. An evaluation samples as a validation does."""
    at, rollout = f"model.{group_of(config)}", rollout_settings(config)
    cuts = ["top_k", "top_p"]
    if "evaluation" in config and rollout.val_use_greedy:
        greedy, cuts = "val_use_greedy", ["use_greedy", *cuts]
    elif rollout.sampling_params.use_greedy:
        greedy = "sampling_params.use_greedy"
    else:
        return {}
    return {
        f"{at}.sampling_params.{name}": f"{at}.{greedy}=True takes the likeliest token each time."
        for name in cuts
    }


def unused_data_settings(config: DictConfig) -> dict[str, str]:
    """The settings for the files of prompts without effect, with the reasons."""
    if not environments_of(config):
        return conversion_without_effect(config)
    names = *CONVERSION, "data_prefix.train", "data_prefix.validation"
    return {f"model.data.{name}": "the prompts come from model.environments." for name in names}


def unused_generation_settings(config: DictConfig) -> dict[str, str]:
    """The settings of generation without effect, with the reasons."""
    if not generates_with_vllm(config):
        return {
            "model.generation.vllm_cfg.": "model.generation.backend=megatron: the policy itself generates."
        }
    unused = {"model.cuda_graphs": "model.generation.backend=vllm: the server generates."}
    if config.model.generation.vllm_cfg.url is None:
        return unused
    of_a_start = "executable precision tensor_parallel_size gpu_memory_utilization enforce_eager timeout"
    return unused | dict.fromkeys(
        (f"model.generation.vllm_cfg.{name}" for name in of_a_start.split()),
        "the server at model.generation.vllm_cfg.url runs already.",
    )
