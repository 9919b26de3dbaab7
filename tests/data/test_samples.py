"""The bundled samples: current, varied, disjoint, and with a preference that length does not give away."""

import json
from functools import cache
from statistics import fmean

import pytest

from data.hh import ComparisonPair, parse_pair
from data.sample_text.make_samples import write_samples
from data.sources import SAMPLES


@cache
def records(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (SAMPLES / name).read_text().splitlines()]


@cache
def pairs(split: str) -> list[ComparisonPair]:
    return [parse_pair(record) for record in records(f"hh-sample-{split}.jsonl")]


def test_samples_are_what_the_generator_writes(tmp_path):
    cure = "run python -m data.sample_text.make_samples"
    for path in write_samples(tmp_path):
        assert path.read_bytes() == (SAMPLES / path.name).read_bytes(), cure


def test_prompts_are_distinct_and_the_splits_disjoint():
    train, test = ({pair.chosen.prompt for pair in pairs(split)} for split in ("train", "test"))
    assert len(train) == len(pairs("train")) and len(test) == len(pairs("test"))
    assert not train & test
    dolly = {(record["instruction"], record["context"]) for record in records("dolly-sample.jsonl")}
    assert len(dolly) == len(records("dolly-sample.jsonl"))


@pytest.mark.parametrize("split", ["train", "test"])
def test_length_decides_little_and_about_a_fifth_has_two_turns(split):
    longer = fmean(len(pair.chosen.response) > len(pair.rejected.response) for pair in pairs(split))
    assert 0.55 <= longer <= 0.61
    turns = [pair.chosen.prompt.count("User: ") for pair in pairs(split)]
    assert set(turns) == {1, 2} and 1.15 <= fmean(turns) <= 1.25


def test_closed_answers_stand_in_their_context():
    closed = [record for record in records("dolly-sample.jsonl") if record["category"] == "closed_qa"]
    assert closed and all(record["response"] in record["context"] for record in closed)
