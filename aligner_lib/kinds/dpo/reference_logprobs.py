"""The reference's log-probabilities of all samples, computed once before the first step and kept in the run folder."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from aligner_lib.algorithms.batching import global_batch
from aligner_lib.kinds.dpo.trainer import DPOTrainer, response_logprobs
from aligner_lib.megatron import parallel
from cluster.record import write_json

logger = logging.getLogger(__name__)
FILE = "reference_logprobs.json"  # in the run folder
Known = list[list[float] | None]
"""The two log-probabilities of each sample; None: not computed yet."""


def precompute(trainer: DPOTrainer, max_steps: int, run: Path, model: str) -> None:
    """Store the reference's log-probabilities in the samples of the first epoch's steps and of the validation.

    trainer: its engine has the reference's weights; model: their hash. Each sample is computed in the same micro batch as in
    the first epoch's training. Swapping in the reference's weights during that epoch would therefore give the same bits. Values
    in the run folder from an earlier attempt with the same model, samples and precision are reused.
    """
    engine, train, validation = trainer.engine, trainer.train, trainer.validation
    key = _key(model, str(engine.module.config.params_dtype), train, validation)
    kept = parallel.from_first_rank(_load(run / FILE, key) if parallel.is_first_rank() else None)
    known: dict[str, Known] = kept or {"train": [None] * len(train), "validation": [None] * len(validation)}

    def compute(split: str, samples: Sequence, picked: list[int], size: int) -> bool:
        """Compute the picked samples' values. Return False if all values were known."""
        if all(known[split][i] is not None for i in picked):
            return False
        batch = [samples[i] for i in picked]
        own_logprobs = {}
        groups = trainer.groups(batch, size)
        sums = engine.map([trainer.collate([batch[i] for i in group]) for group in groups], response_logprobs)
        for group, both in zip(groups, sums):
            own_logprobs |= {picked[i]: pair for i, pair in zip(group, both.view(2, -1).t().tolist())}
        for i, pair in (item for part in parallel.gather_over_dp(own_logprobs) for item in part.items()):
            known[split][i] = known[split][i] or pair
        return True

    order = [
        global_batch(len(train), step, trainer.global_batch_size, trainer.seed, trainer.shuffle)
        for step in range(min(max_steps, -(-len(train) // trainer.global_batch_size)))
    ]
    computed = [compute("train", train, picked, trainer.micro_batch_size) for picked in order]
    everything = list(range(len(validation)))
    computed.append(compute("validation", validation, everything, trainer.validation_micro_batch_size))
    if any(computed) and parallel.is_first_rank():
        write_json(run / FILE, {"key": key} | known)
    logger.info(
        "reference log-probabilities: %s",
        f"computed, {run / FILE}" if any(computed) else f"from {run / FILE}",
    )
    trainer.train = _WithReference(train, known["train"])
    trainer.validation = _WithReference(validation, known["validation"])


def _key(model: str, precision: str, *splits: Sequence) -> str:
    """A hash that changes with the model, the precision and every token."""
    digest = hashlib.sha256(json.dumps([model, precision, *map(len, splits)]).encode())
    for sample in chain(*splits):
        digest.update(json.dumps([sample.rows, sample.starts]).encode())
    return digest.hexdigest()


def _load(file: Path, key: str) -> dict[str, Known] | None:
    """The values of an earlier attempt; None if the file is missing, damaged, or belongs to another model or other samples."""
    try:
        kept = json.loads(file.read_text())
        return {split: kept[split] for split in ("train", "validation")} if kept["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class _WithReference(Sequence):
    """Samples with the reference's log-probabilities, which are added when a sample is read."""

    samples: Sequence
    known: Known

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int):
        return replace(self.samples[index], reference_logprobs=self.known[index])
