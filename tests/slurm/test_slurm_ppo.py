"""Hetjobs with the real trainers: PPO's critic and reward model, or GRPO's reward model, and the actor beside it."""

import pytest
from processes_help import until
from smoke_jobs import assert_same_run, figures, steps
from survivors import BOUND_S, Survivor

from aligner_lib.config.compose import parse_override
from aligner_lib.jobs.command_line import job_commands
from cluster import Resources, State, processes
from cluster.rendezvous import free_port

SHARES = {name: Resources(time="30", exclusive=True, linger_s=20) for name in ("critic", "actor")}
STEPS = {"trainer__ppo__max_steps": 3}


def two_jobs(jobs, name: str) -> Survivor:
    settings = dict(map(parse_override, jobs.settings("ppo", name, **STEPS)))
    settings["critic.trainer.ppo.port"] = free_port()  # all nodes are this machine
    settings.pop("exp_manager.explicit_log_dir")
    run = jobs.run_folder(name)
    return Survivor(run, "ppo", job_commands("ppo", run.path, settings, SHARES, "smoke"), SHARES)


def test_a_node_down_under_the_critic_and_both_go_on_to_the_figures_of_one_process(slurm, jobs):
    survivor = two_jobs(jobs, "hetjob")
    until(lambda: survivor.freeze_after(2), "step 2", BOUND_S)
    slurm.set_node(survivor.nodes[0], "down")
    survivor.thaw()
    survivor.lasts_until_its_end(slurm)
    assert survivor.job.wait() == State.FINISHED
    assert not survivor.seen & {State.FAILED, State.CANCELLED}
    assert "attempt 1 of job" in survivor.batch_log

    alone = jobs.run("ppo", "in_process", **STEPS)
    assert steps(survivor.run) == steps(alone) == [0, 1, 2, 3]
    for ours, theirs in zip(figures(survivor.run), figures(alone), strict=True):
        shared = theirs.keys() & ours.keys()
        assert {"train_rollouts/rewards", "critic/loss"} <= shared or ours["step"] == 0
        for metric in shared:
            assert ours[metric] == pytest.approx(theirs[metric], rel=1e-5, abs=1e-6), metric


def test_cancelling_one_component_takes_both_with_all_their_processes(slurm, jobs):
    survivor = two_jobs(jobs, "cancelled")
    folder = str(survivor.job.folder)
    announced = survivor.run.path / "critic" / "job" / "critic.json"
    until(lambda: survivor.comes_to(announced.exists), "the critic", BOUND_S)
    assert any("triton" in process.name() for process in processes.of_job(folder))
    slurm.tool("scancel", f"{survivor.job.id}+1")
    assert survivor.job.wait(BOUND_S) == State.CANCELLED
    until(lambda: not slurm.tool("squeue", "-h"), "an empty queue", BOUND_S)
    until(
        lambda: not processes.of_job(folder),
        lambda: f"no orphan: {processes.of_job(folder)}\n{survivor.batch_log}",
    )


def test_grpo_as_a_hetjob_finds_its_reward_model_and_ends_with_the_figures_of_one_process(slurm, jobs):
    shares = {"reward_model": SHARES["critic"], "actor": SHARES["actor"]}
    of_model = {
        "trainer__grpo__max_steps": 2,
        "model__environments__e__use": "reward_model",
        "reward_model__rm_model_file": f"'{jobs.reward_model}'",
    }
    settings = dict(map(parse_override, jobs.settings("grpo", "grpo_hetjob", **of_model)))
    settings["reward_model.inference.port"] = free_port()  # all nodes are this machine
    settings.pop("exp_manager.explicit_log_dir")
    run = jobs.run_folder("grpo_hetjob")
    survivor = Survivor(run, "grpo", job_commands("grpo", run.path, settings, shares, "smoke"), shares)
    survivor.lasts_until_its_end(slurm)
    assert survivor.job.wait() == State.FINISHED
    alone = jobs.run("grpo", "grpo_in_process", **of_model)
    assert_same_run(run, alone)
