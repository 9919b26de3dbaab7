"""SQuAD: paragraph, question and first answer by hand, and what is left out."""

import json

import pytest
from typer.testing import CliRunner

from aligner_lib.cli.main import app
from data.report import DataError, Reason
from data.squad import format_squad


def record(context="The Seine flows through Paris. ", question=" What flows?", texts=("The Seine", "Seine")):
    answers = {"text": list(texts), "answer_start": [0] * len(texts)}
    return {"id": "1", "title": "Paris", "context": context, "question": question, "answers": answers}


def test_a_question_follows_its_paragraph_and_the_first_answer_counts(write_raw, tmp_path):
    report = format_squad(write_raw([record()]), tmp_path / "out", "train")
    line = json.loads((tmp_path / "out/train.jsonl").read_text())
    assert line == {"input": "The Seine flows through Paris.\n\nWhat flows?", "output": "The Seine"}
    assert report.written == {tmp_path / "out/train.jsonl": 1}


def test_what_has_no_answer_is_counted(write_raw, tmp_path):
    bad = [record(texts=()), record(question=" "), record() | {"answers": "The Seine"}]
    bad += [{"context": "a", "question": "b"}, record(context="a" * 50)]
    raw = write_raw([record(), *bad])
    report = format_squad(raw, tmp_path, "train", max_chars=60)
    assert report.kept == 1
    once = (Reason.WRONG_TYPE, Reason.MISSING_KEY, Reason.OVERLONG)
    assert report.skipped == {Reason.EMPTY_TEXT: 2, **dict.fromkeys(once, 1)}
    with pytest.raises(DataError, match=r"raw\.jsonl:2: empty text"):
        format_squad(raw, tmp_path, "train", strict=True)


def test_splits_are_those_that_squad_has_and_there_is_no_sample(write_raw, tmp_path):
    with pytest.raises(DataError, match="SQuAD has train and validation"):
        format_squad(write_raw([record()]), tmp_path, "test")
    with pytest.raises(DataError, match="no bundled sample of SQuAD"):
        format_squad("sample", tmp_path, "train")


def test_the_command_writes_the_file(write_raw, tmp_path):
    raw = str(write_raw([record()]))
    arguments = ["data", "squad", "--raw", raw, "--out", str(tmp_path), "--split", "train"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert (tmp_path / "train.jsonl").exists()
