"""A branch shares its parent's first steps to the bit, and differs from the fork on by the changed settings alone."""

import shutil
import subprocess
import sys

import pytest
from smoke_jobs import figures, steps

from aligner_lib.errors import ConfigError, UserError
from aligner_lib.jobs import branch as branch_jobs
from aligner_lib.jobs.branch import branch_command, parents_settings
from aligner_lib.run_folder.branch import begin_branch
from aligner_lib.run_folder.reader import RunFolder

AT = 3
CHANGED = {"sft": "model.optim.lr=0.01", "ppo": "trainer.ppo.initial_policy_kl_penalty=3.0"}


def branch(parent: RunFolder, child, at: int, *overrides: str) -> RunFolder:
    """Run a branch as its command does."""
    command = [
        sys.executable,
        "-m",
        "aligner_lib",
        "branch",
        parent.path,
        "--at",
        at,
        "--run",
        child,
        *overrides,
    ]
    result = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return RunFolder(child)


def texts(run: RunFolder) -> list[tuple]:
    """Every drawn response with its place and its reward."""
    return [
        (record["step"], record["split"], record["prompt"], record["response"], record["reward"])
        for record in run.rollouts()
    ]


@pytest.fixture
def parent(request) -> RunFolder:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("parent", ["sft", "rm", "dpo", "ppo", "grpo"], indirect=True)
def test_an_unchanged_branch_is_its_parent_to_the_bit(parent, tmp_path):
    """The parent kept its last checkpoint alone, so the first steps are computed again."""
    child = branch(parent, tmp_path / "same", AT)
    assert child.status == "finished"
    assert figures(child) == figures(parent)
    assert texts(child) == texts(parent)
    assert child.info["parent"] == {"run": str(parent.path), "name": parent.name, "step": AT}
    assert child.info["resumed_at"] == [AT]


@pytest.mark.parametrize("parent", [*CHANGED], indirect=True)
def test_a_changed_branch_differs_from_the_fork_on(parent, tmp_path):
    kind = parent.kind
    child = branch(parent, tmp_path / "changed", AT, CHANGED[kind])
    had, has = ({row["step"]: row for row in figures(run)} for run in (parent, child))
    assert {step: had[step] for step in range(AT + 1)} == {step: has[step] for step in range(AT + 1)}
    assert all(had[step] != has[step] for step in range(AT + 2, max(had) + 1))
    if kind == "ppo":
        first = [row for row in texts(parent) if row[0] == AT + 1 and row[1] == "train"]
        assert first == [row for row in texts(child) if row[0] == AT + 1 and row[1] == "train"], (
            "the policy that draws in the first step after the fork is the parent's"
        )


def test_a_branch_goes_on_from_a_kept_checkpoint(jobs, tmp_path):
    parent = jobs.run(
        "sft", "sft_kept", trainer__sft__max_steps=6, exp_manager__checkpoint_callback_params__save_top_k=9
    )
    child = tmp_path / "child"
    assert begin_branch(parent, child, 4) == 4
    assert [path.name for path in RunFolder(child).checkpoints()] == ["step_000004"]
    assert begin_branch(parent, tmp_path / "between", 5) == 4
    assert figures(branch(parent, tmp_path / "same", 4)) == figures(parent)


def test_a_branch_has_its_parents_settings(ppo):
    settings = parents_settings(ppo)
    assert settings["trainer.ppo.max_steps"] == 8 and "exp_manager.explicit_log_dir" not in settings
    assert settings["model.ppo.sampling_params.end_strings"] == ["e"]


def test_what_cannot_be_branched_is_refused_before_anything_is_written(sft, ppo, tmp_path):
    child = tmp_path / "child"
    last = steps(sft)[-1]
    with pytest.raises(UserError, match=f"at={last + 1}: .* has the steps 0 to {last}"):
        begin_branch(sft, child, last + 1)
    with pytest.raises(UserError, match=r"is not a run: there is no run\.json"):
        begin_branch(RunFolder(tmp_path / "nothing"), child, 1)
    with pytest.raises(ConfigError, match=r"trainer\.sft\.max_stpes"):
        branch_command(sft, 1, child, {"trainer.sft.max_stpes": 3})
    assert not child.exists()
    begin_branch(sft, child, 1)
    with pytest.raises(UserError, match="is a run already, and not this branch of sft"):
        begin_branch(sft, child, 2)
    (tmp_path / "two_jobs" / "critic").mkdir(parents=True)
    shutil.copy(ppo.path / "run.json", tmp_path / "two_jobs")
    with pytest.raises(UserError, match="ran as several jobs"):
        parents_settings(RunFolder(tmp_path / "two_jobs"))


def test_a_branch_that_was_stopped_before_its_fork_goes_on_there_with_the_same_command(
    sft, tmp_path, monkeypatch
):
    """Its first job is asked to stop at once: the changed settings must not begin before the fork."""
    child, changed = tmp_path / "child", CHANGED["sft"]
    begin_branch(sft, child, AT)
    stopped_early = subprocess.run

    def stop_after_one_step(words):
        return stopped_early([word.replace(f"stop_after={AT}", "stop_after=1") for word in words])

    with monkeypatch.context() as patch:
        patch.setattr(branch_jobs.subprocess, "run", stop_after_one_step)
        branch_jobs.go_on(sft, AT, child, [changed])
    assert steps(RunFolder(child)) == [0, 1]
    run = branch(sft, child, AT, changed)
    had, has = figures(sft), figures(run)
    assert run.status == "finished" and has[: AT + 1] == had[: AT + 1] and has[-1] != had[-1]
    assert begin_branch(sft, child, AT) == AT, "a finished branch is not begun again"
