"""A user's files in a job's settings: which are converted, once, for which split, and which are refused with the cure.

jobs/test_own_data.py compares the converted lines with those of `data.convert`.
"""

import errno
import json
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
from omegaconf import OmegaConf

from aligner_lib.config.schema import Data
from aligner_lib.errors import UserError
from aligner_lib.kinds import own_files
from aligner_lib.kinds.own_files import GivenFiles, files_of, hash_of_source, trainers_files

QUESTION = {"role": "user", "content": "Why?"}
ANSWER = {"role": "assistant", "content": "So."}
WORSE = {"role": "assistant", "content": "No."}
PAIR = {"prompt": "Why?", "chosen": "So.", "rejected": "No."}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


def jsonl(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def files(samples, train, validation=..., **settings):
    """The files of both splits; without `validation` only those of `train`."""
    given = {"train": GivenFiles("data.train", [str(train)])}
    if validation is not ...:
        given["validation"] = GivenFiles("data.validation", validation and [str(validation)])
    config = OmegaConf.merge(OmegaConf.structured(Data), settings)
    return [path for (path,) in trainers_files(given, samples, config).values()]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


AS_IT_IS = [
    ("sft", {"input": "Why?", "output": "So.", "category": "x"}),
    ("sft", {"input": "Why?", "output": "So.", "instruction": ""}),
    ("sft", {"messages": [QUESTION, ANSWER | {"weight": 1}], "tools": []}),
    ("sft", {"conversations": [{"from": "User", "value": "Why?"}, {"from": "Assistant", "value": "So."}], "mask": "User", "system": "Be brief."}),
    ("sft", {"messages": [QUESTION, ANSWER | {"tool_calls": [{"id": "1"}]}]}),  # refused by the loader, with the key's cure
    ("pairs", {"text": "User: Why?\n\nAssistant: So."}),
    ("pairs", {"prompt": [QUESTION], "chosen": [ANSWER], "rejected": [WORSE]}),
    ("labels", {"prompt": "User: Why?\n\nAssistant:", "response": "So.", "label": False}),
    ("prompts", {"prompt": [QUESTION], "id": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("samples", "record"), AS_IT_IS)
def test_a_file_in_the_trainers_format_stands_for_itself(tmp_path, cache, samples, record):
    file = jsonl(tmp_path / "data.jsonl", record)
    assert files(samples, file, file) == [file, file] and not cache.exists()


SFT = {"messages": [QUESTION, ANSWER]}
CONVERTED = [
    ("sft", {"prompt": "Why?", "completion": "So."}, SFT),
    ("sft", {"conversations": [{"from": "human", "value": "Why?"}, {"from": "bot", "value": "So."}]}, SFT),
    ("sft", {"messages": [QUESTION, ANSWER], "prompt": "Why?"}, SFT),
    ("sft", {"messages": [QUESTION | {"content": [{"type": "text", "text": "Why?"}]}, ANSWER]}, SFT),
    ("pairs", {"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, WORSE]}, PAIR | {"prompt": [QUESTION]}),
    ("pairs", PAIR | {"chosen": json.dumps([ANSWER], indent=1), "rejected": str([WORSE])}, PAIR | {"prompt": [QUESTION]}),
    ("pairs", {"chosen": "\n\nHuman: Why?\n\nAssistant: So.", "rejected": "\n\nHuman: Why?\n\nAssistant: No."}, PAIR | {"prompt": [QUESTION]}),
    ("pairs", PAIR | {"score_chosen": 8}, PAIR | {"prompt": [QUESTION]}),
    ("labels", {"prompt": "Why?", "response": "So.", "label": "true"}, {"prompt": [QUESTION], "response": "So.", "label": True}),
    ("prompts", {"prompt": "User: Why?\n\nAssistant:"}, {"prompt": [QUESTION]}),
]  # fmt: skip


@pytest.mark.parametrize(("samples", "record", "line"), CONVERTED)
def test_a_file_in_another_known_form_is_converted(tmp_path, samples, record, line):
    file = jsonl(tmp_path / "data.jsonl", record)
    (train,) = files(samples, file)
    assert train != file and lines(train) == [line]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data.CSV", "prompt,completion\nWhy?,So.\n"),
        ("data.JSONL", '{"prompt": "Why?", "completion": "So."}'),
    ],
)
def test_the_case_of_a_file_name_s_ending_does_not_matter(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert lines(files("sft", tmp_path / name)[0]) == [SFT]


def test_a_file_of_another_kind_is_not_read_as_json_lines(tmp_path):
    (tmp_path / "data.xlsx").write_bytes(b"PK\3\4")
    with pytest.raises(UserError, match=r"data\.xlsx has an unknown ending: raw data files end in \.jsonl"):
        files("sft", tmp_path / "data.xlsx")


def test_one_of_the_first_records_decides_that_a_file_is_converted_and_a_faulty_record_does_not(tmp_path):
    of_turns = {"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, WORSE], "system": None}
    file = jsonl(tmp_path / "data.jsonl", PAIR | {"system": None}, PAIR | {"prompt": "And?"}, of_turns)
    (train,) = files("pairs", file)
    assert [line["prompt"][0]["content"] for line in lines(train)] == ["Why?", "And?"], (
        "the last pair is the first again"
    )
    faulty = jsonl(tmp_path / "faulty.jsonl", {"prompt": "Why?", "chosen": "So."}, PAIR, PAIR)
    assert files("pairs", faulty) == [faulty]


def test_several_ranks_convert_once_and_each_logs_the_report_also_when_the_file_is_moved(
    tmp_path, monkeypatch, caplog
):
    rows = [PAIR | {"prompt": f"{n}?"} for n in range(3)] + [PAIR | {"rejected": " "}]
    file = tmp_path / "pairs.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    convert, ranks = Mock(side_effect=own_files.converter.convert), threading.Barrier(4)
    monkeypatch.setattr(own_files.converter, "convert", convert)
    caplog.set_level(logging.INFO, "aligner_lib")

    def rank(_):
        ranks.wait()
        return files("pairs", file)

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(rank, range(4))
    assert convert.call_count == 1 and others == [first] * 3 and len(lines(first[0])) == 3
    caplog.clear()
    moved = file.rename(tmp_path / "cache" / "pairs.parquet")
    assert files("pairs", moved) == first and convert.call_count == 1
    for words in ("recognised: preference pairs", "kept 3, skipped 1", "    pairs.parquet:4 ("):
        assert words in caplog.text
    first[0].write_text("cut")  # by a full disk, say
    assert files("pairs", moved) == first and convert.call_count == 2 and len(lines(first[0])) == 3


def test_the_report_shortens_the_names_of_the_source_s_files_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    pair = {"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, WORSE]}
    (train,) = files("pairs", jsonl(Path("data", "pairs.jsonl"), pair, PAIR | {"rejected": " "}))
    assert "    pairs.jsonl:2 (" in caplog.text and f"wrote {train} (1 lines)" in caplog.text


def test_without_a_validation_file_a_share_of_the_prompts_is_held_out(tmp_path):
    rows = [PAIR | {"prompt": f"{n % 40}?", "chosen": str(n)} for n in range(80)]
    file = jsonl(tmp_path / "pairs.jsonl", *rows)
    train, validation = map(lines, files("pairs", file, None, validation_fraction=0.25))
    trained, held_out = ({str(line["prompt"]) for line in split} for split in (train, validation))
    assert not trained & held_out and len(trained | held_out) == 40 and len(train + validation) == 80
    assert 7 <= len(held_out) <= 13, "about a quarter of 40"


@pytest.mark.parametrize("answer", ["Yes.", "Yes. " * 1000], ids=["small", "large"])
def test_several_files_hold_out_the_same_prompts_although_one_has_few(tmp_path, monkeypatch, answer):
    all_are_own = Mock(side_effect=own_files.all_are_own)
    monkeypatch.setattr(own_files, "all_are_own", all_are_own)
    rows = [PAIR | {"prompt": f"{n}?"} for n in range(12)]
    few = jsonl(tmp_path / "few.jsonl", *(row | {"chosen": answer} for row in rows[:4]))
    many = jsonl(tmp_path / "many.jsonl", *rows)
    given = {"train": GivenFiles("data.train", [str(few), str(many)]), "validation": GivenFiles("v", None)}
    split = trainers_files(given, "pairs", OmegaConf.structured(Data))
    train, validation = ([{line["prompt"] for line in lines(path)} for path in split[name]] for name in split)
    assert len(validation[1]) == 2 and len(train[1]) == 10
    assert validation[0] == validation[1] & {f"{n}?" for n in range(4)} and train[0] <= train[1]
    assert all_are_own.call_count == 2, "each file is read once"


@pytest.mark.parametrize(
    ("samples", "record", "held_out"),
    [
        ("sft", {"input": "Why?", "output": "So.", "topic": "x"}, 2),
        ("labels", {"prompt": "User: Why?\n\nAssistant:", "response": "So.", "label": True}, 4),
        ("pairs", PAIR, 4),  # KTO needs two prompts
        ("prompts", {"prompt": "Why?", "text": None}, 2),  # no whole text
    ],
)
def test_held_out_lines_in_the_trainers_format_are_unchanged(tmp_path, caplog, samples, record, held_out):
    caplog.set_level("INFO")
    rows = [json.loads(json.dumps(record).replace("Why", f"Why {n}")) for n in range(4) for _ in range(2)]
    file = jsonl(tmp_path / "d.jsonl", *rows)
    train, validation = map(lines, files(samples, file, None, validation_fraction=1e-9))
    assert sorted(map(str, train + validation)) == sorted(map(str, rows))
    assert len(validation) == held_out and not [row for row in train if row in validation]
    assert "d.jsonl was split" in caplog.text and "and unchanged: 8 records" in caplog.text
    assert "the same sample again: 4" in caplog.text
    assert ("not read: topic" in caplog.text) == ("topic" in record)


OF_KTO = {"prompt": "Why?", "response": "So.", "label": True}


@pytest.mark.parametrize(
    ("samples", "record", "faulty"),
    [
        ("sft", {"input": "Why?", "output": "So."}, {"input": "Why?", "output": None}),
        ("labels", OF_KTO, {"prompt": "Why?", "response": "So."}),
        ("labels", OF_KTO, OF_KTO | {"label": "good"}),
    ],
)
def test_a_faulty_line_is_left_out_of_a_split_and_changes_no_other_line(
    tmp_path, caplog, samples, record, faulty
):
    caplog.set_level("INFO")
    rows = [json.loads(json.dumps(record).replace("Why", f"Why {n}")) for n in range(4)]
    train, validation = files(samples, jsonl(tmp_path / "d.jsonl", faulty, *rows), None)
    assert sorted(map(str, lines(train) + lines(validation))) == sorted(map(str, rows))
    assert "read 5 records, kept 4" in caplog.text and "d.jsonl:1 (" in caplog.text


@pytest.mark.parametrize(
    ("change", "ignored"),
    [({"hint": 1}, ["hint"]), ({"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, WORSE]}, [])],
)
def test_of_a_file_with_one_record_to_convert_all_records_are_converted(tmp_path, change, ignored):
    # more than the first records, whose columns are looked at
    rows = [PAIR | {"prompt": f"Why {n}?"} for n in range(120)] + [PAIR | change]
    file = jsonl(tmp_path / "d.jsonl", *rows)
    train, validation = map(lines, files("pairs", file, None, ignore_columns=ignored))
    assert len(train + validation) == 121 and {*PAIR} == {key for line in train + validation for key in line}
    assert {type(line["prompt"]) for line in train + validation} == {list}


def test_a_folder_with_both_splits_gives_each_its_own_and_other_files_are_whole(tmp_path):
    for split, prompts in (("train", "ab"), ("test", "c")):
        jsonl(tmp_path / "set" / split / "0.jsonl", *(PAIR | {"prompt": prompt} for prompt in prompts))
    pair = {"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, WORSE]}
    other = jsonl(tmp_path / "own" / "test.jsonl", pair)
    for validation, held_out in ((tmp_path / "set", "c"), (None, "c"), (other, "Why?")):
        converted = map(lines, files("pairs", tmp_path / "set", validation))
        prompts = [[line["prompt"][0]["content"] for line in split] for split in converted]
        assert prompts == [["a", "b"], [held_out]]


def test_the_hash_is_that_of_the_user_s_content(tmp_path):
    jsonl(tmp_path / "set" / "a.jsonl", PAIR)
    whole = hash_of_source(tmp_path / "set")
    (tmp_path / "set" / "README").write_text("not data")
    assert hash_of_source(tmp_path / "set") == whole
    jsonl(tmp_path / "set" / "b.jsonl", PAIR)
    assert hash_of_source(tmp_path / "set") != whole


OWN = {"question": "Why?", "best": "So.", "worst": "No.", "hint": 2}
MEANING = {"question": "prompt", "best": "chosen", "worst": "rejected"}
REFUSED = [
    ("pairs", OWN, {}, r"data\.jsonl has the columns question, best, worst, hint, .*model\.data\.columns=\{question: prompt"),
    ("pairs", {"Prompt": "Why?", "Chosen": "So.", "rejected": "No."}, {}, r"with capitals: .*model\.data\.columns=\{Prompt: prompt, Chosen: chosen\}"),
    ("pairs", OWN | {"Ticket Nr": 1}, {"columns": MEANING}, r"""with "model\.data\.ignore_columns=\[hint, 'Ticket Nr'\]"$"""),
    ("pairs", PAIR | {"question": "So?"}, {"columns": {"question": "prompt"}}, r"data\.jsonl:1: the columns 'prompt' and 'question' both mean 'prompt': .*model\.data\.ignore_columns=\[prompt\]"),
    ("pairs", OWN, {"columns": MEANING | {"advice": "system"}, "ignore_columns": ["hint"]}, "data.jsonl has no column 'advice', only question"),
    ("pairs", PAIR, {"columns": {"best": "chosen"}}, r"model\.data\.columns names the column 'best', which no data file has: they have chosen, prompt, rejected"),
    ("pairs", {"prompt": "a", "completion": "b"}, {}, r"data\.jsonl: these records have no rejected answers: `aligner sft` learns"),
    ("pairs", {"prompt": "a", "response": "b", "label": True}, {}, r"data\.jsonl has labelled answers, .*preference_loss=kto"),
    ("pairs", PAIR | {"rejected": "So.", "margin": 1}, {}, r"data\.jsonl holds no usable record \(chosen and rejected are equal 1\)"),
]  # fmt: skip


@pytest.mark.parametrize(("samples", "record", "settings", "message"), REFUSED)
def test_a_file_that_means_something_else_is_refused_with_the_cure(
    tmp_path, cache, samples, record, settings, message
):
    with pytest.raises(UserError, match=message):
        files(samples, jsonl(tmp_path / "data.jsonl", record), **settings)
    if "label" not in record:
        assert not [path for path in cache.glob("*") if path.is_dir()]


@pytest.mark.parametrize("value", [3, OmegaConf.create(["a.jsonl", 3]), OmegaConf.create({"a": 3})])
def test_a_value_that_is_not_a_path_is_refused(value):
    with pytest.raises(UserError, match=r"data_prefix\.train=.*3.* is not a path: give a file, or a list"):
        files_of(value, "model.data.data_prefix.train")


def test_a_column_that_the_first_record_or_another_file_lacks_may_be_ignored(tmp_path):
    file, other = tmp_path / "d.json", tmp_path / "other.json"
    file.write_text(json.dumps([PAIR, PAIR | {"prompt": "Who?", "hint": 2}]))
    other.write_text(json.dumps([PAIR]))
    train, validation = files("pairs", file, other, ignore_columns=["hint"])
    assert len(lines(train)) == 2 and len(lines(validation)) == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "User: a\n\nAssistant: b"}, r"data\.validation is not set: .*a\.jsonl has whole texts"),
        (PAIR, r"a\.jsonl has so few prompts that none was held out: raise model\.data\.validation_fraction"),
    ],
)
def test_a_file_of_which_nothing_is_held_out_is_refused(tmp_path, record, message):
    with pytest.raises(UserError, match=message):
        files("pairs", jsonl(tmp_path / "a.jsonl", record), None, validation_fraction=1e-9)


@pytest.fixture
def on_hub(tmp_path, monkeypatch):
    """A function that puts a data set on the hub: its files by name. The hub's client is replaced, and its requests are kept."""
    monkeypatch.chdir(tmp_path)
    folder, requests = tmp_path / "snapshots", []

    def put(**records):
        siblings = [SimpleNamespace(rfilename=f"data/{name}.jsonl") for name in records]
        for sibling, rows in zip(siblings, records.values()):
            jsonl(folder / sibling.rfilename, *rows)

        def info(api, name, *, repo_type, revision, timeout):
            requests.append((name, revision))
            if not records:
                raise OSError("Name or service not known")
            return SimpleNamespace(siblings=siblings)

        monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", info)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file, **_: folder / file)
        return requests

    return put


def test_a_data_set_of_the_hub_is_downloaded_converted_once_and_keeps_its_splits(on_hub, cache, caplog):
    requests = on_hub(train=[PAIR, PAIR | {"prompt": "Who?"}], test=[PAIR | {"prompt": "When?"}])
    caplog.set_level("INFO")
    for name in ("owner/set@v2", "owner/set"):
        train, validation = files("pairs", name, None)
        assert [line["prompt"][0]["content"] for line in lines(train)] == ["Why?", "Who?"]
        assert [line["prompt"][0]["content"] for line in lines(validation)] == ["When?"]
    assert {*requests} == {("owner/set", "v2"), ("owner/set", "main")}
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1
    assert "owner/set is looked up on the Hugging Face hub" in caplog.text
    assert "held out, by their names: test.jsonl" in caplog.text
    whole = hash_of_source(Path("owner/set"))
    on_hub(train=[PAIR], test=[PAIR])
    assert hash_of_source(Path("owner/set")) != whole


def test_a_missing_file_is_told_with_its_cure(tmp_path, on_hub):
    on_hub()
    with pytest.raises(FileNotFoundError, match=r"a\.parquet does not exist: `aligner data --help`"):
        files("sft", tmp_path / "a.parquet")
    message = r"file owner/set does not exist\. The data set .*Name or service not known.*`aligner data owner/set --to pref"
    with pytest.raises(FileNotFoundError, match=message):
        files("pairs", "owner/set")


def test_a_cache_that_cannot_be_written_is_named_with_two_cures(tmp_path, cache, monkeypatch):
    file = jsonl(tmp_path / "data.jsonl", {"prompt": "Why?", "completion": "So."})
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    message = f"{file} has to be converted, but the cache {cache} can't be written (Permission denied): convert the file with "
    with pytest.raises(
        UserError, match=f"^{re.escape(message)}`aligner data .* --to sft --out DIR`, or set ALIGNER_CACHE"
    ):
        files("sft", file)
