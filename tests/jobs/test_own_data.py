"""Jobs on a user's files: recognised, converted once and trained on, as if `aligner data` had converted them before."""

import logging

import pyarrow
import pyarrow.parquet
import pytest
from smoke_jobs import prepare_smoke_job

from aligner_lib.models.hash import file_hash
from data import convert

MEANING = {"question": "prompt", "best": "chosen", "worst": "rejected"}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ALIGNER_CACHE", str(folder))
    return folder


def written(path, rows: list[dict]):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_a_user_s_file_is_converted_once_as_aligner_data_would(jobs, tmp_path, cache, caplog):
    rows = [{"question": f"What is {n}?", "best": f"The number {n}.", "worst": "No idea."} for n in range(48)]
    source = written(tmp_path / "my_pairs.parquet", rows)
    settings = jobs.settings(
        "rm",
        "user_file",
        model__data__data_prefix__train=f"['{source}']",
        model__data__data_prefix__validation="null",
        model__data__columns="{question: prompt, best: chosen, worst: rejected}",
        model__data__validation_fraction=0.25,
        model__global_batch_size=8,
    )
    with caplog.at_level(logging.INFO, "aligner_lib"):
        for _ in range(2):  # as the run begins, and as it goes on
            job = prepare_smoke_job("rm", settings)
            job.close()
    assert "recognised: preference pairs" in caplog.text and "read 48 records, kept 48" in caplog.text
    assert job.hashes.keys() == {"model", "my_pairs.parquet"}
    assert job.hashes["my_pairs.parquet"] == file_hash(source)
    (folder,) = (path for path in (cache / "data").iterdir() if path.is_dir())
    by_hand = convert(source, tmp_path / "by_hand", "preferences", columns=MEANING, validation_fraction=0.25)
    for path in by_hand.paths:
        assert (folder / path.name).read_bytes() == path.read_bytes()


ROW = {"prompt": "What is 7?", "response": "A number."}
FILES = {
    "sft": [{"instruction": f"What is {n}?", "input": "", "output": "A number."} for n in range(40)],
    "dpo": [ROW | {"prompt": f"What is {n}?", "label": n % 3 > 0} for n in range(40)],
    "ppo": [ROW | {"prompt": f"What is {n}?", "helpfulness": n % 5} for n in range(40)],
    "evaluate": [{"conversations": [{"from": "human", "value": f"What is {n}?"}]} for n in range(40)],
}


@pytest.mark.parametrize("kind", FILES)
def test_each_kind_reads_its_samples_from_a_user_s_file(jobs, tmp_path, caplog, kind):
    source, settings = written(tmp_path / "own.parquet", FILES[kind]), {}
    for split in ("train", "validation"):
        if kind == "sft":
            settings[f"model__data__{split}_ds__file_path"] = f"'{source}'" if split == "train" else "null"
        elif kind != "evaluate" or split == "validation":
            settings[f"model__data__data_prefix__{split}"] = f"['{source}']"
    if kind == "sft":
        settings["model__data__validation_fraction"] = 0.25
    if kind == "dpo":
        settings["model__dpo__preference_loss"] = "kto"
    with caplog.at_level(logging.INFO, "aligner_lib"):
        job = prepare_smoke_job(kind, jobs.settings(kind, f"user_file_{kind}", **settings))
    job.close()
    assert set(job.hashes) >= {"model", "own.parquet"}
    split = "validation" if kind == "evaluate" else "train"
    assert f"{split}: {source} was converted" in caplog.text
    count = int(caplog.text.split(f"{split}: ")[-1].split(" samples")[0])
    assert count == 40 if kind != "sft" else 20 < count < 40
