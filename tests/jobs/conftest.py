import forks
import pytest
from settings_reads import record_reads
from smoke_jobs import WHOLE_RUNS, SmokeJobs, run_smoke_job

from aligner_lib.run_folder.reader import RunFolder


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


@pytest.fixture(scope="session")
def rm_further(jobs, rm) -> RunFolder:
    """A step of a reward model that begins as the run `rm` ended."""
    begin = {"pretrained_checkpoint__restore_from_path": f"'{rm.path}'", "model__init_method_std": 0.5}
    return jobs.run("rm", "rm_further", trainer__rm__max_steps=1, **begin)


TWO_REWARDS = """
def reward(prompt, response):
    return {"vowels": sum(map(response.count, "aeiou")), "short": float(len(response) < 40), "length": len(response)}
"""


@pytest.fixture(scope="session")
def gdpo_settings(tmp_path_factory) -> dict[str, object]:
    """Two steps of GDPO, whose environments have two rewards and one."""
    file = tmp_path_factory.mktemp("reward") / "two.py"
    file.write_text(TWO_REWARDS)
    return {
        "trainer__grpo__max_steps": 2,
        "model__grpo__objective": "gdpo",
        "model__environments__e__use": f"'{file}'",
        "model__environments__e__rewards": "{vowels: 1, short: 0.5}",
        "model__environments__sums__use": "sums",
    }


@pytest.fixture(scope="session")
def gdpo(jobs, gdpo_settings) -> RunFolder:
    return jobs.run("grpo", "gdpo", **gdpo_settings)
