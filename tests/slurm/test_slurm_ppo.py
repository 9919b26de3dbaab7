"""PPO as a hetjob of real trainers: critic and reward model in one component, and the actor in the other."""

import pytest
from processes_help import until
from real_trainers import ONE_THREAD, freeze_after, thaw
from runs_help import batch_log, states_until_the_end
from smoke_jobs import figures, steps

from aligner_lib.config.compose import parse_override
from aligner_lib.jobs.command_line import job_commands
from cluster import Resources, State, submit

SHARES = {name: Resources(time="30", exclusive=True, linger_s=20) for name in ("critic", "actor")}
STEPS = {"trainer__ppo__max_steps": 3}


def test_a_node_down_under_the_critic_and_both_go_on_to_the_figures_of_one_process(slurm, jobs):
    settings = dict(map(parse_override, jobs.settings("ppo", "hetjob", **STEPS)))
    settings.pop("exp_manager.explicit_log_dir")
    run = jobs.run_folder("hetjob")
    commands = job_commands("ppo", run.path, settings, SHARES, "smoke")
    job = submit(commands, run.path, "slurm", SHARES, env=ONE_THREAD)
    freeze_after(2, job, "ppo")
    slurm.set_node(until(lambda: job.nodes, "the nodes")[0], "down")
    thaw(job, "ppo")
    seen = states_until_the_end(job, lambda: slurm.describe(job))
    assert job.wait() == State.FINISHED
    assert not seen & {State.FAILED, State.CANCELLED}
    assert "attempt 1 of job" in batch_log(job)

    alone = jobs.run("ppo", "in_process", **STEPS)
    assert steps(run) == steps(alone) == [0, 1, 2, 3]
    for record, expected in zip(figures(run), figures(alone), strict=True):
        shared = record.keys() & expected.keys()
        assert {"train_rollouts/rewards", "critic/loss"} <= shared or record["step"] == 0
        for metric in shared:
            assert record[metric] == pytest.approx(expected[metric], rel=1e-5, abs=1e-6), metric
