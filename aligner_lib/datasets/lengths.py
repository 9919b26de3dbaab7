"""The lengths of a file's samples, and the padding in their micro batches: `aligner data lengths`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from aligner_lib.algorithms.batching import global_batch, length_grouped, packed
from aligner_lib.datasets.json_lines import first_record
from aligner_lib.datasets.load import load_labelled, load_preferences, load_prompts, load_sft
from aligner_lib.datasets.load.lines import UNBOUNDED, Collect, in_memory
from aligner_lib.datasets.samples import LabelledSample, LoadReport, PairSample, SFTSample
from aligner_lib.datasets.tokenizer import Tokenizer

STEPS = 32  # global batches in the report, at most


def length_report(
    name: str,
    samples: Sequence[SFTSample | PairSample | LabelledSample],
    global_batch_size: int,
    micro_batch_size: int,
    budget: int,
    seed: int,
) -> str:
    """Lines on the samples' lengths, and on the padding of micro batches limited by samples or by tokens.

    micro_batch_size: samples; budget: tokens. The batches are the first batches of a training with this seed on one
    data-parallel rank.
    """
    lengths = sorted(map(len, samples))
    total = sum(sample.num_tokens for sample in samples)
    steps = range(min(STEPS, max(len(samples) // global_batch_size, 1)))
    batches = [
        [samples[i] for i in global_batch(len(samples), step, global_batch_size, seed)] for step in steps
    ]
    by_rows = [length_grouped(list(map(len, batch)), micro_batch_size) for batch in batches]
    by_tokens = [
        packed(list(map(len, batch)), [sample.num_tokens for sample in batch], budget) for batch in batches
    ]
    lines = [
        f"{name}: {len(samples):,} samples, {total:,} tokens",
        f"lengths: half up to {lengths[len(lengths) // 2]:,} tokens, one in ten over {lengths[len(lengths) * 9 // 10]:,}, "
        f"the longest {lengths[-1]:,}",
        f"{'a micro batch has':<24}{'micro batches a step':>22}{'padding':>10}",
    ]
    for limit, groups in ((f"{micro_batch_size:,} samples", by_rows), (f"{budget:,} tokens", by_tokens)):
        count = sum(map(len, groups)) / len(groups)
        lines.append(f"{limit:<24}{count:>22.1f}{padding_share(batches, groups):>10.1%}")
    return "\n".join(lines)


def converted_samples(
    files: Iterable[Path], to: str, tokenizer: Tokenizer, collect: Collect = in_memory
) -> tuple[Sequence, LoadReport]:
    """The samples of any length in files of `data.convert`, and a report of the samples that the trainers leave out.

    to: sft, preferences or prompts. Raises ValueError when no sample is usable.
    """
    files = [Path(file) for file in files]
    if to == "prompts":
        samples, report = load_prompts(files, tokenizer, UNBOUNDED)
        return collect(iter(samples), report), report
    load = load_sft if to == "sft" else load_labelled if "label" in first_record(files) else load_preferences
    return load(files, tokenizer, UNBOUNDED, collect)


def token_lengths(files: Iterable[Path], to: str, tokenizer: Tokenizer) -> tuple[array, LoadReport]:
    """The lengths in tokens of `converted_samples`, and their report; in a pair, the longer response counts. Only lengths are
    held in memory, and for prompts and labelled responses their texts."""

    def lengths(samples: Iterator, report: LoadReport) -> array:
        return array("I", (max(len(row.tokens) for row in sample.shown()) for sample in samples))

    return converted_samples(files, to, tokenizer, lengths)


def padding_share(batches: Sequence[Sequence], groups: Sequence[list[list[int]]]) -> float:
    """The share of padding in the padded rows. groups: for each batch, the micro batches as indices of its samples."""
    tokens = positions = 0
    for batch, micro_batches in zip(batches, groups):
        for group in micro_batches:
            rows = [length for i in group for length in _rows(batch[i])]
            tokens, positions = tokens + sum(rows), positions + max(rows) * len(rows)
    return 1 - tokens / positions


def _rows(sample: SFTSample | PairSample | LabelledSample) -> list[int]:
    """The lengths of the rows that the model computes for a sample."""
    rows = sample.rows if isinstance(sample, LabelledSample) else [row.tokens for row in sample.shown()]
    return [*map(len, rows)]
