"""The bundled samples: current, varied, disjoint, and with a preference that length does not give away."""

import json
from collections import Counter
from functools import cache

import pytest

from data import format_dolly, format_hh
from data.hh import ComparisonPair, parse_pair
from data.sample_text.make_samples import write_samples
from data.sample_text.topics import load_topics
from data.sources import SAMPLES


@cache
def records(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (SAMPLES / name).read_text().splitlines()]


@cache
def pairs(split: str) -> list[ComparisonPair]:
    return [parse_pair(record) for record in records(f"hh-sample-{split}.jsonl")]


def share(flags) -> float:
    flags = list(flags)
    return sum(flags) / len(flags)


def test_samples_are_what_the_generator_writes(tmp_path):
    cure = "run python -m data.sample_text.make_samples"
    for path in write_samples(tmp_path):
        assert path.read_bytes() == (SAMPLES / path.name).read_bytes(), cure


def test_topics_are_distinct_and_complete_sentences():
    topics = load_topics()
    assert len(topics) >= 120
    for field in ("question", "answer", "next_question", "reply", "more"):
        assert len({getattr(topic, field) for topic in topics}) == len(topics), field
    for topic in topics:
        assert topic.question.endswith("?") and topic.next_question.endswith("?")
        for sentence in (topic.answer, topic.reply, topic.more):
            assert sentence[0].isupper() and sentence.endswith(".") and "  " not in sentence, sentence


def test_prompts_are_distinct_and_the_splits_disjoint():
    train, test = ({pair.chosen.prompt for pair in pairs(split)} for split in ("train", "test"))
    assert len(train) == len(pairs("train")) and len(test) == len(pairs("test"))
    assert not train & test
    dolly = {(record["instruction"], record["context"]) for record in records("dolly-sample.jsonl")}
    assert len(dolly) == len(records("dolly-sample.jsonl"))


@pytest.mark.parametrize("split", ["train", "test"])
def test_length_decides_little_and_about_a_fifth_has_two_turns(split):
    longer = share(len(pair.chosen.response) > len(pair.rejected.response) for pair in pairs(split))
    assert 0.55 <= longer <= 0.61
    turns = [pair.chosen.prompt.count("User: ") for pair in pairs(split)]
    assert set(turns) == {1, 2} and 0.15 <= share(turn == 2 for turn in turns) <= 0.25


def test_answers_are_varied():
    for side in ("chosen", "rejected"):
        responses = [getattr(pair, side).response for pair in pairs("train")]
        assert len(set(responses)) > 0.85 * len(responses)
        openings = Counter(" ".join(response.split()[:2]) for response in responses)
        assert openings.most_common(1)[0][1] < 0.1 * len(responses)


def test_closed_answers_stand_in_their_context():
    closed = [record for record in records("dolly-sample.jsonl") if record["category"] == "closed_qa"]
    assert closed and all(record["response"] in record["context"] for record in closed)


def test_everything_in_the_samples_is_usable(tmp_path):
    assert not format_dolly("sample", tmp_path, strict=True).skipped
    for split in ("train", "test"):
        report = format_hh("sample", tmp_path, split, strict=True)
        assert report.kept == len(pairs(split)) and not report.notes
