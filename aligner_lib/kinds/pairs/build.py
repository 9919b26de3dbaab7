"""Prepares training on pairs of responses: reads the pairs, and gives the trainer its common arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig

from aligner_lib.datasets.record_keys import Samples
from aligner_lib.datasets.samples import LabelledSample
from aligner_lib.kinds.functions import functions_of
from aligner_lib.kinds.inputs import (
    files_of_splits,
    for_validation,
    hash_of_adapters,
    hashes_of_splits,
    limited,
    log_report,
    packed_tokens,
    policy_tokenizer,
    steps_of,
)
from aligner_lib.kinds.mapped_data import load_samples
from aligner_lib.kinds.overlap import warn_about_overlap
from aligner_lib.kinds.prepared_job import PreparedJob
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.loop import TrainerProtocol
from aligner_lib.trainers.lr import LRSchedule

logger = logging.getLogger(__name__)


def prepare_on_pairs(
    kind: str,
    config: DictConfig,
    loop: DictConfig,
    start: Path,
    samples: Samples,
    load: Callable,
    trainer: Callable[..., TrainerProtocol],
) -> PreparedJob:
    """Prepare training on pairs of responses.

    samples: pairs, or labels; load: reads files, given a tokenizer and the greatest length; trainer: builds the trainer, given the loop's settings and the
    common arguments of all trainers of pairs.
    """
    model, tokenizer, functions = config.model, policy_tokenizer(config, start), functions_of(kind, config)
    train, validation = (
        log_report(split, load_samples(load, files, tokenizer, model.encoder_seq_length))
        for split, files in files_of_splits(config, samples).items()
    )
    validation = for_validation(limited(validation, loop, model.global_batch_size), config)
    warn_about_overlap(train, validation)
    if samples == "labels":
        warn_about_equal_labels(train)
    max_steps = steps_of(loop, len(train), model.global_batch_size)
    common = {
        "tokenizer": tokenizer,
        "train": train,
        "validation": validation,
        "lr_schedule": LRSchedule(model.optim, max_steps, functions.learning_rate),
        "functions": functions,
        "global_batch_size": model.global_batch_size,
        "micro_batch_size": model.micro_batch_size,
        "validation_micro_batch_size": model.micro_batch_size,
        "packed_tokens": packed_tokens(config, model.micro_batch_size, train),
        "seed": model.seed,
    }
    hashes = hashes_of_splits(config, start) | hash_of_adapters(config, start)

    def build(run: RunWriter | None) -> TrainerProtocol:
        if run is not None:
            run.note_validation_samples(len(validation))
        return trainer(loop, common)

    return PreparedJob(build, max_steps, loop, hashes)


def warn_about_equal_labels(train: Sequence[LabelledSample]) -> None:
    """Warn if all training responses are desirable, or all are undesirable."""
    label = train[0].desirable
    if all(sample.desirable == label for sample in train):
        logger.warning(
            f"all {len(train)} training responses have the label {str(label).lower()}, so KTO learns no difference between desirable "
            "and undesirable responses: give responses with both labels. `aligner sft` learns desirable responses alone"
        )
