"""Builds a job of reward-model training from its settings: data, model and trainer."""

from __future__ import annotations

import logging
from dataclasses import replace

from omegaconf import DictConfig

from aligner_lib.kinds.build_models import build_trainable_engine
from aligner_lib.kinds.inputs import loaders, model_folder
from aligner_lib.kinds.pairs.build import prepare_on_pairs
from aligner_lib.kinds.prepared_job import PreparedJob
from aligner_lib.kinds.rm.trainer import RewardModelTrainer
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.reward_scale import RewardScale

logger = logging.getLogger(__name__)


def prepare(config: DictConfig) -> PreparedJob:
    """Prepare data, model and trainer."""
    start = model_folder(config, "pretrained_checkpoint.restore_from_path")
    architecture = Architecture.load(start)
    scaling = config.model.reward_standardization
    fixed = scaling["enable"] and scaling["mean"] is not None
    is_new = architecture.head == "lm"  # a reward model that is trained further keeps its head

    def trainer(loop, common):
        engine = build_trainable_engine(
            replace(architecture, head="scalar"),
            config,
            loop.gradient_clip_val,
            start,
            new_head=is_new,
        )
        std = config.model.init_method_std
        if is_new and not engine.has_trained_head:
            engine.draw_head(std, config.model.seed)
        elif std:
            logger.info(
                "note: model.init_method_std=%s: the run starts with a trained head, which stays.", std
            )
        scale = RewardScale(scaling["mean"], scaling["std"]) if fixed else RewardScale()
        return RewardModelTrainer(
            engine,
            **common,
            scale=scale,
            measure_scale=scaling["enable"] and not fixed,
            centering=config.model.center_rewards_coefficient,
        )

    load = loaders(config).load_pairs
    return prepare_on_pairs("rm", config, config.trainer.rm, start, "pairs", load, trainer)
