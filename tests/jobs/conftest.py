import forks
import pytest
from settings_reads import record_reads
from smoke_jobs import WHOLE_RUNS, SmokeJobs, run_smoke_job


@pytest.fixture(scope="session")
def jobs(smoke, formatted, rm, tmp_path_factory) -> SmokeJobs:
    return SmokeJobs(smoke, formatted, tmp_path_factory.mktemp("jobs"), rm.path)


def whole_run(kind: str):
    """A fixture: a run from beginning to end, and in reads_<kind>.json the settings that it read (test_settings.py)."""

    def run(jobs):
        settings, out = jobs.settings(kind, kind, **WHOLE_RUNS[kind]), jobs.out / f"reads_{kind}.json"
        forks.run(record_reads, run_smoke_job, kind, settings, out, log=jobs.log(kind))
        return jobs.run_folder(kind)

    return pytest.fixture(run, scope="session")


sft, dpo, ppo, grpo, evaluate = map(whole_run, WHOLE_RUNS)
