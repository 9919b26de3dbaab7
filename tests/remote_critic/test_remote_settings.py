"""No setting of PPO as several jobs is silent: see tests/jobs/test_settings.py."""

import json

import documents
import forks
import named_settings
import pytest
from servers import STEPS, Critic, actor_settings, serve
from settings_reads import assert_read_or_told, record_reads, silent
from smoke_jobs import run_smoke_job

pytestmark = pytest.mark.remote_critic

PAD = {"remote_critic_rm__pad_to_length": 192}
KINDS = ("ppo", "critic", "reward_server")


@pytest.fixture(scope="module")
def read(jobs):
    """kind → the settings of its job and what that read: an actor, its critic, and a reward model in a third job."""
    apart = {"model__ppo__combine_rm_and_critic_server": False}
    critic, rewards = Critic(jobs, "read_critic"), Critic(jobs, "read_rewards", "reward_server")
    settings = {
        "critic": critic.settings(trainer__ppo__combine_rm_and_critic_server=False),
        "reward_server": rewards.settings(),
        "ppo": actor_settings(
            jobs,
            "read_actor",
            critic,
            **STEPS | PAD | apart | {"trainer__ppo__max_steps": 2},
            remote_critic_rm__reward_model__ip="127.0.0.1",
            remote_critic_rm__reward_model__port=rewards.port,
        ),
    }
    outs = {kind: jobs.out / f"reads_{kind}.json" for kind in settings}
    logs = {kind: jobs.log(f"reads_{kind}") for kind in settings}
    servers = [
        forks.start(record_reads, serve, kind, settings[kind], outs[kind], {}, log=logs[kind])
        for kind in ("critic", "reward_server")
    ]
    forks.run(record_reads, run_smoke_job, "ppo", settings["ppo"], outs["ppo"], log=logs["ppo"])
    for kind, server in zip(("critic", "reward_server"), servers):
        forks.finish(server, logs[kind])
    return {kind: (settings[kind], json.loads(outs[kind].read_text())) for kind in settings}


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


def test_a_server_tells_what_has_no_effect_in_it(live_critic):
    assert (
        "note: exp_manager.resume_if_exists=False: a critic goes on, begins anew and saves with its actor"
        in live_critic.log
    )
