"""Engines, policies and critics, as settings describe them."""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from aligner_lib.config.peft import is_lora, target_layers
from aligner_lib.config.policy_gradient import generates_with_vllm, response_length, rollout_settings
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.jobs.inputs import adapters_folder
from aligner_lib.megatron import parallel
from aligner_lib.megatron.cpu import computed_precision
from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.generate import Sampling
from aligner_lib.megatron.lora import LoRA
from aligner_lib.megatron.model import Numerics, has_transformer_engine
from aligner_lib.models.adapters import Adapter
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.peft_folder import adapter_layers
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.rollouts.critic import Critic, RewardModel
from aligner_lib.rollouts.generators import vllm_server
from aligner_lib.rollouts.generators.vllm import VllmGenerator
from aligner_lib.rollouts.interfaces import Generator
from aligner_lib.rollouts.policy import Policy, TokenScorer

logger = logging.getLogger(__name__)


def build_trainable_engine(
    architecture: Architecture,
    config: DictConfig,
    clip: float,
    start: Path,
    offload: bool = False,
    new_head: bool = False,
) -> Engine:
    """offload: whether Adam's moments wait on the CPU while nothing is trained. new_head: see Engine.load."""
    optim = config.model.optim
    settings = {
        "lr": optim.lr,
        "weight_decay": optim.weight_decay,
        "betas": list(optim.betas),
        "eps": optim.eps,
    }
    lora = lora_of(config, start) if "peft" in config.model else None
    unfrozen = None if lora else config.model.get("num_layers_unfrozen")  # of models with a scalar head
    engine = build_engine(
        architecture,
        config,
        start,
        new_head,
        optim=settings,
        clip=clip,
        lora=lora,
        num_layers_unfrozen=unfrozen,
    )
    engine.offloads_adam, engine.start = offload, start
    return engine


def build_engine(
    architecture: Architecture, config: DictConfig, start: Path, new_head: bool = False, **training
) -> Engine:
    """An engine with the weights of `start`; without `training` it only computes."""
    model, sequence_parallel = config.model, config.model.sequence_parallel
    numerics = Numerics(
        bf16=computed_precision(config.trainer.precision) == "bf16",
        recompute_granularity=model.activations_checkpoint_granularity,
        recompute_method=model.activations_checkpoint_method,
        recompute_num_layers=model.activations_checkpoint_num_layers,
        sequence_parallel=has_transformer_engine() if sequence_parallel is None else sequence_parallel,
        share_prefix=model.share_prefix,
    )
    engine = Engine(architecture, numerics, **training)
    engine.load(start, new_head=new_head)
    return engine


def lora_of(config: DictConfig, start: Path) -> LoRA | None:
    """The adapters that model.peft trains on the model `start`; None: it trains all weights.

    Raises UserError or ValueError for adapters to begin with that are not of this model.
    """
    peft = config.model.peft
    if not is_lora(peft):
        return None
    tuning, folder = peft.lora_tuning, adapters_folder(config, start)
    if folder is not None:
        layers = adapter_layers(folder, Architecture.load(start))
    else:
        rank = tuning.adapter_dim
        alpha = rank if tuning.alpha is None else tuning.alpha
        scale = alpha / (math.sqrt(rank) if tuning.use_rslora else rank)
        layers = dict.fromkeys(target_layers(peft), Adapter(rank, scale))
    return LoRA(layers, tuning.adapter_dropout, config.model.seed, folder)


def build_policy(engine: Engine, config: DictConfig, tokenizer: Tokenizer, opened: ExitStack) -> Policy:
    """An actor with its reference, from an engine. opened: closes with the job what this starts."""
    return Policy(
        engine,
        tokenizer,
        sampling_settings(config),
        forward_micro_batch_size=_forward_micro_batch_size(config),
        generator=_vllm(config, engine.module.architecture, tokenizer, opened)
        if generates_with_vllm(config)
        else None,
    )


def _vllm(
    config: DictConfig, architecture: Architecture, tokenizer: Tokenizer, opened: ExitStack
) -> Generator:
    """A generator on the server that the settings name, or on one that the first rank starts."""
    settings, timeout = config.model.generation.vllm_cfg, 60 * config.trainer.distributed_timeout_minutes
    if settings.url is not None:
        return VllmGenerator(settings.url, tokenizer.stop_ids, timeout)
    own: VllmGenerator | None = None
    outcome: tuple[str, str] | UserError | None = None
    if parallel.is_first_rank():
        folder = Path(config.exp_manager.explicit_log_dir) / "vllm"
        try:
            server = vllm_server.start(
                settings, architecture, tokenizer, config.model.encoder_seq_length, folder
            )
        except UserError as error:
            outcome = error
        else:
            opened.callback(server.close)
            outcome = server.url, server.api_key
            own = VllmGenerator(server.url, tokenizer.stop_ids, timeout, server.api_key, server.last_words)
    outcome = parallel.from_first_rank(outcome)
    if isinstance(outcome, UserError):
        raise outcome
    url, key = outcome
    return own or VllmGenerator(url, tokenizer.stop_ids, timeout, key)


def build_teacher(config: DictConfig, start: Path) -> TokenScorer:
    """A language model that scores the policy's tokens, at the policy's temperature."""
    engine = build_engine(Architecture.load(start), config, start)
    return TokenScorer(engine, sampling_settings(config).temperature, _forward_micro_batch_size(config))


def _forward_micro_batch_size(config: DictConfig) -> int:
    return rollout_settings(config).logprob_forward_micro_batch_size or config.model.micro_batch_size


def build_critic(config: DictConfig, start: Path, judges: bool) -> tuple[Critic, RewardModel | None]:
    """A critic that begins as the reward model `start`; with a new head, as of a language model, its values begin at 0.

    judges: whether the reward model is wanted, too, which shares the critic's module; None else.
    """
    clip, offload = config.trainer.ppo.gradient_clip_val, config.model.offload_adam_states
    architecture = Architecture.load(start)
    engine = build_trainable_engine(
        replace(architecture, head="scalar"), config, clip, start, offload, new_head=architecture.head == "lm"
    )
    critic = Critic(
        engine=engine,
        loss_clip=config.model.loss_clip_val,
        micro_batch_size=config.model.micro_batch_size,
        inference_micro_batch_size=config.trainer.ppo.inference_micro_batch_size,
        scale=RewardScale.load(start),
        tokenizer=Tokenizer(start),
        new_head=config.model.new_head,
    )
    reward_model = critic.reward_model() if judges else None
    critic.begin()
    return critic, reward_model


def build_reward_model(config: DictConfig, start: Path, micro_batch_size: int) -> RewardModel:
    """A reward model with a module of its own."""
    engine = build_engine(Architecture.load(start), config, start)
    return RewardModel(engine, RewardScale.load(start), micro_batch_size)


def sampling_settings(config: DictConfig) -> Sampling:
    """How responses are drawn."""
    params, lengths = rollout_settings(config).sampling_params, rollout_settings(config).length_params
    return Sampling(
        max_length=response_length(config),
        min_length=lengths.min_length,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        greedy=params.use_greedy,
        end_strings=tuple(params.end_strings),
    )


def warn_about_sampling(sampling: Sampling) -> None:
    """Log what parts sampling from the log-probabilities that are compared."""
    if sampling.temperature != 1.0:
        logger.warning(
            f"temperature is {sampling.temperature}: the log-probabilities that are compared are scaled by it, too"
        )
    if sampling.greedy:
        logger.warning(
            "use_greedy=True: responses are the likeliest ones, and the log-probabilities that are compared are of "
            "sampling; advantages then tell little, so train with use_greedy=False"
        )
    if sampling.min_length > 1:
        logger.warning(
            f"min_length={sampling.min_length}: stop tokens are barred from the first tokens, which the "
            "log-probabilities that are compared don't know of; prefer min_length=1 in training"
        )
    if sampling.top_k or sampling.top_p != 1.0:
        logger.warning(
            f"top_k={sampling.top_k}, top_p={sampling.top_p}: responses come from a cut distribution, which the "
            "log-probabilities that are compared don't know of; prefer top_k=0, top_p=1 in training"
        )
