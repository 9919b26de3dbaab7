"""HH: the reference's semantics by hand, its bytes, and properties over random conversations."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

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


def test_error_leaves_the_old_files_alone(write_raw, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "train_prompts.jsonl").write_text("old")
    with pytest.raises(DataError, match="no usable record"):
        format_hh(write_raw([{"chosen": "x"}]), out, "train")
    assert [path.read_text() for path in out.iterdir()] == ["old"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_killed_run_leaves_no_half_file(write_raw, tmp_path):
    raw = write_raw([pair(f"question {number}", "yes", "no") for number in range(100)])
    script = f"""
import os, signal
from data import hh
def records_then_kill(paths, read=hh.read_records):
    for number, record in enumerate(read(paths)):
        if number == 50:
            os.kill(os.getpid(), signal.SIGKILL)
        yield record
hh.read_records = records_then_kill
hh.format_hh({str(raw)!r}, {str(tmp_path / "out")!r}, "train")
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=Path(hh.__file__).parents[1])
    assert ended.returncode == -signal.SIGKILL
    assert not list((tmp_path / "out").glob("*.jsonl"))


# Every turn is free of the two separators, which could not be told from a new turn.
turn_text = st.text(st.sampled_from('ab {}\n:é\u2028😀"\\') | st.characters(codec="utf-8"), max_size=20)
turns = st.lists(st.tuples(turn_text, turn_text), min_size=1, max_size=4).filter(
    lambda pairs: (
        not any(label in text for pair in pairs for text in pair for label in (hh.HUMAN, hh.ASSISTANT))
    )
)


def raw_text(conversation: list[tuple[str, str]]) -> str:
    return "".join(f"{hh.HUMAN}{body}{hh.ASSISTANT}{response}" for body, response in conversation)


@settings(max_examples=50)
@given(turns)
def test_text_is_prompt_space_response(conversation):
    parsed = parse_conversation(raw_text(conversation))
    assert parsed.text == "\n\n".join(
        f"User: {body}\n\nAssistant: {response}" for body, response in conversation
    )
    assert parsed.text == f"{parsed.prompt} {parsed.response}" and parsed.prompt.endswith("Assistant:")
    assert parsed.response == conversation[-1][1]


@settings(max_examples=30)
@given(st.lists(st.tuples(turns, turn_text, turn_text), min_size=1, max_size=5))
def test_line_counts_and_round_trip(rows):
    rows = [
        (raw_text(history + [("x", one)]), raw_text(history + [("x", other)]))
        for history, one, other in rows
        if hh.HUMAN not in one + other and hh.ASSISTANT not in one + other
    ]
    if not rows:
        return
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "raw.jsonl")
        raw.write_text("\n".join(json.dumps({"chosen": one, "rejected": other}) for one, other in rows))
        report = format_hh(raw, folder, "train")
        comparisons = Path(folder, "train_comparisons.jsonl").read_bytes().split(b"\n")
        prompts = Path(folder, "train_prompts.jsonl").read_bytes().split(b"\n")
    assert (report.kept, len(comparisons), len(prompts)) == (len(rows), 2 * len(rows), len(rows))
    texts = [json.loads(line)["text"] for line in comparisons]
    assert texts == [parse_conversation(text).text for row in rows for text in row]
    # the bytes are those of json.dumps
    assert comparisons == [json.dumps({"text": text}).encode() for text in texts]
    assert all(b.startswith(a[:-2]) for a, b in zip(prompts, comparisons[::2], strict=True))


def test_partial_files_lie_in_hidden_folders_with_names_of_their_own(write_raw, tmp_path, monkeypatch):
    theirs = tmp_path / "out" / f".train_prompts.jsonl.{os.getpid()}.partial"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    seen = []

    def watch(paths, read=hh.read_records):
        seen.extend(sorted(path.name for path in theirs.parent.iterdir() if path != theirs))
        yield from read(paths)

    monkeypatch.setattr(hh, "read_records", watch)
    format_hh(write_raw([pair("a", "b", "c")]), tmp_path / "out", "train")
    for name, what in zip(seen, ("comparisons", "prompts"), strict=True):
        assert name.startswith(f".train_{what}.jsonl.") and name.endswith(".partial")
    assert theirs.read_text() == "mine" and len(list(theirs.parent.iterdir())) == 3
