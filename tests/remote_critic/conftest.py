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

    def run(name: str, actor: dict, critic: dict, ranks: int = 1, critic_ranks: int = 1):
        server = Critic(jobs, f"{name}_critic").start(ranks=critic_ranks, **critic)
        run_actor(jobs, name, server, ranks, **(STEPS | actor))
        server.until_it_ended()
        return jobs.run_folder(name), server

    return run


@pytest.fixture(scope="session")
def live_critic(jobs):
    """A critic with default settings, but for one that has no effect in it; it waits for an actor."""
    critic = Critic(jobs, "live").start(exp_manager__resume_if_exists=False).until_it_serves()
    yield critic
    critic.process.terminate()
    critic.until_it_ended()
