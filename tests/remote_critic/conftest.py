import forks
import pytest
from servers import STEPS, TWO_STEPS, Critic, run_actor
from smoke_jobs import SmokeJobs


@pytest.fixture(scope="session")
def pytriton() -> None:
    """Skips what needs PyTriton where it is missing."""
    forks.skip_without_pytriton()


@pytest.fixture(scope="session")
def jobs(smoke, formatted, rm, tmp_path_factory) -> SmokeJobs:
    return SmokeJobs(smoke, formatted, tmp_path_factory.mktemp("remote_jobs"), rm.path)


@pytest.fixture(scope="session")
def in_process(run_once, rm):
    """Five steps of PPO in one process."""
    return run_once("ppo", "in_process", rm.path, **STEPS)


@pytest.fixture(scope="session")
def short(run_once, rm):
    """Two steps of PPO in one process."""
    return run_once("ppo", "short", rm.path, **TWO_STEPS)


@pytest.fixture(scope="session")
def remote_jobs(jobs):
    """Five steps of PPO as two jobs: run(name, actor's settings, critic's settings, …) gives both run folders."""

    def run(name: str, actor: dict, critic: dict, actor_ranks: int = 1):
        server = Critic(jobs, f"{name}_critic").start(**critic)
        run_actor(jobs, name, server, actor_ranks, **(STEPS | actor))
        server.until_it_ended()
        return jobs.run_folder(name), server

    return run
