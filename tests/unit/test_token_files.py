"""Megatron's token files: written by any number of workers, continued after a kill, and read as the same samples."""

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import STYLES, with_settings, write
from typer.testing import CliRunner

from aligner_lib.cli.main import app
from aligner_lib.datasets import indexed_dataset, load, load_indexed
from aligner_lib.datasets.chat_template import OWN, PLAIN, use_template
from aligner_lib.datasets.indexed_dataset import INT32, UINT16, IndexedDataset, files_of_prefix
from aligner_lib.datasets.token_files import Unfinished, about_file
from aligner_lib.datasets.tokenize_files import tokenize_file
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError

LOADERS = ("load_pairs", "load_preferences", "load_labelled")


@pytest.fixture
def tokenizer(smoke) -> Tokenizer:
    return Tokenizer(smoke)


@pytest.fixture(scope="module")
def comparisons(formatted, smoke, tmp_path_factory) -> Path:
    """The prefix of the bundled comparisons' token files, as the seeds' command writes them."""
    source, prefix = formatted / "test_comparisons.jsonl", tmp_path_factory.mktemp("comparisons") / "hh"
    return tokenize_file(source, prefix, Tokenizer(smoke), append_eod=True).prefix


@pytest.fixture
def written(comparisons, tmp_path) -> Path:
    """A copy of these files that a test may change."""
    for path in (*files_of_prefix(comparisons), about_file(comparisons)):
        shutil.copy(path, tmp_path)
    return tmp_path / comparisons.name


def content(prefix: Path) -> list[bytes]:
    return [path.read_bytes() for path in (*files_of_prefix(prefix), about_file(prefix))]


def write_lines(path: Path, *texts: str | bytes) -> Path:
    records = [text if isinstance(text, bytes) else json.dumps({"text": text}).encode() for text in texts]
    path.write_bytes(b"\n".join(records))
    return path


def tokenized(folder: Path, tokenizer: Tokenizer, *texts: str | bytes, **options) -> tuple[Path, Path]:
    """A file of lines, and the prefix of its token files."""
    source = write_lines(folder / "a.jsonl", *texts)
    return source, tokenize_file(source, folder / "a", tokenizer, **options).prefix


def write_documents(prefix: Path, documents: list[list[int]], dtype: int) -> None:
    binary, index = files_of_prefix(prefix)
    binary.write_bytes(np.array([*chain(*documents)], indexed_dataset.DTYPES[dtype]).tobytes())
    with open(index, "wb") as file:
        indexed_dataset.write_index(file, dtype, np.array(list(map(len, documents)), np.int32))


# ---- the format -----------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 65_499), max_size=5)), st.sampled_from([UINT16, INT32]))
def test_documents_are_read_as_they_were_written(tmp_path_factory, documents, dtype):
    prefix = tmp_path_factory.mktemp("files") / "a.b"
    assert [path.name for path in files_of_prefix(prefix)] == ["a.b.bin", "a.b.idx"]
    write_documents(prefix, documents, dtype)
    read = IndexedDataset(prefix)
    assert list(read) == documents
    assert (len(read), read.tokens) == (len(documents), sum(map(len, documents)))


def test_ids_beyond_a_gap_in_the_vocabulary_are_written_and_read(tmp_path):
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers

    library = Library(models.WordLevel({"a": 0, "b": 70_000, "</s>": 1}, unk_token="a"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(write(tmp_path / "gap", library, "PreTrainedTokenizerFast"))
    _, prefix = tokenized(tmp_path, tokenizer, "a b")
    (prompt,), _ = load_indexed.load_prompts([prefix], tokenizer, 8)
    assert prompt.tokens == [0, 70_000]
    assert indexed_dataset.best_dtype(65_499) == UINT16 and indexed_dataset.best_dtype(65_500) == INT32


CUT_OFF = r"describes .*cut off or belongs to another data set"


@pytest.mark.parametrize(
    ("which", "change", "words"),
    [
        ("bin", lambda old: old[:-2], CUT_OFF),
        ("bin", lambda old: old + b"\0\0", CUT_OFF),
        ("bin", lambda old: b"", r"has 0 bytes"),
        ("idx", lambda old: old[:-8], r"cut off or was written twice"),
        ("idx", lambda old: old + old, r"cut off or was written twice"),
        ("idx", lambda old: old[:20], r"not an index of Megatron's"),
        ("idx", lambda old: b"PK" + old[2:], r"not an index of Megatron's"),
        ("idx", lambda old: old[:17] + b"\x09" + old[18:], r"dtype 9"),
        ("idx", lambda old: old[:-16] + old[-8:] + old[-16:-8], r"contradict each other"),
        ("idx", lambda old: old[:34] + b"\xff" * 4 + old[38:], rf"{CUT_OFF}|contradict"),
    ],
)
def test_files_that_are_not_whole_are_refused(written, tokenizer, which, change, words):
    path = written.with_name(f"{written.name}.{which}")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=words):
        load_indexed.load_pairs([written], tokenizer, 256)


def test_either_file_names_both_and_a_missing_one_is_named(written, tokenizer):
    by_prefix, _ = load_indexed.load_pairs([written], tokenizer, 256)
    for path in files_of_prefix(written):
        assert load_indexed.load_pairs([path], tokenizer, 256)[0] == by_prefix
    files_of_prefix(written)[1].unlink()
    with pytest.raises(FileNotFoundError, match=r"hh_text_document\.idx does not exist.*data_impl=mmap"):
        load_indexed.load_pairs([written], tokenizer, 256)


# ---- writing --------------------------------------------------------------------------------------------------------


def test_a_document_is_a_line(formatted, comparisons, tokenizer, tmp_path):
    source = formatted / "test_comparisons.jsonl"
    texts = [json.loads(line)["text"] for line in source.read_text().splitlines()]
    bare = tokenize_file(source, tmp_path / "deep" / "bare", tokenizer, append_eod=False)
    assert bare.prefix == tmp_path / "deep" / "bare_text_document"
    assert (bare.documents, bare.tokens) == (len(texts), IndexedDataset(bare.prefix).tokens)
    for prefix, end in ((bare.prefix, []), (comparisons, [tokenizer.eos_id])):
        assert list(IndexedDataset(prefix)) == [tokenizer.encode(text) + end for text in texts]


def test_neither_workers_nor_chunks_change_a_byte(formatted, comparisons, tokenizer, tmp_path):
    source = formatted / "test_comparisons.jsonl"
    made = tokenize_file(source, tmp_path / "two", tokenizer, append_eod=True, workers=2, chunk_size=7)
    assert content(made.prefix) == content(comparisons)


def killed_at_100_lines(source: Path, prefix: Path, model: Path) -> None:
    append = Unfinished.append

    def kill(self, encoded):
        append(self, encoded)
        if os.path.getsize(self._lengths) > 400:
            os.kill(os.getpid(), signal.SIGKILL)

    Unfinished.append = kill
    tokenize_file(source, prefix, Tokenizer(model), append_eod=True, chunk_size=3)


def test_a_killed_call_is_continued_and_writes_the_same(formatted, comparisons, tokenizer, smoke, tmp_path):
    """The kill costs both files three bytes, as on a machine that loses its power."""
    source = formatted / "test_comparisons.jsonl"
    killed = multiprocessing.get_context("fork").Process(
        target=killed_at_100_lines, args=(source, tmp_path / "hh", smoke)
    )
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert not any(path.exists() for path in files_of_prefix(tmp_path / "hh_text_document"))
    for name in ("lengths", "bin"):
        path = tmp_path / f".hh_text_document.{name}.partial"
        os.truncate(path, path.stat().st_size - 3)
    made = tokenize_file(source, tmp_path / "hh", tokenizer, append_eod=True)
    assert 90 < made.went_on < made.documents
    assert content(made.prefix) == content(comparisons)
    assert not list(tmp_path.glob(".hh*")), "hidden files are left"


def test_complete_files_are_kept_and_others_are_not_written_over(formatted, tokenizer, written):
    before, prefix = content(written), written.with_name("hh")
    again = tokenize_file(formatted / "test_comparisons.jsonl", prefix, tokenizer, append_eod=True)
    assert again.went_on == again.documents and content(written) == before
    with pytest.raises(
        UserError, match=r"from another file, .*remove .*_document\.bin and .*_document\.idx, or"
    ):
        tokenize_file(formatted / "test_comparisons.jsonl", prefix, tokenizer)
    assert content(written) == before


def test_files_left_by_an_earlier_call_for_another_source_are_not_used(tmp_path, tokenizer):
    for name, left in (
        ("about", b'{"source": "of another file"}'),
        ("bin", b"1234"),
        ("lengths", b"\2\0\0\0"),
    ):
        (tmp_path / f".a_text_document.{name}.partial").write_bytes(left)
    _, prefix = tokenized(tmp_path, tokenizer, "one", "two")
    assert list(IndexedDataset(prefix)) == [tokenizer.encode("one"), tokenizer.encode("two")]


def test_a_record_without_a_text_is_an_empty_document_and_an_empty_line_is_refused(tmp_path, tokenizer):
    source = write_lines(tmp_path / "a.jsonl", "good", b"{", "fine", " ", "better", "worse", b"", b"  ")
    made = tokenize_file(source, tmp_path / "a", tokenizer, append_eod=True, chunk_size=2)
    assert [len(ids) > 0 for ids in IndexedDataset(made.prefix)] == [True, False, True, False, True, True]
    assert made.report.lines() == [
        "1 of 6 samples left out: not JSON (first: a.jsonl:2)",
        "1 of 6 samples left out: empty text (first: a.jsonl:4)",
    ]
    samples, report = load_indexed.load_pairs([made.prefix], tokenizer, 64)
    assert [tokenizer.decode(sample.chosen) for sample in samples] == ["better"]
    assert report.total == 3 and sum(report.dropped.values()) == 2
    (tmp_path / "empty line").mkdir()
    with pytest.raises(UserError, match=r"a\.jsonl:2 is empty"):
        tokenized(tmp_path / "empty line", tokenizer, "good", b"", "bad")


@pytest.mark.parametrize(
    ("content", "fault"),
    [('{"prompt": "a", "chosen": "b", "rejected": "c"}', "no key 'text'"), ("", "the file is empty")],
)
def test_a_file_without_any_text_is_refused_and_leaves_no_files(tmp_path, tokenizer, content, fault):
    source = tmp_path / "a.jsonl"
    source.write_text(content)
    with pytest.raises(UserError, match=rf"a\.jsonl has no text under 'text', .*{fault}.*--json-keys"):
        tokenize_file(source, tmp_path / "a", tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_text_without_a_turn_is_left_out_with_the_tokenizer_s_template(tmp_path, smoke):
    tokenizer = use_template(Tokenizer(smoke), OWN)
    source = write_lines(tmp_path / "a.jsonl", "User: Hi?\n\nAssistant:", "Assistant:")
    for report in (
        tokenize_file(source, tmp_path / "a", tokenizer).report,
        load.load_prompts([source], tokenizer, 64)[1],
    ):
        assert [line.partition(" for ")[0] for line in report.lines()] == [
            "1 of 2 samples left out: the prompt 'Assistant:' has no turn"
        ]


def test_a_second_call_is_refused_while_the_first_one_writes(tmp_path, tokenizer):
    with open(tmp_path / ".a_text_document.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another call is writing"):
            tokenized(tmp_path, tokenizer, "good")


def test_the_tutorial_s_command_is_taken(formatted, smoke, tmp_path):
    """But for the script's name, and a tokenizer of ours in place of its own."""
    command = f"""data mmap --input {formatted / "test_comparisons.jsonl"} --output-prefix {tmp_path / "hh_comparison_test"}
        --tokenizer-model {smoke / "tokenizer.json"} --tokenizer-library=sentencepiece --json-keys text --dataset-impl mmap
        --workers 1 --chunk_size=100 --append-eod"""
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0, result.output
    assert "hh_comparison_test_text_document.idx: 220 documents" in result.output
    assert len(IndexedDataset(tmp_path / "hh_comparison_test_text_document")) == 220
    assert CliRunner().invoke(app, [*command.split(), "--chat-template", "chatml"]).exit_code == 1


def test_the_command_shows_lengths_and_padding(formatted, smoke, tmp_path):
    file = formatted / "train.jsonl"
    result = CliRunner().invoke(app, f"data lengths {file} --tokenizer {smoke} --micro-batch-size 1".split())
    name, lengths, _, counted, packed = result.output.splitlines()[:5]
    assert name.startswith("train.jsonl: 576 samples, ") and "the longest" in lengths
    assert counted.split() == ["1", "samples", "64.0", "0.0%"]  # a sample alone has no padding
    assert packed.split()[1] == "tokens" and packed.endswith("%")
    for record, shown in (
        ({"prompt": "Why?", "response": "So.", "label": True}, "own.jsonl: 2 samples, "),
        ({"prompt": "Why?", "completion": "So."}, "own.jsonl --to sft --out DIR`, and give DIR/train.jsonl"),
        ({"prompt": "Why?"}, "own.jsonl has prompts without answers: `aligner data "),
        ({"question": "Why?"}, "own.jsonl has prompts without answers: `aligner data "),
        ({"prompt": "Why?", "advice": "So."}, "own.jsonl --to … --out DIR`"),
        ({"prompt": "Why?", "messages": [{"role": "user", "content": "Why?"}]}, "own.jsonl --to sft --out"),
        ({"instruction": "Why?", "output": "So.", "text": "Why? So."}, "own.jsonl --to sft --out"),
        ({"prompt": "Why?", "chosen_response": "a", "rejected_response": "b"}, "--to preferences --out"),
        ({"prompt": "Why?", "chosen": "a", "rejected": "b", "text": None}, "own.jsonl: 2 samples, "),
        (
            {"text": "User: Why?\n\nAssistant:"},
            "own.jsonl --to prompts --map text=prompt --out DIR --tokenizer",
        ),
    ):
        own = tmp_path / "own.jsonl"
        own.write_text("".join(json.dumps(record).replace("Why", word) + "\n" for word in ("Why", "Who")))
        result = CliRunner().invoke(app, f"data lengths {own} --tokenizer {smoke}".split())
        assert shown in f"{result.output}{result.exception}"


# ---- the same samples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("template", "append_eod"), [(PLAIN, False), (OWN, True)])
def test_the_samples_are_those_of_the_lines(formatted, smoke, tmp_path, template, append_eod):
    tokenizer = use_template(Tokenizer(smoke), template)
    for name, loaders in (("test_comparisons", LOADERS), ("test_prompts", ["load_prompts"])):
        source = formatted / f"{name}.jsonl"
        prefix = tokenize_file(source, tmp_path / name, tokenizer, append_eod=append_eod).prefix
        for loader in loaders:
            expected, report_of_lines = getattr(load, loader)([source], tokenizer, 96)
            samples, report = getattr(load_indexed, loader)([prefix], tokenizer, 96)
            assert samples == expected and report.dropped == report_of_lines.dropped


TURNS = "User: How are you, in 北京 😀?\n\nAssistant: Fine.\n\nUser: Why?\n\nAssistant:"
TEXTS = [f"{TURNS} The weather is fine.", f"{TURNS} Go away 😀."]
TEXTS += [f"User: Hi\n\nAssistant: {answer}" for answer in ("Hello!", "No")]


@pytest.mark.parametrize("with_bos", [True, False], ids=["BOS", "as NeMo's tool"])
@pytest.mark.parametrize("style", STYLES)
def test_every_kind_of_tokenizer_finds_the_response_again(tmp_path, style, with_bos):
    tokenizer = Tokenizer(STYLES[style](tmp_path / "model"))
    source, prefix = tokenized(tmp_path, tokenizer, *TEXTS, append_eod=True)
    if not with_bos:  # another tool's files, which say nothing of themselves
        about_file(prefix).unlink()
        documents = [ids[len(tokenizer.bos_ids) :] for ids in IndexedDataset(prefix)]
        write_documents(prefix, documents, UINT16)
    for loader in LOADERS:
        expected, _ = getattr(load, loader)([source], tokenizer, 512)
        assert getattr(load_indexed, loader)([prefix], tokenizer, 512)[0] == expected


def test_a_response_that_contains_a_stop_token_is_left_out(tmp_path, tokenizer):
    stop = tokenizer.decode([tokenizer.eos_id], special_tokens=True)
    texts = [f"User: {end}?\n\nAssistant: {answer}" for end in ("1", "2", stop) for answer in ("Yes.", "No.")]
    lines, prefix = tokenized(tmp_path, tokenizer, *texts, texts[0] + f"{stop} more", texts[1])
    for name in LOADERS:
        samples, report = getattr(load_indexed, name)([prefix], tokenizer, 64)
        assert samples == getattr(load, name)([lines], tokenizer, 64)[0]
        assert report.lines()[0].startswith("1 of 4 samples left out: an answer contains the stop token")


@pytest.mark.parametrize("template", [PLAIN, OWN])
def test_a_pair_with_a_blank_answer_is_left_out_as_of_lines(tmp_path, smoke, template):
    tokenizer = use_template(Tokenizer(smoke), template)
    texts = [f"User: Hi\n\nAssistant:{answer}" for answer in (" Hello!", " ", "\n", " No", " Yes", " No")]
    lines, prefix = tokenized(tmp_path, tokenizer, *texts)
    for name in LOADERS[template == PLAIN : 2]:  # a reward model's plain texts need no answer
        samples, report = getattr(load_indexed, name)([prefix], tokenizer, 64)
        assert samples == getattr(load, name)([lines], tokenizer, 64)[0]
        assert report.lines()[0].startswith("2 of 3 samples left out: no answer behind a last ")


def test_a_reward_model_learns_with_a_template_that_writes_nothing_before_an_answer(tmp_path, smoke):
    end = "{% if m['role'] == 'user' %} [/INST]{% else %}{{ eos_token }}{% endif %}"
    template = "{% for m in messages %}[INST] {{ m['content'] }}" + end + "{% endfor %}"
    tokenizer = use_template(Tokenizer(with_settings(smoke, tmp_path / "model", chat_template=template)), OWN)
    texts = [f"User: 1\n\nAssistant: Hi.\n\nUser: 2\n\nAssistant: {answer}" for answer in ("Yes.", "No.")]
    lines, prefix = tokenized(tmp_path, tokenizer, *texts)
    samples, _ = load_indexed.load_pairs([prefix], tokenizer, 128)
    assert samples == load.load_pairs([lines], tokenizer, 128)[0]
    with pytest.raises(
        UserError, match=r"writes nothing before an answer, .*: give model\.data\.data_impl=jsonl"
    ):
        load_indexed.load_preferences([prefix], tokenizer, 128)


def test_an_odd_number_of_documents_is_refused_as_pairs(tmp_path, tokenizer):
    _, prefix = tokenized(tmp_path, tokenizer, "a", "b", "c")
    with pytest.raises(UserError, match="has 3 documents: chosen and rejected documents alternate"):
        load_indexed.load_pairs([prefix], tokenizer, 64)


def test_another_tokenizer_or_template_is_refused(comparisons, smoke, tmp_path, written):
    def assert_refused(prefix: Path, tokenizer: Tokenizer, words: str) -> None:
        with pytest.raises(UserError, match=words):
            load_indexed.load_pairs([prefix], tokenizer, 256)

    folder = with_settings(smoke, tmp_path / "another")
    stored = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = stored["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    another = Tokenizer(folder)
    assert_refused(comparisons, another, "written with another tokenizer than the tokenizer of .*another")
    own = use_template(Tokenizer(smoke), OWN)
    words = r"--chat-template plain, but the run has model\.data\.chat_template=tokenizer"
    assert_refused(comparisons, own, words)
    about_file(written).unlink()  # another tool's files, which say nothing of themselves
    small = Tokenizer(STYLES["gpt2"](tmp_path / "small"))
    words = f"vocabulary of .*small ends at {small.vocab_size - 1}: another"
    assert_refused(written, small, words)
    other = Tokenizer(with_settings(smoke, tmp_path / "other", eos_token="<|im_start|>"))
    assert_refused(written, other, r"documents end with token \d+, but the stop token .* is \d+")
