import pytest


@pytest.fixture(scope="session")
def sft(jobs):
    """An SFT run from beginning to end."""
    return jobs.run("sft", "sft")


@pytest.fixture(scope="session")
def ppo(jobs, rm):
    """A PPO run from beginning to end."""
    return jobs.run("ppo", "ppo")
