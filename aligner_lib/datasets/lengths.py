"""The lengths of a file's samples, and the padding in their micro batches: `aligner data lengths`."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

from aligner_lib.algorithms.batching import global_batch, length_grouped, packed
from aligner_lib.datasets.chat_template import encode_prompt, with_response
from aligner_lib.datasets.load.lines import UNBOUNDED
from aligner_lib.datasets.load.sft import conversation_samples
from aligner_lib.datasets.load.turns import text_or_turns, turns_in_record
from aligner_lib.datasets.samples import PairSample, SFTSample
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from data.tools import checked_tools

STEPS = 32  # global batches in the report, at most


def length_report(
    name: str,
    samples: Sequence[SFTSample | PairSample],
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


def token_lengths(files: Iterable[Path], tokenizer: Tokenizer) -> array:
    """The length in tokens of each sample in files of `data.convert`, read line by line.

    Samples that the trainers leave out at any length are not counted.
    """
    lengths = array("I")
    for file in files:
        with file.open(encoding="ascii") as lines:
            for line in lines:
                try:
                    length = length_of_record(json.loads(line), tokenizer)
                except (ValueError, UserError):
                    continue  # the loaders leave the sample out, and report the reason
                if length is not None:
                    lengths.append(length)
    return lengths


def padding_share(batches: Sequence[Sequence], groups: Sequence[list[list[int]]]) -> float:
    """The share of padding in the padded rows. groups: for each batch, the micro batches as indices of its samples."""
    tokens = positions = 0
    for batch, micro_batches in zip(batches, groups):
        for group in micro_batches:
            rows = [len(row.tokens) for i in group for row in batch[i].shown()]
            tokens, positions = tokens + sum(rows), positions + max(rows) * len(rows)
    return 1 - tokens / positions


def length_of_record(record: dict, tokenizer: Tokenizer) -> int | None:
    """The length in tokens of a record of `data.convert`; in a pair, the longer response counts.

    None for a record that is unusable at any length, such as an answer with a stop token.
    """
    if "messages" in record:
        tools = checked_tools(record["tools"]) if record.get("tools") else []
        samples = conversation_samples(turns_in_record(record), tools, tokenizer, UNBOUNDED)
        return None if isinstance(samples, str) else max(map(len, samples))
    prompt = text_or_turns(record, "prompt", as_turns=True)
    responses = [f" {record[key].strip()}" for key in ("chosen", "rejected", "response") if key in record]
    if not responses:
        return len(encode_prompt(tokenizer, prompt))
    return max(len(with_response(tokenizer, prompt, response)[0]) for response in responses)
