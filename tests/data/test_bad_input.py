"""Every way in which a record can be bad: counted with file, line and reason; strict stops at the first."""

from functools import partial

import pytest

from data import format_dolly, format_hh, format_squad
from data.report import DataError, Reason

GOOD_HH = {"chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "\n\nHuman: q\n\nAssistant: b"}
GOOD_DOLLY = {"instruction": "q", "context": "", "response": "a", "category": "open_qa"}
GOOD_SQUAD = {"context": "c", "question": "q", "answers": {"text": ["a"], "answer_start": [0]}}

BAD_LINES = [
    (b"{not json", Reason.NOT_JSON),
    (b'{"a": 1', Reason.NOT_JSON),
    (b"[" * 100_000, Reason.NOT_JSON),
    (b"1" * 5_000, Reason.NOT_JSON),
    (b'{"instruction": "caf\xe9"}', Reason.BAD_UTF8),
    (b'["a list"]', Reason.WRONG_TYPE),
    (b"{}", Reason.MISSING_KEY),
]
BAD_HH = [
    *BAD_LINES,
    ({"chosen": GOOD_HH["chosen"]}, Reason.MISSING_KEY),
    (GOOD_HH | {"rejected": None}, Reason.WRONG_TYPE),
    (GOOD_HH | {"chosen": ["x"]}, Reason.WRONG_TYPE),
    (GOOD_HH | {"chosen": ""}, Reason.EMPTY_TEXT),
    (GOOD_HH | {"rejected": " \n"}, Reason.EMPTY_TEXT),
    (GOOD_HH | {"chosen": "\n\nHuman: q\n\nAssistant: \ud83d"}, Reason.BAD_UTF8),
    (GOOD_HH | {"rejected": "\n\nHuman: q"}, Reason.BAD_TURN),
    (GOOD_HH | {"rejected": "\n\nHuman: other\n\nAssistant: b"}, Reason.DIFFERENT_PROMPTS),
    (GOOD_HH | {"rejected": "\n\nHuman: q\n\nAssistant: " + "b" * 500}, Reason.OVERLONG),
]
BAD_DOLLY = [
    ({key: GOOD_DOLLY[key] for key in ("instruction", "context", "response")}, Reason.MISSING_KEY),
    (GOOD_DOLLY | {"context": None}, Reason.WRONG_TYPE),
    (GOOD_DOLLY | {"instruction": " "}, Reason.EMPTY_TEXT),
    (GOOD_DOLLY | {"response": "\udc00"}, Reason.BAD_UTF8),
    (GOOD_DOLLY | {"response": "a" * 500}, Reason.OVERLONG),
]
CASES = [(kind, *case) for kind, cases in (("hh", BAD_HH), ("dolly", BAD_DOLLY)) for case in cases]


def run(kind, raw, out, **options):
    if kind == "hh":
        return format_hh(raw, out, "train", max_chars=200, **options)
    return format_dolly(raw, out, max_chars=200, validation_fraction=0, **options)


@pytest.mark.parametrize(("kind", "bad", "reason"), CASES)
def test_bad_record_is_counted_with_its_place_and_strict_stops_at_it(kind, bad, reason, write_raw, tmp_path):
    good = GOOD_HH if kind == "hh" else GOOD_DOLLY
    raw = write_raw([good, bad, good, good])
    with pytest.raises(DataError) as caught:
        run(kind, raw, tmp_path / "out", strict=True)
    assert str(caught.value).startswith(f"{raw}:2: {reason} (")
    assert not list(tmp_path.glob("out/*"))
    report = run(kind, raw, tmp_path / "out")
    assert (report.read, report.kept) == (4, 3)
    assert report.skipped == {reason: 1}
    (skip,) = report.examples[reason]
    assert (skip.file, skip.line) == (str(raw), 2)
    assert f"{raw}:2" in str(report) and reason in str(report)


@pytest.mark.parametrize("kind", ["hh", "dolly"])
def test_nothing_usable_and_nothing_at_all(kind, write_raw, tmp_path):
    unusable = r"holds no usable record \(not JSON 2, missing key 1\); the first: .*raw.jsonl:2"
    with pytest.raises(DataError, match=unusable):
        run(kind, write_raw([{}, b"x", b"y"]), tmp_path / "out")
    for content in (b"", b"\n\n"):
        (tmp_path / "raw.jsonl").write_bytes(content)
        with pytest.raises(DataError, match="holds no records"):
            run(kind, tmp_path / "raw.jsonl", tmp_path / "out")


def test_report_counts_everything_and_shows_the_first_few(write_raw, tmp_path):
    raw = write_raw([GOOD_HH, *[{"chosen": number} for number in range(5)], b"x"])
    report = format_hh(raw, tmp_path / "out", "train")
    assert str(report) == "\n".join(
        [
            "read 7 records, kept 1, skipped 6",
            "  wrong type: 5",
            *[f"    {raw}:{line} ('chosen' is int, not text)" for line in (2, 3, 4)],
            "    and 2 more",
            "  not JSON: 1",
            f"    {raw}:7 (Expecting value: line 1 column 1 (char 0))",
            f"wrote {tmp_path / 'out/train_comparisons.jsonl'} (2 lines)",
            f"wrote {tmp_path / 'out/train_prompts.jsonl'} (1 lines)",
        ]
    )


def test_missing_key_names_what_is_there(write_raw, tmp_path):
    raw = write_raw([GOOD_DOLLY, {"prompt": "p", "answer": "a"}])
    report = format_dolly(raw, tmp_path / "out", validation_fraction=0)
    assert report.examples[Reason.MISSING_KEY][0].detail == "'instruction'; present: answer, prompt"


# ---- keys that a formatter does not read ----------------------------------------------------------------------------


FORMATTERS = [
    (partial(format_dolly, validation_fraction=0), GOOD_DOLLY, "system"),
    (partial(format_hh, split="train"), GOOD_HH, "margin"),
    (partial(format_squad, split="train"), GOOD_SQUAD, "hint"),
]


@pytest.mark.parametrize(("formatter", "record", "key"), FORMATTERS, ids=["dolly", "hh", "squad"])
def test_an_unread_key_leaves_its_record_out_by_name_and_metadata_is_noted(
    write_raw, tmp_path, formatter, record, key
):
    raw = write_raw([record, record | {key: 2}, record | {"id": 0, key: None}, record | {"id": "7", key: ""}])
    report = formatter(raw, tmp_path / "out")
    assert report.kept == 3 and report.skipped == {Reason.UNREAD_KEY: 1}
    assert f"raw.jsonl:2 ({key!r}; the formatter reads " in str(report)
    assert "kept, but note: the metadata 'id' is not in the output: 2" in str(report)
    with pytest.raises(DataError, match=f"raw.jsonl:2: unread key .*{key}.*{min(record)}.*or remove the key"):
        formatter(raw, tmp_path / "out", strict=True)


def test_an_unread_key_of_squads_answers_is_named(write_raw, tmp_path):
    raw = write_raw([GOOD_SQUAD, GOOD_SQUAD | {"answers": GOOD_SQUAD["answers"] | {"aliases": ["b"]}}])
    report = format_squad(raw, tmp_path / "out", "train")
    assert report.skipped == {Reason.UNREAD_KEY: 1} and "'aliases'" in str(report)
