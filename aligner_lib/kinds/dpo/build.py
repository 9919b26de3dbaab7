"""Builds a job of direct preference optimization from its settings: data, models and trainer."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from aligner_lib.algorithms.preference_losses import LOSSES
from aligner_lib.errors import UserError
from aligner_lib.kinds.build_models import build_trainable_engine
from aligner_lib.kinds.dpo.kto import KTOTrainer
from aligner_lib.kinds.dpo.reference_logprobs import precompute
from aligner_lib.kinds.dpo.settings import measures_kl
from aligner_lib.kinds.dpo.trainer import DPOTrainer
from aligner_lib.kinds.inputs import hash_of_adapters, loaders, model_folder, steps_of
from aligner_lib.kinds.pairs.build import prepare_on_pairs
from aligner_lib.kinds.prepared_job import PreparedJob
from aligner_lib.megatron.generate import Sampling
from aligner_lib.models import model_hash
from aligner_lib.models.architecture import Architecture
from aligner_lib.rollouts.policy import Policy


def prepare(config: DictConfig) -> PreparedJob:
    """Prepare data, models and trainer."""
    start = model_folder(config, "pretrained_checkpoint.restore_from_path", "lm")
    model, settings = config.model, config.model.dpo
    has_reference = LOSSES[settings.preference_loss].has_reference
    precomputes = has_reference and settings.precompute_reference_logprobs
    kto, read = settings.preference_loss == "kto", loaders(config)
    kind, load = (KTOTrainer, read.load_labelled) if kto else (DPOTrainer, read.load_preferences)

    if measures_kl(settings):
        _check_val_responses(settings.val_response_length, start)

    def trainer(loop, common):
        policy = None
        engine = build_trainable_engine(Architecture.load(start), config, loop.gradient_clip_val, start)
        if has_reference and not precomputes:
            sampling = Sampling(max_length=settings.val_response_length or model.encoder_seq_length // 2)
            policy = Policy(
                engine, common["tokenizer"], sampling, forward_micro_batch_size=model.micro_batch_size
            )
        made = kind(engine, **common, settings=settings, policy=policy)
        if precomputes:
            max_steps = steps_of(loop, len(made.train), model.global_batch_size)
            reference = " ".join([model_hash(start), *hash_of_adapters(config, start).values()])
            precompute(made, max_steps, Path(config.exp_manager.explicit_log_dir), reference)
        return made

    samples = "labels" if kto else "pairs"
    return prepare_on_pairs("dpo", config, config.trainer.dpo, start, samples, load, trainer)


def _check_val_responses(length: int | None, start: Path) -> None:
    positions = Architecture.load(start).max_position_embeddings
    if length is not None and length >= positions:
        raise UserError(
            f"model.dpo.val_response_length={length} leaves no room for a prompt in the {positions} positions of {start}, so "
            "validation/kl can't be measured: lower val_response_length"
        )
