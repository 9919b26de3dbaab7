"""Builds a job of supervised fine-tuning from its settings: data, model and trainer."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from aligner_lib.datasets.load import load_sft
from aligner_lib.datasets.samples import SFTSample
from aligner_lib.kinds.build_models import build_trainable_engine
from aligner_lib.kinds.functions import functions_of
from aligner_lib.kinds.inputs import (
    check_positions,
    for_validation,
    hash_of_adapters,
    hashes_of,
    limited,
    log_report,
    model_folder,
    packed_tokens,
    policy_tokenizer,
    steps_of,
)
from aligner_lib.kinds.mapped_data import load_samples
from aligner_lib.kinds.overlap import warn_about_overlap
from aligner_lib.kinds.own_files import SPLITS, GivenFiles, trainers_files
from aligner_lib.kinds.prepared_job import PreparedJob
from aligner_lib.kinds.sft.trainer import SFTTrainer
from aligner_lib.models.architecture import Architecture
from aligner_lib.trainers.lr import LRSchedule


def prepare(config: DictConfig) -> PreparedJob:
    """Prepare data, model and trainer."""
    model, data, loop = config.model, config.model.data, config.trainer.sft
    functions = functions_of("sft", config)
    start = model_folder(config, "model.restore_from_path", "lm")
    tokenizer = policy_tokenizer(config, start)

    given = {
        split: GivenFiles(f"model.data.{split}_ds.file_path", data[f"{split}_ds"].file_path)
        for split in SPLITS
    }
    files = trainers_files(given, "sft", data)

    def load(split: str) -> Sequence[SFTSample]:
        dataset, name = data[f"{split}_ds"], f"{split}_ds"
        longest = dataset.max_seq_length or model.encoder_seq_length
        check_positions(start, longest, f"model.data.{name}.max_seq_length")
        return log_report(name, load_samples(load_sft, files[split], tokenizer, longest))

    train, validation = map(load, SPLITS)
    validation = for_validation(limited(validation, loop, data.validation_ds.global_batch_size), config)
    warn_about_overlap(train, validation)
    max_steps = steps_of(loop, len(train), data.train_ds.global_batch_size)

    def build(run):
        return SFTTrainer(
            engine=build_trainable_engine(Architecture.load(start), config, loop.gradient_clip_val, start),
            tokenizer=tokenizer,
            train=train,
            validation=validation,
            lr_schedule=LRSchedule(model.optim, max_steps, functions.learning_rate),
            functions=functions,
            global_batch_size=data.train_ds.global_batch_size,
            micro_batch_size=data.train_ds.micro_batch_size,
            validation_micro_batch_size=data.validation_ds.micro_batch_size,
            seed=model.seed,
            shuffle=data.train_ds.shuffle,
            packed_tokens=packed_tokens(config, data.train_ds.micro_batch_size, train),
            answer_only_loss=model.answer_only_loss,
        )

    hashes = hashes_of(start, data.train_ds.file_path, data.validation_ds.file_path)
    return PreparedJob(build, max_steps, loop, hashes | hash_of_adapters(config, start))
