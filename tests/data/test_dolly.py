"""Dolly: the reference's semantics by hand, its bytes, and the split."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.dolly import format_dolly
from data.report import DataError, Reason


def record(instruction: str, context="", response="r", category="open_qa") -> dict[str, str]:
    return {"instruction": instruction, "context": context, "response": response, "category": category}


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# With seed 0, RandomState.randint(0, 2) draws 0, 1, 1, 0, …; 0 puts the context first.
SEMANTICS = [
    (record(" ask ", " ctx \n"), "ctx\n\nask"),  # draw 0
    (record(" ask ", ""), " ask "),  # blank context: no draw, nothing stripped
    (record("ask", " \n\t"), "ask"),  # blank too
    (record("ask\n", "ctx"), "ask\n\nctx"),  # draw 1
    (record("a\nb", "c\n\nd"), "a\nb\n\nc\n\nd"),  # draw 1
    (record("ask", "ctx"), "ctx\n\nask"),  # draw 0
]


def test_order_and_stripping_by_hand(write_raw, tmp_path):
    raw = write_raw([row for row, _ in SEMANTICS])
    format_dolly(raw, tmp_path, seed=0, validation_fraction=0)
    assert [row["input"] for row in read(tmp_path / "train.jsonl")] == [expected for _, expected in SEMANTICS]


def test_output_bytes(write_raw, tmp_path):
    raw = write_raw([record("Où?", "Là.", " Ici 😀\n", "closed_qa"), record("q")])
    report = format_dolly(raw, tmp_path / "out", seed=0, validation_fraction=0)
    assert (tmp_path / "out/train.jsonl").read_bytes() == (
        rb'{"input": "L\u00e0.\n\nO\u00f9?", "output": " Ici \ud83d\ude00\n", "category": "closed_qa"}'
        + b"\n"
        rb'{"input": "q", "output": "r", "category": "open_qa"}' + b"\n"
    )
    assert (tmp_path / "out/validation.jsonl").read_bytes() == b""
    assert list(report.written.values()) == [2, 0]


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_draws_are_those_of_numpy_s_global_generator_which_is_left_alone(write_raw, tmp_path, seed):
    raw = write_raw([record(f"ask {number}", "ctx" if number % 3 else "") for number in range(90)])
    np.random.seed(seed)
    format_dolly(raw, tmp_path, seed=seed, validation_fraction=0)
    draws = [np.random.randint(0, 2) for number in range(90) if number % 3]
    inputs = [row["input"] for row in read(tmp_path / "train.jsonl") if "ctx" in row["input"]]
    assert [0 if text.startswith("ctx") else 1 for text in inputs] == draws


def test_a_skipped_record_draws_too(write_raw, tmp_path):
    # draws 0 (left out), 1, 1
    raw = write_raw([record("a", "ctx", response=""), record("b", "ctx"), record("c", "ctx")])
    report = format_dolly(raw, tmp_path, seed=0, validation_fraction=0)
    assert report.skipped == {Reason.EMPTY_TEXT: 1}
    assert [row["input"] for row in read(tmp_path / "train.jsonl")] == ["b\n\nctx", "c\n\nctx"]


def test_overlong_counts_input_and_output(write_raw, tmp_path):
    raw = write_raw([record("abc", response="de"), record("abc", response="def")])
    report = format_dolly(raw, tmp_path, max_chars=5, validation_fraction=0)
    assert (report.kept, report.skipped) == (1, {Reason.OVERLONG: 1})


rows = st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["", "x", " x ", "y"]), st.sampled_from("pqr"))


@settings(max_examples=30)
@given(st.lists(rows, min_size=12, max_size=60), st.sampled_from([0.1, 0.3, 0.5]), st.integers(0, 5))
def test_split_is_disjoint_by_prompt_and_complete(table, fraction, seed):
    # the response carries the prompt, so that the split can be read back from the output
    data = [record(ask, ctx, f"{ask}|{ctx.strip()}|{end}") for ask, ctx, end in table]
    prompts = {(ask, ctx.strip()) for ask, ctx, _ in table}
    if len(prompts) < 2:
        return
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "raw.jsonl")
        raw.write_text("\n".join(json.dumps(row) for row in data))
        format_dolly(raw, folder, seed=seed, validation_fraction=fraction)
        train, validation = (read(Path(folder, f"{name}.jsonl")) for name in ("train", "validation"))

    trained, held_out = (
        {tuple(line["output"].split("|")[:2]) for line in split} for split in (train, validation)
    )
    assert not trained & held_out
    assert len(held_out) == min(max(1, round(fraction * len(prompts))), len(prompts) - 1)
    outputs = sorted(line["output"] for line in train + validation)
    assert outputs == sorted(row["response"] for row in data)


def test_split_depends_on_the_seed_and_not_on_the_order(write_raw, tmp_path):
    records = [record(f"ask {number}", response=f"answer {number}") for number in range(100)]

    def validation(rows, seed):
        format_dolly(write_raw(rows), tmp_path, seed=seed)
        return {row["input"] for row in read(tmp_path / "validation.jsonl")}

    first = validation(records, 1)
    assert validation(records[::-1], 1) == first != validation(records, 2)
    assert len(first) == 10


def test_impossible_splits_are_refused(write_raw, tmp_path):
    raw = write_raw([record("a")])
    for fraction in (-0.1, 1, 1.5):
        with pytest.raises(DataError, match="at least 0 and below 1"):
            format_dolly(raw, tmp_path / "out", validation_fraction=fraction)
    with pytest.raises(DataError, match="too few for a split"):  # a single prompt
        format_dolly(raw, tmp_path / "out")
    assert not (tmp_path / "out").exists()
