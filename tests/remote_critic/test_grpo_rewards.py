"""GRPO whose reward model is a job of its own: the figures of one process, also when that job dies on the way."""

import json
import re

import forks
import pytest
from servers import Critic
from settings_reads import record_reads, silent
from smoke_jobs import figures, run_smoke_job

pytestmark = pytest.mark.remote_critic

KILLED = {"rewards": (4, "kill")}  # some step after the first validation


def test_a_reward_model_that_is_killed_and_started_again_judges_as_one_in_this_process(jobs):
    """A program judges half of the prompts, and the reward model the others."""
    prompts = f"'{jobs.formatted / 'train_prompts.jsonl'}'"
    judged = {
        "trainer__grpo__max_steps": 3,
        "model__environments__judged__use": "reward_model",
        "model__environments__judged__args__prompts": prompts,
    }
    server = Critic(jobs, "judge", kind="reward_server").start(KILLED, inference__micro_batch_size=4)
    address = {"remote_rm__ip": "127.0.0.1", "remote_rm__port": server.port}
    settings, log = jobs.settings("grpo", "grpo_remote", **judged, **address), jobs.log("grpo_remote")
    out = jobs.out / "reads_grpo.json"
    actor = forks.start(record_reads, run_smoke_job, "grpo", settings, out, log=log)
    forks.until(lambda: server.process.exitcode is not None or actor.exitcode is not None, "the kill")
    server.start(inference__micro_batch_size=4)
    forks.finish(actor, log)
    server.until_it_ended()
    message = rf"^interrupted after step \d.*: the reward model at 127\.0\.0\.1:{server.port}"
    assert re.search(message, log.read_text(), re.MULTILINE)
    assert server.run.status == "finished", server.log
    remote = jobs.run_folder("grpo_remote")
    local = jobs.run("grpo", "grpo_local", **judged, reward_model__rm_model_file=f"'{jobs.reward_model}'")
    assert figures(remote) == figures(local)
    assert remote.rollouts() == local.rollouts()
    assert silent("grpo", settings, json.loads(out.read_text())) == [], "settings that nobody reads"
