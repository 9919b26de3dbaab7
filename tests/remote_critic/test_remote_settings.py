"""PPO as three jobs, critic and reward model apart. No setting of theirs is silent: see tests/jobs/test_settings.py."""

import json
import re
from types import SimpleNamespace

import documents
import forks
import named_settings
import pytest
from servers import TWO_STEPS, Critic, actor_settings
from settings_reads import assert_read_or_told, record_reads, silent
from smoke_jobs import assert_same_run, run_smoke_job

from cluster.rendezvous import announced

pytestmark = pytest.mark.remote_critic

KINDS = ("ppo", "critic", "reward_server")
ADDRESS = "127.0.0.2"  # this machine's, and not the default one
CRITIC = {
    "trainer__ppo__combine_rm_and_critic_server": False,
    "trainer__ppo__address": ADDRESS,
    "trainer__ppo__port": 0,
}


@pytest.fixture(scope="module")
def apart(jobs):
    """An actor, its critic, and a reward model that is killed and started again. By kind their `settings` and which of them
    each job read."""
    critic, rewards = Critic(jobs, "apart_critic"), Critic(jobs, "apart_rewards", kind="reward_server")
    for server in (critic, rewards):
        server.reads = jobs.out / f"reads_{server.kind}.json"
    settings = actor_settings(
        jobs,
        "apart",
        critic,
        **TWO_STEPS,
        model__ppo__combine_rm_and_critic_server=False,
        remote_critic_rm__pad_to_length=192,
        # by run folder, as jobs on a cluster find each other; the reward model by its address
        remote_critic_rm__critic__ip="null",
        remote_critic_rm__critic__run=f"'{critic.run.path}'",
        remote_critic_rm__reward_model__ip="127.0.0.1",
        remote_critic_rm__reward_model__port=rewards.port,
    )
    critic.start(**CRITIC).until_it_serves()
    listening, port = critic.listening(), announced(critic.run.path, "critic")["port"]
    rewards.start({"rewards": (3, "kill")}).until_it_serves()
    out, log = jobs.out / "reads_ppo.json", jobs.log("apart")
    actor = forks.start(record_reads, run_smoke_job, "ppo", settings, out, log=log)
    forks.until(lambda: rewards.process.exitcode is not None or actor.exitcode is not None, "the kill")
    rewards.start()
    forks.finish(actor, log)
    for server in (critic, rewards):
        forks.finish(server.process, jobs.log(server.name))
    return SimpleNamespace(
        critic=critic,
        rewards=rewards,
        listening=listening,
        port=port,
        settings={"ppo": settings, "critic": critic.settings(**CRITIC), "reward_server": rewards.settings()},
        reads={kind: json.loads((jobs.out / f"reads_{kind}.json").read_text()) for kind in KINDS},
    )


def test_a_reward_model_of_its_own_that_is_killed_and_started_again(jobs, apart, short):
    message = rf"^interrupted after step \d+.*: the reward model at 127\.0\.0\.1:{apart.rewards.port}"
    assert re.search(message, jobs.log("apart").read_text(), re.MULTILINE)
    assert_same_run(jobs.run_folder("apart"), short)
    for server in (apart.critic, apart.rewards):
        assert server.run.status == "finished", server.log


def test_a_server_listens_on_the_address_of_its_setting_alone_at_a_free_port(apart):
    assert apart.listening == {(ADDRESS, apart.port)} and apart.port not in (0, 5556)


@pytest.mark.parametrize("kind", KINDS)
def test_no_setting_is_silent(apart, kind):
    assert silent(kind, apart.settings[kind], apart.reads[kind]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_of_the_documents_is_read_or_told(apart, kind):
    commands = [overrides for of_kind, overrides in documents.TAKEN if of_kind == kind]
    for overrides in [*commands, named_settings.together(kind)]:
        assert_read_or_told(kind, overrides, apart.reads[kind])
