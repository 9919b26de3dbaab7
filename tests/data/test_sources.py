"""Which raw files a name stands for; the hub is replaced by a fake, its error handling runs for real."""

import errno
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from data import hub
from data.hub import HubError, is_hub_name
from data.report import DataError
from data.sources import SAMPLES, own_files, resolve


class FakeHub:
    """Answers like the hub's client, and keeps account of what was downloaded."""

    def __init__(self, monkeypatch, *, cached=False, error: Exception | None = None, files=()):
        self.downloads: list[tuple[str, str, str]] = []
        self.cached, self.error, self.files = cached, error, files
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.download)
        monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", self.answer)
        monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", self.answer)

    def download(self, name, file, *, repo_type, revision, local_files_only=False):
        assert repo_type == "dataset"
        if local_files_only and not self.cached:
            raise LocalEntryNotFoundError("not cached")
        self.downloads.append((name, file, revision))
        return f"/cache/{file}"

    def answer(self, *_, **__):
        if self.error:
            raise self.error
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in self.files])


@pytest.mark.parametrize("kind", ["dolly", "hh"])
def test_dolly_and_hh_come_from_the_hub_at_a_pinned_revision(monkeypatch, kind):
    fake = FakeHub(monkeypatch)
    source = resolve(kind, kind, split="test")
    revisions = {revision for _, _, revision in fake.downloads}
    assert all(len(revision) == 40 for revision in revisions) and len(revisions) == 1
    files = [file for _, file, _ in fake.downloads]
    assert source.paths == tuple(Path(f"/cache/{file}") for file in files)
    expected = [f"{subset}/test.jsonl.gz" for subset in sorted(hub.HH_SUBSETS)]
    assert files == (expected if kind == "hh" else ["databricks-dolly-15k.jsonl"])


@pytest.mark.parametrize(
    ("name", "listed", "options", "expected"),
    [
        ("Anthropic/hh-rlhf@abc", [], {"subset": "harmless-base"}, ("harmless-base/train.jsonl.gz", "abc")),
        ("someone/pairs", ["README.md", "data/train-0.parquet", "data/test-0.parquet"], {}, ("data/train-0.parquet", "main")),
    ],
)  # fmt: skip
def test_of_a_data_set_the_files_of_a_subset_and_split_are_taken(
    monkeypatch, name, listed, options, expected
):
    fake = FakeHub(monkeypatch, files=listed)
    resolve(name, "hh", split="train", **options)
    assert fake.downloads == [(name.partition("@")[0], *expected)]


def test_a_data_set_of_json_files_alone_is_read_without_its_description(monkeypatch):
    fake = FakeHub(monkeypatch, files=["README.md", "dataset_infos.json", "alpaca_data_cleaned.json"])
    own_files("someone/alpaca")
    assert [file for _, file, _ in fake.downloads] == ["alpaca_data_cleaned.json"]
    FakeHub(monkeypatch, files=["README.md", "pairs.zip"])
    with pytest.raises(HubError, match=r"someone/zipped has no file that ends in \.jsonl, .*: download it"):
        own_files("someone/zipped")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("hh", r"Anthropic/hh-rlhf has no file for split 'validation'; known files: harmless-base/"),
        ("sample", "no split 'validation', only train and test"),
        ("nowhere", r"is not a file: give a file ending in \.jsonl"),
        ("a/nowhere.jsonl.gz", r"is not a file: give a file ending in \.jsonl"),
        ([], "no raw data file was given"),
    ],
)
def test_what_is_not_there_is_named(monkeypatch, dataset, message):
    FakeHub(monkeypatch)
    with pytest.raises(DataError, match=message):
        resolve(dataset, "hh", split="validation")


@pytest.mark.parametrize("name", ["out/raw.jsonl", "./raw", "../raw", "a/b/c", "raw", "/tmp/raw"])
def test_a_path_is_no_name_of_the_hub(name):
    assert is_hub_name("Anthropic/hh-rlhf") and not is_hub_name(name)


def test_a_full_disk_is_not_a_hub_that_can_t_be_reached(monkeypatch):
    FakeHub(monkeypatch, error=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(HubError, match=r"The disk is full: free space for the data set .* \(HF_HOME\)"):
        resolve("hh", "hh", split="test")


def test_cached_files_need_no_network(monkeypatch):
    FakeHub(monkeypatch, cached=True, error=OSError("no network"))
    assert resolve("dolly", "dolly").paths == (Path("/cache/databricks-dolly-15k.jsonl"),)


@pytest.mark.parametrize("name", ["databricks/databricks-dolly-15k", "someone/unknown"])
def test_unreachable_hub_is_one_sentence(monkeypatch, name):
    FakeHub(monkeypatch, error=OSError("Name or service\nnot known"))
    message = rf"^The data set {name} cannot be had .* \(Name or service not known\); check the network.*\.$"
    with pytest.raises(HubError, match=message):
        resolve(name, "dolly")


def test_auto_takes_the_hub_where_it_can_and_else_the_sample_and_says_so(monkeypatch):
    FakeHub(monkeypatch)
    note = "raw data: databricks/databricks-dolly-15k from the Hugging Face hub (1 files)"
    assert resolve("auto", "dolly").note == note
    FakeHub(monkeypatch, error=OSError("no network"))
    source = resolve("auto", "hh", split="test")
    assert source.paths == (SAMPLES / "hh-sample-test.jsonl",)
    note = "raw data: the bundled sample hh-sample-test.jsonl (The data set Anthropic/hh-rlhf"
    assert source.note.startswith(note) and "no network" in source.note and "\n" not in source.note


def test_hub_is_the_real_data_of_every_kind_and_never_the_sample(monkeypatch):
    FakeHub(monkeypatch)
    names = {"dolly": "databricks/databricks-dolly-15k", "hh": "Anthropic/hh-rlhf"}
    assert {kind: resolve("hub", kind).name for kind in names} == names
    FakeHub(monkeypatch, error=OSError("no network"))
    with pytest.raises(HubError, match="Anthropic/hh-rlhf cannot be had"):
        resolve("hub", "hh")


@pytest.mark.parametrize(
    ("dataset", "kind", "split", "file"),
    [
        ("sample", "hh", "test", "hh-sample-test.jsonl"),
        ("drawn", "hh", "test", "drawn-test.jsonl"),
        ("dolly", "hh", "test", "hh-sample-test.jsonl"),  # Dolly has no pairs
        ("hh", "dolly", "train", "dolly-sample.jsonl"),  # HH has no instruction records
    ],
)
def test_samples(dataset, kind, split, file):
    (path,) = resolve(dataset, kind, split=split).paths
    assert path == SAMPLES / file and path.is_file()
