"""A branch shares its parent's first steps to the bit, and differs from the fork on by the changed settings alone."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import forks
import pytest
from smoke_jobs import figures, steps

from aligner_lib.errors import ConfigError, UserError
from aligner_lib.jobs import branch as branch_jobs
from aligner_lib.jobs.branch import branch_command, parents_settings
from aligner_lib.run_folder.branch import begin_branch
from aligner_lib.run_folder.reader import RunFolder

AT = 3
FASTER = "model.optim.lr=0.01"


def run_command(words: list[str]) -> None:
    from aligner_lib.cli.main import main

    sys.argv = ["aligner", *words]
    main()


@pytest.fixture
def branch(monkeypatch, tmp_path):
    """branch(parent, child, at, *overrides): as the command makes it, with forks in place of its processes."""
    log = tmp_path / "log"

    def run(words: list[str]) -> SimpleNamespace:
        forks.run(run_command, words[3:], log=log)  # behind `python -m aligner_lib`
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(branch_jobs, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(
        branch_jobs, "os", SimpleNamespace(environ=os.environ, execv=lambda _, words: run(words))
    )

    def go_on(parent: RunFolder, child, at: int, *overrides: str) -> RunFolder:
        branch_jobs.go_on(parent, at, child, list(overrides))
        return RunFolder(child)

    return go_on


def texts(run: RunFolder) -> list[tuple]:
    """Every drawn response with its place and its reward."""
    return [
        (record["step"], record["split"], record["prompt"], record["response"], record["reward"])
        for record in run.rollouts()
    ]


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_an_unchanged_branch_is_its_parent_to_the_bit(branch, request, kind, tmp_path):
    """The parent kept its last checkpoint alone, so the first steps are computed again."""
    parent = request.getfixturevalue(kind)
    child = branch(parent, tmp_path / "same", AT)
    assert child.status == "finished"
    assert figures(child) == figures(parent)
    assert texts(child) == texts(parent)
    origin = {"run": str(parent.path), "name": parent.name, "step": AT}
    assert child.info["parent"] == origin | {"created": parent.info["created"]}
    assert child.info["resumed_at"] == [AT]


def test_a_changed_branch_differs_from_the_fork_on_also_as_a_task_of_slurm(
    branch, ppo, tmp_path, monkeypatch
):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    child = branch(ppo, tmp_path / "changed", AT, "trainer.ppo.initial_policy_kl_penalty=3.0")
    assert "RANK" not in os.environ, "the branch's jobs start their ranks"
    had, has = ({row["step"]: row for row in figures(run)} for run in (ppo, child))
    assert {step: had[step] for step in range(AT + 1)} == {step: has[step] for step in range(AT + 1)}
    assert all(had[step] != has[step] for step in range(AT + 2, max(had) + 1))
    first = [row for row in texts(ppo) if row[0] == AT + 1 and row[1] == "train"]
    assert first == [row for row in texts(child) if row[0] == AT + 1 and row[1] == "train"], (
        "the policy that draws in the first step after the fork is the parent's"
    )


def test_the_command_goes_on_from_a_kept_checkpoint(jobs, tmp_path):
    parent = jobs.run(
        "sft", "sft_kept", trainer__sft__max_steps=6, exp_manager__checkpoint_callback_params__save_top_k=9
    )
    child = tmp_path / "child"
    assert begin_branch(parent, child, 4) == 4
    assert [path.name for path in RunFolder(child).checkpoints()] == ["step_000004"]
    assert begin_branch(parent, tmp_path / "between", 5) == 4
    same = tmp_path / "same"
    words = [sys.executable, "-m", "aligner_lib", "branch", str(parent.path), "--at", "4", "--run", str(same)]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert figures(RunFolder(same)) == figures(parent)


def test_what_cannot_be_branched_is_refused_before_anything_is_written(branch, sft, ppo, tmp_path):
    child = tmp_path / "child"
    last = steps(sft)[-1]
    with pytest.raises(UserError, match=f"at={last + 1}: .* has the steps 0 to {last}"):
        begin_branch(sft, child, last + 1)
    with pytest.raises(UserError, match=r"is not a run, because run\.json is missing"):
        begin_branch(RunFolder(tmp_path / "nothing"), child, 1)
    with pytest.raises(ConfigError, match=r"trainer\.sft\.max_stpes"):
        branch_command(sft, 1, child, {"trainer.sft.max_stpes": 3})
    assert not child.exists()
    with pytest.raises(UserError, match=r"would train .*child from step 0, .* choose another folder"):
        branch(sft, child, 1, "exp_manager.resume_if_exists=false")
    assert not child.exists()
    begin_branch(sft, child, 1)
    with pytest.raises(UserError, match="is a run already, but not the branch of sft"):
        begin_branch(sft, child, 2)
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "run.json").write_text('{"kind": "sft", "heartbeat": {"step": 9}, "changed_at": [5]}')
    with pytest.raises(
        UserError, match=r"changed after step 5, .* so the steps 1 to 6 can't be computed again"
    ):
        begin_branch(RunFolder(changed), tmp_path / "fork", 6)
    assert begin_branch(RunFolder(changed), tmp_path / "fork", 5) == 0
    assert (
        RunFolder(tmp_path / "fork").info["changed_at"] == []
    )  # the steps up to the change are computed again
    (tmp_path / "two_jobs" / "critic").mkdir(parents=True)
    shutil.copy(ppo.path / "run.json", tmp_path / "two_jobs")
    with pytest.raises(UserError, match="ran as several jobs"):
        parents_settings(RunFolder(tmp_path / "two_jobs"))


def test_a_branch_of_a_parent_that_was_begun_anew_begins_anew(tmp_path):
    parent, child, info = tmp_path / "parent", tmp_path / "child", {"kind": "sft", "heartbeat": {"step": 9}}
    for number, (created, old) in enumerate(((1.0, []), (1.0, []), (2.0, ["old-1"]))):
        parent.mkdir(exist_ok=True)
        (parent / "run.json").write_text(json.dumps(info | {"created": created}))
        begin_branch(RunFolder(parent), child, 5)
        assert RunFolder(child).info["parent"]["created"] == created
        assert [path.name for path in child.glob("old-*")] == old
        assert (child / "metrics.jsonl").exists() == (number == 1)
        (child / "metrics.jsonl").write_text("{}\n")
    assert RunFolder(child / "old-1").info["parent"]["created"] == 1.0
    alive = {"status": "running", "host": os.uname().nodename, "pid": os.getpid()}
    (child / "run.json").write_text(json.dumps(RunFolder(child).info | alive))
    (parent / "run.json").write_text(json.dumps(info | {"created": 3.0}))
    with pytest.raises(UserError, match="child is still running: stop the branch first"):
        begin_branch(RunFolder(parent), child, 5)


def test_a_branch_that_was_stopped_before_its_fork_goes_on_there_with_the_same_command(
    branch, sft, tmp_path, monkeypatch
):
    """Its first job is asked to stop at once: the changed settings must not begin before the fork."""
    child, run = tmp_path / "child", branch_jobs.subprocess.run

    def stop_after_one_step(words):
        return run([word.replace(f"stop_after={AT}", "stop_after=1") for word in words])

    with monkeypatch.context() as patch:
        patch.setattr(branch_jobs.subprocess, "run", stop_after_one_step)
        assert steps(branch(sft, child, AT, FASTER)) == [0, 1]
    changed = branch(sft, child, AT, FASTER)
    had, has = figures(sft), figures(changed)
    assert changed.status == "finished" and has[: AT + 1] == had[: AT + 1] and has[-1] != had[-1]
    assert begin_branch(sft, child, AT) == AT, "a finished branch is not begun again"
