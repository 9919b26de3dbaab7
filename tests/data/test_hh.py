"""HH: the reference's semantics by hand, its bytes, and properties over random conversations."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import hh
from data.hh import format_hh, parse_conversation, parse_pair
from data.report import DataError, Reason, Unusable


def pair(human: str, chosen: str, rejected: str) -> dict[str, str]:
    start = f"\n\nHuman: {human}\n\nAssistant: "
    return {"chosen": start + chosen, "rejected": start + rejected}


TWO_TURNS = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d"
CONVERSATIONS = {
    # raw -> (prompt, response)
    "\n\nHuman: Hi\n\nAssistant: Hello": ("User: Hi\n\nAssistant:", "Hello"),
    TWO_TURNS: ("User: a\n\nAssistant: b\n\nUser: c\n\nAssistant:", "d"),
    # nothing is stripped
    "\n\nHuman:  a \n\nAssistant:  b \n": ("User:  a \n\nAssistant:", " b \n"),
    # an empty last answer is kept by the reference
    "\n\nHuman: a\n\nAssistant: ": ("User: a\n\nAssistant:", ""),
    # empty pieces are passed over
    "\n\nHuman: \n\nHuman: a\n\nAssistant: b": ("User: a\n\nAssistant:", "b"),
    # the first piece needs no separator before it
    "a\n\nAssistant: b": ("User: a\n\nAssistant:", "b"),
    # without its final space the label does not separate
    "\n\nHuman: a\n\nAssistant:x\n\nAssistant: b": ("User: a\n\nAssistant:x\n\nAssistant:", "b"),
    # braces are text
    "\n\nHuman: {body}\n\nAssistant: {response}": ("User: {body}\n\nAssistant:", "{response}"),
}


@pytest.mark.parametrize("raw", CONVERSATIONS)
def test_conversation_by_hand(raw):
    conversation = parse_conversation(raw)
    assert (conversation.prompt, conversation.response) == CONVERSATIONS[raw]
    assert conversation.text == f"{conversation.prompt} {conversation.response}"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("\n\nHuman: a", Reason.BAD_TURN),
        ("\n\nHuman: a\n\nAssistant:", Reason.BAD_TURN),  # no space after the label
        ("\n\nHuman: a\n\nAssistant: b\n\nAssistant: c", Reason.BAD_TURN),
        ("\n\nHuman: a\n\nHuman: b\n\nAssistant: c", Reason.BAD_TURN),
        ("Hello.\n\nHuman: a\n\nAssistant: b", Reason.BAD_TURN),
        ("\n\nHuman: ", Reason.EMPTY_TEXT),
    ],
)
def test_conversation_that_does_not_parse(raw, reason):
    with pytest.raises(Unusable) as caught:
        parse_conversation(raw)
    assert caught.value.reason is reason


def test_pair_with_different_prompts_names_the_place():
    record = {"chosen": "\n\nHuman: cat\n\nAssistant: x", "rejected": "\n\nHuman: car\n\nAssistant: x"}
    with pytest.raises(Unusable, match="different prompts: from character 9 on"):
        parse_pair(record)


def test_output_bytes(write_raw, tmp_path):
    hot = pair("Is it “hot”?", "Yes, 30 °C.", "No\tidea 😀")
    raw = write_raw([hot, {"chosen": TWO_TURNS, "rejected": TWO_TURNS.removesuffix("d")}])
    report = format_hh(raw, tmp_path / "out", "train")
    assert (tmp_path / "out/train_comparisons.jsonl").read_bytes() == (
        rb'{"text": "User: Is it \u201chot\u201d?\n\nAssistant: Yes, 30 \u00b0C."}' + b"\n"
        rb'{"text": "User: Is it \u201chot\u201d?\n\nAssistant: No\tidea \ud83d\ude00"}' + b"\n"
        rb'{"text": "User: a\n\nAssistant: b\n\nUser: c\n\nAssistant: d"}' + b"\n"
        rb'{"text": "User: a\n\nAssistant: b\n\nUser: c\n\nAssistant: "}'
    )
    assert (tmp_path / "out/train_prompts.jsonl").read_bytes() == (
        rb'{"text": "User: Is it \u201chot\u201d?\n\nAssistant:"}' + b"\n"
        rb'{"text": "User: a\n\nAssistant: b\n\nUser: c\n\nAssistant:"}'
    )
    assert report.kept == report.read == 2
    assert report.notes == {"a pair with an empty answer": 1}
    assert list(report.written.values()) == [4, 2]


def test_overlong_counts_prompt_and_the_longer_answer(write_raw, tmp_path):
    # "User: a\n\nAssistant: " has 20 characters
    raw = write_raw([pair("a", "12345", "1"), pair("a", "1", "123456")])
    report = format_hh(raw, tmp_path / "out", "train", max_chars=25)
    assert report.kept == 1
    assert report.skipped == {Reason.OVERLONG: 1}
    assert report.examples[Reason.OVERLONG][0].line == 2


def test_several_files_are_read_in_order(write_raw, tmp_path):
    files = [write_raw([pair(name, "x", "y")], f"{name}.jsonl") for name in ("b", "a")]
    format_hh(files, tmp_path / "out", "test")
    prompts = (tmp_path / "out/test_prompts.jsonl").read_text().split("\n")
    assert [json.loads(line)["text"][:7] for line in prompts] == ["User: b", "User: a"]


def test_an_error_leaves_the_old_files_alone_and_a_killed_run_no_half_file(write_raw, tmp_path, monkeypatch):
    """What a kill would leave is seen while the records are read: hidden files, beside those of other processes."""
    out = tmp_path / "out"
    theirs = out / f".train_prompts.jsonl.{os.getpid()}.partial"
    out.mkdir()
    (out / "train_prompts.jsonl").write_text("old")
    theirs.write_text("mine")
    during = []

    def watched_records(paths, read=hh.read_records):
        during.extend(sorted(path.name for path in out.iterdir()))
        yield from read(paths)

    monkeypatch.setattr(hh, "read_records", watched_records)
    with pytest.raises(DataError, match="no usable record"):
        format_hh(write_raw([{"chosen": "x"}]), out, "train")
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        theirs.name: "mine",
        "train_prompts.jsonl": "old",
    }
    new = sorted(set(during) - {theirs.name, "train_prompts.jsonl"})
    for name, what in zip(new, ("comparisons", "prompts"), strict=True):
        assert name.startswith(f".train_{what}.jsonl.") and name.endswith(".partial")


# Every turn is free of the two separators, which could not be told from a new turn.
turn_text = st.text(st.sampled_from('ab {}\n:é\u2028😀"\\') | st.characters(codec="utf-8"), max_size=20)
turn_text = turn_text.filter(lambda text: hh.HUMAN not in text and hh.ASSISTANT not in text)
turns = st.lists(st.tuples(turn_text, turn_text), min_size=1, max_size=4)


def raw_text(conversation: list[tuple[str, str]]) -> str:
    return "".join(f"{hh.HUMAN}{body}{hh.ASSISTANT}{response}" for body, response in conversation)


@settings(max_examples=50)
@given(turns)
def test_text_is_prompt_space_response(conversation):
    parsed = parse_conversation(raw_text(conversation))
    pieces = [f"User: {body}\n\nAssistant: {response}" for body, response in conversation]
    assert parsed.text == "\n\n".join(pieces)
    assert parsed.text == f"{parsed.prompt} {parsed.response}" and parsed.prompt.endswith("Assistant:")
    assert parsed.response == conversation[-1][1]
