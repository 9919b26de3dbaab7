"""Build engines, policies and critics from settings."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from aligner_lib.config.peft import is_lora, target_layers
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.kinds.inputs import adapters_folder
from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.lora import LoRA
from aligner_lib.megatron.model import Numerics, has_transformer_engine
from aligner_lib.megatron.precision import computed_precision
from aligner_lib.models.adapters import Adapter
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.peft_folder import adapter_layers
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.rollouts.critic import Critic, RewardModel

logger = logging.getLogger(__name__)


def build_trainable_engine(
    architecture: Architecture,
    config: DictConfig,
    clip: float,
    start: Path,
    offload: bool = False,
    new_head: bool = False,
) -> Engine:
    """Build an engine for training. offload: keep Adam's moments on the CPU between updates. new_head: see Engine.load."""
    optim = config.model.optim
    settings = {
        "lr": optim.lr,
        "weight_decay": optim.weight_decay,
        "betas": list(optim.betas),
        "eps": optim.eps,
    }
    lora = lora_of(config, start) if "peft" in config.model else None
    unfrozen = None if lora else config.model.get("num_layers_unfrozen")  # set for models with a scalar head
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
    """Build an engine with the weights of `start`. Without `training`, the engine can only compute, not train."""
    model, sequence_parallel = config.model, config.model.sequence_parallel
    numerics = Numerics(
        bf16=computed_precision(config.trainer.precision) == "bf16",
        # an evaluation does not train and has no such settings
        recompute_granularity=model.get("activations_checkpoint_granularity"),
        recompute_method=model.get("activations_checkpoint_method"),
        recompute_num_layers=model.get("activations_checkpoint_num_layers"),
        sequence_parallel=has_transformer_engine() if sequence_parallel is None else sequence_parallel,
        share_prefix=model.share_prefix,
        cuda_graphs=model.cuda_graphs,
    )
    engine = Engine(architecture, numerics, **training)
    engine.load(start, new_head=new_head)
    return engine


def lora_of(config: DictConfig, start: Path) -> LoRA | None:
    """The adapters that model.peft trains on the model `start`; None: all weights are trained.

    Raises UserError or ValueError if the initial adapters belong to another model.
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


def build_critic(config: DictConfig, start: Path, judges: bool) -> tuple[Critic, RewardModel | None]:
    """Build a critic from the reward model `start`, or from a language model with a new head, whose values begin at 0.

    judges: whether to return the reward model as well, which then shares the critic's module; otherwise None.
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
    """Build a reward model with its own module."""
    engine = build_engine(Architecture.load(start), config, start)
    return RewardModel(engine, RewardScale.load(start), micro_batch_size)
