"""Writes the bundled samples: `python -m data.sample_text.make_samples [FOLDER] [--noise SHARE]`. The same seed gives the same bytes."""

import argparse
import json
import random
from pathlib import Path

from data.atomic_files import atomic_text_files
from data.sample_text import drawn, verifiable
from data.sample_text.instructions import instruction_records
from data.sample_text.preferences import preference_splits
from data.sample_text.topics import load_topics
from data.sources import SAMPLES

SEED = 20240607


def write_samples(folder: Path, noise: float = verifiable.NOISE) -> list[Path]:
    """Write the sample files into `folder` and return their paths. noise: share of the pairs of forms-train.jsonl whose label
    is flipped."""
    topics = load_topics()
    manners = preference_splits(topics, random.Random(f"{SEED} preferences"))
    of = verifiable.splits(topics, random.Random(f"{SEED} forms"))
    contents = {
        "dolly-sample.jsonl": instruction_records(topics, random.Random(f"{SEED} instructions")),
        "hh-sample-train.jsonl": manners["train"],
        "hh-sample-test.jsonl": manners["test"],
        "forms-sft.jsonl": verifiable.sft_records(of["train"], random.Random(f"{SEED} forms sft")),
        "forms-train.jsonl": verifiable.preference_records(
            of["train"], random.Random(f"{SEED} forms train"), noise
        ),
        "drawn-sft.jsonl": verifiable.sft_records(
            of["train"], random.Random(f"{SEED} forms sft"), drawn.obeying
        ),
        "forms-test.jsonl": verifiable.preference_records(of["test"], random.Random(f"{SEED} forms test")),
    }
    paths = [folder / name for name in contents]
    with atomic_text_files(*paths) as streams:
        for stream, records in zip(streams, contents.values(), strict=True):
            stream.writelines(json.dumps(record) + "\n" for record in records)
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the bundled samples.")
    parser.add_argument("folder", nargs="?", type=Path, default=SAMPLES)
    parser.add_argument(
        "--noise", type=float, default=verifiable.NOISE, help="of the training pairs of forms"
    )
    given = parser.parse_args()
    for path in write_samples(given.folder, given.noise):
        print(f"{path}: {path.stat().st_size:,} bytes")
