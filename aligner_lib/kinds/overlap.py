"""Finds samples that are in both the training and the validation data. Their validation metrics measure memorization."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig

from aligner_lib.datasets.mapped_samples import MappedSamples
from aligner_lib.datasets.samples import LabelledSample, PairSample, PromptSample, SFTSample, content_hash
from aligner_lib.kinds.policy_gradient.settings import environments_of

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation")
Sample = SFTSample | PairSample | LabelledSample | PromptSample


def warn_about_overlap(train: Iterable[Sample], validation: Sequence[Sample]) -> None:
    """Warn about validation samples with exactly the same tokens as a training sample, regardless of the file names."""
    _warn("validation samples", _contents(train), list(_contents(validation)))


def warn_about_overlap_of_environments(config: DictConfig) -> None:
    """Warn about shared prompts of environments that read a file of prompts for each split (`args.prompts`), line by line."""
    for name, environment in environments_of(config).items():
        prompts = environment.args.get("prompts")
        files = [prompts.get(split) for split in SPLITS] if isinstance(prompts, dict | DictConfig) else []
        paths = [Path(str(file)).expanduser() for file in files if file]
        # the environment itself reports missing files
        if len(paths) == len(SPLITS) and all(path.is_file() for path in paths):
            train, validation = map(_lines, paths)
            _warn(f"validation prompts of the environment {name}", train, validation)


def _warn(name: str, train: Iterable[object], validation: list[object]) -> None:
    held_out = set(validation)
    shared = held_out.intersection(train)
    if shared:
        count = sum(content in shared for content in validation)
        logger.warning(
            f"{count} of {len(validation)} {name} are training samples, too: their metrics show memory, and nothing "
            "about new data. Give a validation file without training samples"
        )


def _contents(samples: Iterable[Sample]) -> Iterator[bytes]:
    return samples.content_hashes() if isinstance(samples, MappedSamples) else map(content_hash, samples)


def _lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return [line.strip() for line in file if line.strip()]
