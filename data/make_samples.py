"""Writes the bundled samples: `python -m data.make_samples [FOLDER]`. The same seed gives the same bytes."""

import json
import random
import sys
from pathlib import Path

from data.aside import written_aside
from data.sample_text.instructions import instruction_records
from data.sample_text.preferences import preference_splits
from data.sample_text.topics import load_topics
from data.sources import SAMPLES

SEED = 20240607


def write_samples(folder: Path) -> list[Path]:
    """Write the three sample files into `folder` and return their paths."""
    topics = load_topics()
    splits = preference_splits(topics, random.Random(f"{SEED} preferences"))
    contents = {
        folder / "dolly-sample.jsonl": instruction_records(topics, random.Random(f"{SEED} instructions")),
        folder / "hh-sample-train.jsonl": splits["train"],
        folder / "hh-sample-test.jsonl": splits["test"],
    }
    with written_aside(*contents) as streams:
        for stream, records in zip(streams, contents.values(), strict=True):
            stream.writelines(json.dumps(record) + "\n" for record in records)
    return list(contents)


if __name__ == "__main__":
    for path in write_samples(Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES):
        print(f"{path}: {path.stat().st_size:,} bytes")
