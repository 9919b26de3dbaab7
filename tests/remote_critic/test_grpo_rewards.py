"""GRPO whose reward model is a job of its own: the figures of one process, also when that job dies on the way."""

import json
import re

import forks
import pytest
from forks import finish, until
from servers import Critic
from settings_reads import record_reads, silent
from smoke_jobs import SPLITS, SmokeJobs, assert_same_run, figures, run_smoke_job

pytestmark = pytest.mark.remote_critic

KILLED = {"rewards": (4, "kill")}  # some step after the first validation


def of_files(jobs: SmokeJobs) -> dict[str, object]:
    """Prompts of model.data, which the reward model judges."""
    files = {split: f"['{jobs.formatted / f'{name}_prompts.jsonl'}']" for split, name in SPLITS}
    return {
        "trainer__grpo__max_steps": 3,
        "model__environments__e__weight": 0,
        **{f"model__data__data_prefix__{split}": file for split, file in files.items()},
    }


def of_environments(jobs: SmokeJobs) -> dict[str, object]:
    """Prompts of which a program judges half, and the reward model the others."""
    prompts = f"'{jobs.formatted / 'train_prompts.jsonl'}'"
    return {
        "trainer__grpo__max_steps": 2,
        "model__environments__judged__use": "reward_model",
        "model__environments__judged__args__prompts": prompts,
    }


def in_process(jobs: SmokeJobs, name: str, settings: dict[str, object]):
    return jobs.run("grpo", name, **settings, reward_model__rm_model_file=f"'{jobs.reward_model}'")


def of_server(server: Critic) -> dict[str, object]:
    return {"remote_rm__ip": "127.0.0.1", "remote_rm__port": server.port}


def run_with_a_killed_judge(jobs):
    """A run whose reward model is killed and started again; its settings, and what it read of them."""
    server = Critic(jobs, "judge", kind="reward_server").start(KILLED, inference__micro_batch_size=4)
    settings = jobs.settings("grpo", "grpo_remote", **of_files(jobs), **of_server(server))
    out, log = jobs.out / "reads_grpo.json", jobs.log("grpo_remote")
    actor = forks.start(record_reads, run_smoke_job, "grpo", settings, out, log=log)
    until(lambda: server.process.exitcode is not None or actor.exitcode is not None, "the blow")
    server.start(inference__micro_batch_size=4)
    finish(actor, log)
    server.until_it_ended()
    return server, settings, json.loads(out.read_text())


def test_a_reward_model_that_is_killed_and_started_again_judges_as_one_in_this_process(jobs):
    server, settings, reads = run_with_a_killed_judge(jobs)
    run, log = jobs.run_folder("grpo_remote"), jobs.log("grpo_remote").read_text()
    words = rf"^interrupted after step \d.*: the reward model at 127\.0\.0\.1:{server.port}"
    assert re.search(words, log, re.MULTILINE)
    here = in_process(jobs, "grpo_here", of_files(jobs))
    assert figures(run) == figures(here)
    assert run.rollouts() == here.rollouts()
    assert server.run.status == "finished", server.log
    assert silent("grpo", settings, reads) == [], "settings that nobody reads"


def test_two_ranks_with_a_program_beside_it_get_the_rewards_of_one_process(jobs):
    server = Critic(jobs, "judge_of_two", kind="reward_server").start()
    two = jobs.run_ranks("grpo", "grpo_two", 2, **of_environments(jobs), **of_server(server))
    server.until_it_ended()
    assert_same_run(two, in_process(jobs, "grpo_mixed", of_environments(jobs)))
