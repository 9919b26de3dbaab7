"""Samples of large files: mapped from the cache, equal to samples in memory, and made once."""

import errno
import json
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import chain
from multiprocessing import current_process
from pathlib import Path
from unittest.mock import Mock

import pytest
from tiny_tokenizers import with_settings

from aligner_lib.datasets import load, load_indexed
from aligner_lib.datasets.mapped_samples import MappedSamples
from aligner_lib.datasets.record_keys import UnreadKey
from aligner_lib.datasets.samples import LoadReport, SFTSample, content_hash
from aligner_lib.datasets.tokenize_files import tokenize_file
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.kinds import mapped_data
from aligner_lib.kinds.mapped_data import load_samples

LOADERS = [
    (load.load_sft, "train.jsonl"),
    (load.load_pairs, "test_comparisons.jsonl"),
    (load.load_labelled, "test_comparisons.jsonl"),
    (load_indexed.load_preferences, "tokens"),
]


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """The folder of the mapped samples; files of any size are mapped."""
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(mapped_data, "LARGE_BYTES", 0)
    return tmp_path / "cache" / "samples"


def folders(cached) -> set[str]:
    return {path.name for path in cached.iterdir() if path.is_dir()}


@pytest.mark.parametrize(("loader", "name"), LOADERS, ids=lambda value: getattr(value, "__qualname__", value))
def test_mapped_samples_equal_samples_in_memory(smoke, formatted, cached, tmp_path, loader, name):
    tokenizer, file = Tokenizer(smoke), formatted / name
    if name == "tokens":
        file = tokenize_file(formatted / "test_comparisons.jsonl", tmp_path / "hh", tokenizer).prefix
    expected, report = loader([file], tokenizer, 120)
    mapped, its_report = load_samples(loader, [file], tokenizer, 120)
    assert isinstance(mapped, MappedSamples) and isinstance(expected, list)
    assert its_report == report and (report.dropped or report.cut), "some samples are too long"
    expected = [replace(sample, cut=None) if isinstance(sample, SFTSample) else sample for sample in expected]
    assert list(mapped) == expected and mapped[1:3] == expected[1:3] and mapped[-1] == expected[-1]
    assert mapped.lengths == list(map(len, expected))
    assert mapped.token_counts == [sample.num_tokens for sample in expected]
    assert list(mapped.content_hashes()) == list(map(content_hash, expected))


def test_turns_without_loss_survive_mapping(smoke, cached, tmp_path):
    file = tmp_path / "turns.jsonl"
    turns = [{"role": role, "content": "a b"} for role in ("user", "assistant") * 3]
    turns[3]["weight"] = 0
    file.write_text(json.dumps({"messages": turns}))
    [sample], _ = load_samples(load.load_sft, [file], Tokenizer(smoke), 200)
    assert len(sample.others) == 1, "the answer without a weight and the turns beside it"
    assert [sample] == load.load_sft([file], Tokenizer(smoke), 200)[0]


def test_samples_are_made_once_and_again_for_other_data_settings_or_tokenizers(
    smoke, formatted, cached, tmp_path
):
    file = tmp_path / "validation.jsonl"
    file.write_bytes((formatted / file.name).read_bytes())
    stop_token = Tokenizer(smoke).config["eos_token"]
    other = with_settings(smoke, tmp_path / "other", add_bos_token=True, bos_token=stop_token)

    def made(length: int = 120, folder=smoke) -> set[str]:
        before = folders(cached) if cached.exists() else set()
        load_samples(load.load_sft, [file], Tokenizer(folder), length)
        return folders(cached) - before

    [first] = made()
    assert made() == set()
    assert len(made(length=110)) == len(made(folder=other)) == 1
    file.write_bytes(file.read_bytes() + file.read_bytes().splitlines(keepends=True)[0])
    assert len(made()) == 1
    file.write_bytes((formatted / file.name).read_bytes())
    (cached / first / "samples.bin").write_bytes(b"")
    assert made() == set() and len(MappedSamples(cached / first)) > 0, "damaged samples are made again"


def test_every_module_that_the_loaders_import_is_a_part_of_the_cache_s_key():
    names = [name for name in sys.modules if name.startswith(("aligner_lib.datasets.", "data."))]
    assert {"aligner_lib.datasets.load.sft", "data.tools"} <= {*names}
    assert {Path(sys.modules[name].__file__) for name in names} <= {*mapped_data._code().values()}


def test_small_files_and_a_cache_without_write_permission_stay_in_memory(
    smoke, formatted, cached, monkeypatch, caplog
):
    monkeypatch.setattr(mapped_data, "LARGE_BYTES", 1 << 30)
    arguments = (load.load_sft, [formatted / "validation.jsonl"], Tokenizer(smoke), 120)
    assert isinstance(load_samples(*arguments)[0], list) and not cached.exists()
    monkeypatch.setattr(mapped_data, "LARGE_BYTES", 0)
    monkeypatch.setattr(
        mapped_data, "locked", Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))
    )
    assert isinstance(load_samples(*arguments)[0], list)
    assert "can't be written (Read-only file system): set ALIGNER_CACHE" in caplog.text


@pytest.fixture
def two_workers(cached, monkeypatch):
    """Files of any size are tokenised by two workers."""
    monkeypatch.setattr(mapped_data, "WORKER_BYTES", 1)
    monkeypatch.setattr(mapped_data, "usable_cores", lambda: 2)
    return cached


def test_worker_processes_write_the_same_files_as_one_process(
    smoke, formatted, two_workers, tmp_path, monkeypatch
):
    written = []
    for cores in (2, 1):
        monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path / str(cores)))
        monkeypatch.setattr(mapped_data, "usable_cores", lambda cores=cores: cores)
        samples, report = load_samples(load.load_sft, [formatted / "train.jsonl"], Tokenizer(smoke), 120)
        places = list(chain.from_iterable(report.places.values()))
        assert places and all(place.startswith("train.jsonl:") for place in places)
        written.append({path.name: path.read_bytes() for path in samples.folder.iterdir()})
    assert written[0] == written[1] and written[0].keys() > {"about.json", "samples.bin"}


def test_an_error_in_a_worker_names_file_and_line(smoke, two_workers, tmp_path):
    file = tmp_path / "train.jsonl"
    lines = ['{"input": "a", "output": "b"}\n'] * 250
    file.write_text("".join([*lines[:230], '{"input": "a", "output": "b", "contxt": "c"}\n', *lines[:19]]))
    with pytest.raises(UnreadKey, match=r"train.jsonl:231: the key 'contxt' is not read"):
        load_samples(load.load_sft, [file], Tokenizer(smoke), 120)
    assert folders(two_workers) == set()


def test_one_process_tokenises_when_a_worker_is_killed(smoke, two_workers, tmp_path, caplog):
    def load_once(files, tokenizer, max_length, collect, workers=1):
        if workers == 2:
            raise BrokenProcessPool
        return ["sample"], LoadReport(1)

    file = tmp_path / "train.jsonl"
    file.write_text("a line")
    assert load_samples(load_once, [file], Tokenizer(smoke), 120)[0] == ["sample"]
    assert "one of 2 processes that tokenised the data was killed" in caplog.text


def test_a_worker_that_still_imports_an_unguarded_script_is_refused(smoke, formatted, cached, monkeypatch):
    """The worker runs the script again, and would wait for the lock that its caller holds."""
    monkeypatch.setattr(current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError, match='under `if __name__ == "__main__":`'):
        load_samples(load.load_sft, [formatted / "validation.jsonl"], Tokenizer(smoke), 512)
