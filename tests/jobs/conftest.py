import pytest
from smoke_jobs import SmokeJobs


@pytest.fixture(scope="session")
def jobs(smoke, formatted, tmp_path_factory) -> SmokeJobs:
    return SmokeJobs(smoke, formatted, tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="session")
def sft(jobs):
    """An SFT run from beginning to end."""
    return jobs.run("sft", "sft")


@pytest.fixture(scope="session")
def rm(jobs):
    """A reward model's run; PPO runs after it score with it."""
    run = jobs.run("rm", "rm")
    jobs.reward_model = run.path
    return run


@pytest.fixture(scope="session")
def ppo(jobs, rm):
    """A PPO run from beginning to end."""
    return jobs.run("ppo", "ppo")


@pytest.fixture
def here():
    """This process as the only rank, for jobs whose errors a test looks at."""
    import torch

    from aligner_lib.megatron import parallel

    torch.set_num_threads(1)  # on a busy machine two threads wait for each other at every tiny product
    parallel.initialize()
