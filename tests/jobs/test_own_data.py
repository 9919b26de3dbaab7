"""Jobs on a user's files: recognised, converted once and trained on, as if `aligner data` had converted them before."""

import logging

import forks
import pyarrow
import pyarrow.parquet
import pytest
from smoke_jobs import assert_same_run, first_steps, prepare_smoke_job, run_with_cache

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


def test_a_job_trains_on_a_user_s_file_and_goes_on_with_the_same_lines(jobs, tmp_path, cache):
    rows = [{"question": f"What is {n}?", "best": f"The number {n}.", "worst": "No idea."} for n in range(48)]
    source = written(tmp_path / "my_pairs.parquet", rows)
    two = first_steps("rm", 2) | {"model__global_batch_size": 8, "trainer__rm__val_check_interval": 1}
    own = two | {
        "model__data__data_prefix__train": f"['{source}']",
        "model__data__data_prefix__validation": "null",
        "model__data__columns": "{question: prompt, best: chosen, worst: rejected}",
        "model__data__validation_fraction": 0.25,
    }
    for more in ({"exp_manager__stop_after": 1}, {}):
        forks.run(
            run_with_cache,
            "rm",
            jobs.settings("rm", "user_file", **own, **more),
            cache,
            log=jobs.log("user_file"),
        )
    run, log = jobs.run_folder("user_file"), jobs.log("user_file").read_text()
    assert "recognised: preference pairs" in log and "read 48 records, kept 48" in log
    assert len([path for path in (cache / "data").iterdir() if path.is_dir()]) == 1
    assert run.info["hashes"].keys() == {"model", "my_pairs.parquet"}
    assert run.info["hashes"]["my_pairs.parquet"] == file_hash(source)

    by_hand = convert(source, tmp_path / "by_hand", "preferences", columns=MEANING, validation_fraction=0.25)
    splits = dict(zip(("train", "validation"), by_hand.paths))
    data = {f"model__data__data_prefix__{split}": f"['{path}']" for split, path in splits.items()}
    assert_same_run(run, jobs.run("rm", "own_by_hand", **two, **data), within=0)


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
