"""No setting is silent: a job reads it, or tells that it has no effect. Whoever adds one has to use it, or say so."""

import json
from pathlib import Path

import documents
import forks
import named_settings
import pytest
from settings_reads import assert_read_or_told, record_reads, silent
from smoke_jobs import WHOLE_RUNS, SmokeJobs, run_known, run_smoke_job

HERE = Path(__file__).parent
KINDS = ("rm", *WHOLE_RUNS)
RM = {"trainer__rm__max_steps": 2}


@pytest.fixture(scope="module")
def read(jobs: SmokeJobs, request):
    """read("sft"): the settings of a job of this kind, and which of them it reads."""

    def run(kind: str) -> tuple[list[str], dict]:
        settings, out = jobs.settings(kind, kind, **WHOLE_RUNS.get(kind, RM)), jobs.out / f"reads_{kind}.json"
        if kind in WHOLE_RUNS:
            request.getfixturevalue(kind)
        elif not out.exists():
            forks.run(record_reads, run_smoke_job, kind, settings, out, log=jobs.log(kind))
        return settings, json.loads(out.read_text())

    return run


@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize(("kind", "overrides"), [c for c in documents.TAKEN if c[0] in ("sft", "rm")])
def test_every_setting_of_the_documents_is_read_or_told(read, kind, overrides):
    assert_read_or_told(kind, overrides, read(kind)[1])


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"ppo"}))  # of PPO see tests/remote_critic
def test_every_setting_that_parity_and_migration_name_is_read_or_told(read, kind):
    assert_read_or_told(kind, named_settings.together(kind), read(kind)[1])
