import pytest
from smoke_jobs import EXPORTED, SmokeJobs


@pytest.fixture(scope="session")
def jobs(smoke, formatted, rm, tmp_path_factory) -> SmokeJobs:
    return SmokeJobs(smoke, formatted, tmp_path_factory.mktemp("jobs"), rm.path)


@pytest.fixture(scope="session")
def sft(jobs):
    """An SFT run from beginning to end."""
    return jobs.run("sft", "sft")


@pytest.fixture(scope="session")
def dpo(jobs):
    """A DPO run from beginning to end."""
    return jobs.run("dpo", "dpo")


@pytest.fixture(scope="session")
def ppo(jobs):
    """A PPO run from beginning to end, as TensorBoard has it, too."""
    return jobs.run("ppo", "ppo", **EXPORTED)


@pytest.fixture(scope="session")
def grpo(jobs):
    """A GRPO run from beginning to end."""
    return jobs.run("grpo", "grpo")


@pytest.fixture(scope="session")
def evaluate(jobs):
    """The smoke model, evaluated against itself."""
    return jobs.run("evaluate", "evaluate")
