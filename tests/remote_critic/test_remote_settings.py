"""No setting of PPO as several jobs is silent: see tests/jobs/test_settings.py."""

import json
import re

import documents
import forks
import named_settings
import pytest
from servers import TWO_STEPS, Critic, actor_settings
from settings_reads import assert_read_or_told, record_reads, silent
from smoke_jobs import assert_same_run, run_smoke_job

pytestmark = pytest.mark.remote_critic

KINDS = ("ppo", "critic", "reward_server")
TWO_SERVERS = {"trainer__ppo__combine_rm_and_critic_server": False}


@pytest.fixture(scope="module")
def servers(jobs) -> dict[str, Critic]:
    critic, rewards = Critic(jobs, "apart_critic"), Critic(jobs, "apart_rewards", kind="reward_server")
    for server in (critic, rewards):
        server.reads = jobs.out / f"reads_{server.kind}.json"
    return {server.kind: server for server in (critic, rewards)}


@pytest.fixture(scope="module")
def read(jobs, servers):
    """kind → the settings of its job and which of them it read: an actor, its critic, and a reward model that is killed
    and started again."""
    critic, rewards = servers["critic"], servers["reward_server"]
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
    critic.start(**TWO_SERVERS).until_it_serves()
    rewards.start({"rewards": (3, "kill")}).until_it_serves()
    out, log = jobs.out / "reads_ppo.json", jobs.log("apart")
    actor = forks.start(record_reads, run_smoke_job, "ppo", settings, out, log=log)
    forks.until(lambda: rewards.process.exitcode is not None or actor.exitcode is not None, "the blow")
    rewards.start()
    forks.finish(actor, log)
    for server in servers.values():
        forks.finish(server.process, jobs.log(server.name))
    of_kinds = {
        "ppo": settings,
        "critic": critic.settings(**TWO_SERVERS),
        "reward_server": rewards.settings(),
    }
    return {
        kind: (of_kind, json.loads((jobs.out / f"reads_{kind}.json").read_text()))
        for kind, of_kind in of_kinds.items()
    }


def test_a_reward_model_of_its_own_that_is_killed_and_started_again(jobs, servers, read, short):
    words = (
        rf"^interrupted after step \d+.*: the reward model at 127\.0\.0\.1:{servers['reward_server'].port}"
    )
    assert re.search(words, jobs.log("apart").read_text(), re.MULTILINE)
    assert_same_run(jobs.run_folder("apart"), short)
    for server in servers.values():
        assert server.run.status == "finished", server.log


@pytest.mark.parametrize("kind", KINDS)
def test_no_setting_is_silent(read, kind):
    settings, reads = read[kind]
    assert silent(kind, settings, reads) == []


@pytest.mark.parametrize(("kind", "overrides"), [c for c in documents.TAKEN if c[0] in KINDS])
def test_every_setting_of_the_documents_is_read_or_told(read, kind, overrides):
    assert_read_or_told(kind, overrides, read[kind][1])


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_that_parity_and_migration_name_is_read_or_told(read, kind):
    assert_read_or_told(kind, named_settings.together(kind), read[kind][1])
