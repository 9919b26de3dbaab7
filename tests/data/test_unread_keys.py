"""A raw key that a formatter does not read: metadata is noted, any other leaves the record out by name."""

import pytest

from data import format_dolly, format_hh, format_squad
from data.report import DataError, Reason

DOLLY = {"instruction": "q", "context": "", "response": "a", "category": "open_qa"}
HH = {"chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "\n\nHuman: q\n\nAssistant: b"}
SQUAD = {"context": "c", "question": "q", "answers": {"text": ["a"], "answer_start": [0]}}


def dolly(raw, out, **options):
    return format_dolly(raw, out, validation_fraction=0, **options)


def hh(raw, out, **options):
    return format_hh(raw, out, "train", **options)


def squad(raw, out, **options):
    return format_squad(raw, out, "train", **options)


FORMATTERS = [(dolly, DOLLY, "system"), (hh, HH, "margin"), (squad, SQUAD, "hint")]


@pytest.mark.parametrize(("formatter", "record", "key"), FORMATTERS)
def test_an_unread_key_leaves_its_record_out_by_name(write_raw, tmp_path, formatter, record, key):
    raw = write_raw([record, record | {key: 2}])
    report = formatter(raw, tmp_path / "out")
    assert report.kept == 1 and report.skipped == {Reason.UNREAD_KEY: 1} and not report.notes
    assert f"raw.jsonl:2 ({key!r}; the formatter reads " in str(report)
    with pytest.raises(
        DataError, match=f"raw.jsonl:2: unread key .*{key}.*{sorted(record)[0]}.*or remove the key"
    ):
        formatter(raw, tmp_path / "out", strict=True)


@pytest.mark.parametrize(("formatter", "record", "key"), FORMATTERS)
def test_metadata_is_noted_and_empty_keys_say_nothing(write_raw, tmp_path, formatter, record, key):
    raw = write_raw([record | {"id": 0, key: None}, record | {"id": "7", key: ""}, record])
    report = formatter(raw, tmp_path / "out")
    assert report.kept == 3 and not report.skipped
    assert "kept, but note: the metadata 'id' is not in the output: 2" in str(report)


def test_an_unread_key_of_squads_answers_is_named(write_raw, tmp_path):
    raw = write_raw([SQUAD, SQUAD | {"answers": SQUAD["answers"] | {"aliases": ["b"]}}])
    report = squad(raw, tmp_path / "out")
    assert report.skipped == {Reason.UNREAD_KEY: 1} and "'aliases'" in str(report)
