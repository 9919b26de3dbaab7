"""No setting is silent: a job reads it, or tells that it has no effect. Whoever adds one has to use it, or say so."""

import json
from pathlib import Path

import documents
import forks
import named_settings
import pytest
from settings_reads import assert_read_or_told, record_reads, silent
from smoke_jobs import SmokeJobs, run_known, run_smoke_job

HERE = Path(__file__).parent
SHORT = {
    "sft": {"trainer__sft__max_steps": 2},
    "rm": {"trainer__rm__max_steps": 2},
    "dpo": {"trainer__dpo__max_steps": 2},
    "ppo": {"trainer__ppo__max_steps": 2},
    "grpo": {"trainer__grpo__max_steps": 2},
    # else the settings that these stand in for are not read
    "evaluate": {
        "model__ppo__logprob_forward_micro_batch_size": "null",
        "model__ppo__val_rollout_micro_batch_size": "null",
    },
}


@pytest.fixture(scope="module")
def read(jobs: SmokeJobs):
    """read("sft"): what a short job of this kind reads, with its settings."""
    done: dict[str, tuple[list[str], dict]] = {}

    def run(kind: str) -> tuple[list[str], dict]:
        if kind not in done:
            out, log = jobs.out / f"reads_{kind}.json", jobs.log(f"reads_{kind}")
            settings = jobs.settings(kind, f"reads_{kind}", **SHORT[kind])
            forks.run(record_reads, run_smoke_job, kind, settings, out, log=log)
            done[kind] = settings, json.loads(out.read_text())
        return done[kind]

    return run


@pytest.mark.parametrize("kind", SHORT)
def test_no_setting_is_silent(read, kind):
    settings, reads = read(kind)
    assert silent(kind, settings, reads) == []


def test_no_setting_of_a_kind_of_one_s_own_is_silent(jobs, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("ALIGNER_KINDS", "toy_kind")
    settings = [f"exp_manager.explicit_log_dir='{jobs.out / 'reads_toy'}'", "trainer.toy.max_steps=2"]
    out, log = jobs.out / "reads_toy.json", jobs.log("reads_toy")
    forks.run(record_reads, run_known, "toy", settings, out, "toy_kind", log=log)
    reads = json.loads(out.read_text())
    assert silent("toy", settings, reads) == []
    del reads["trainer.toy.pull"]  # had its author forgotten to use it
    assert silent("toy", settings, reads) == ["trainer.toy.pull"]


def test_each_value_of_a_setting_with_few_values_is_tried(read):
    settings, reads = read("dpo")
    unread = {key: modules for key, modules in reads.items() if key != "model.dpo.preference_loss"}
    assert silent("dpo", settings, unread) == [
        f"model.dpo.preference_loss={name}" for name in ("cdpo", "robust", "ipo", "simpo", "orpo", "kto")
    ]


def test_it_is_told_who_reads(read):
    _, reads = read("sft")
    assert reads["model.optim.sched.warmup_steps"] == ["aligner_lib.trainers.lr"]
    assert "model.data.validation_ds.shuffle" not in reads


@pytest.mark.parametrize(("kind", "overrides"), [c for c in documents.TAKEN if c[0] in ("sft", "rm")])
def test_every_setting_of_the_documents_is_read_or_told(read, kind, overrides):
    assert_read_or_told(kind, overrides, read(kind)[1])


@pytest.mark.parametrize("kind", sorted(SHORT.keys() - {"ppo"}))  # of PPO see tests/remote_critic
def test_every_setting_that_parity_and_migration_name_is_read_or_told(read, kind):
    assert_read_or_told(kind, named_settings.together(kind), read(kind)[1])
