"""A branch shares its parent's first steps to the bit, and differs from the fork on by the changed settings alone."""

import json
import os
import shutil
import signal
import sys
import threading
from types import SimpleNamespace

import forks
import pytest
from smoke_jobs import ALL_CHECKPOINTS, figures, steps
from typer.testing import CliRunner

from aligner_lib.cli.main import app
from aligner_lib.config.compose import written
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.jobs import branch as branch_jobs
from aligner_lib.jobs.branch import branch_command, parents_settings
from aligner_lib.run_folder.branch import begin_branch
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.writer import RunWriter

FORK = 3


def run_command(words: list[str]) -> None:
    from aligner_lib.cli.main import main

    sys.argv = ["aligner", *words]
    main()


@pytest.fixture
def in_forks(monkeypatch, tmp_path):
    """`aligner branch` in this process, with forks in place of the processes that it starts or becomes."""

    def run(words: list[str]) -> int:
        forks.run(run_command, words[3:], log=tmp_path / "log")  # behind `python -m aligner_lib`
        return 0

    replaced = SimpleNamespace(environ=os.environ, execv=lambda _, words: run(words))
    monkeypatch.setattr(branch_jobs, "run_to_end", run)
    monkeypatch.setattr(branch_jobs, "os", replaced)


@pytest.fixture
def branch(in_forks):
    """branch(parent, child, step, *overrides): the branch's run."""

    def go_on(parent: RunFolder, child, step: int, *overrides: str) -> RunFolder:
        branch_jobs.go_on(parent, step, child, list(overrides))
        return RunFolder(child)

    return go_on


def drawn_responses(run: RunFolder) -> list[tuple]:
    return [
        (record["step"], record["split"], record["prompt"], record["response"], record["reward"])
        for record in run.rollouts()
    ]


def test_an_unchanged_branch_is_its_parent_to_the_bit(branch, grpo, tmp_path):
    """The parent kept its last checkpoint alone, so the first steps are computed again."""
    child = branch(grpo, tmp_path / "same", FORK)
    assert child.status == "finished"
    assert figures(child) == figures(grpo)
    assert drawn_responses(child) == drawn_responses(grpo)
    origin = {"run": str(grpo.path), "name": grpo.name, "step": FORK}
    assert child.info["parent"] == origin | {"created": grpo.info["created"]}
    assert child.info["resumed_at"] == [FORK]


def test_a_changed_branch_differs_from_the_fork_on_also_as_a_task_of_slurm(
    branch, ppo, tmp_path, monkeypatch
):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    child = branch(ppo, tmp_path / "changed", FORK, "trainer.ppo.initial_policy_kl_penalty=3.0")
    assert "RANK" not in os.environ, "the branch's jobs start their ranks"
    of_parent, of_child = figures(ppo), figures(child)
    assert of_child[: FORK + 1] == of_parent[: FORK + 1]
    later = list(zip(of_child, of_parent, strict=True))[FORK + 2 :]
    assert later and all(ours != theirs for ours, theirs in later)
    first = [row for row in drawn_responses(ppo) if row[:2] == (FORK + 1, "train")]
    assert first == [row for row in drawn_responses(child) if row[:2] == (FORK + 1, "train")], (
        "the policy that draws in the first step after the fork is the parent's"
    )


def test_the_command_goes_on_from_a_kept_checkpoint(jobs, in_forks, tmp_path):
    parent = jobs.run("sft", "sft_kept", trainer__sft__max_steps=6, **ALL_CHECKPOINTS)
    child = tmp_path / "child"
    assert begin_branch(parent, child, 4) == 4
    assert [path.name for path in RunFolder(child).checkpoints()] == ["step_000004"]
    assert begin_branch(parent, tmp_path / "between", 5) == 4
    same = tmp_path / "same"
    result = CliRunner().invoke(app, ["branch", str(parent.path), "--at", "4", "--run", str(same)])
    assert result.exit_code == 0, result.output
    assert figures(RunFolder(same)) == figures(parent)
    assert begin_branch(parent, same, 4) == 4, "a finished branch is not begun again"


def test_what_cannot_be_branched_is_refused_before_anything_is_written(branch, sft, ppo, tmp_path):
    child, last = tmp_path / "child", steps(sft)[-1]
    with pytest.raises(UserError, match=f"at={last + 1}: .* has the steps 0 to {last}"):
        begin_branch(sft, child, last + 1)
    with pytest.raises(UserError, match=r"is not a run, because run\.json is missing"):
        begin_branch(RunFolder(tmp_path / "nothing"), child, 1)
    with pytest.raises(ConfigError, match=r"trainer\.sft\.max_stpes"):
        branch_command(sft, 1, child, {"trainer.sft.max_stpes": 3})
    with pytest.raises(UserError, match=r"would train .*child from step 0, .* choose another folder"):
        branch(sft, child, 1, "exp_manager.resume_if_exists=false")
    assert not child.exists()
    begin_branch(sft, child, 1)
    with pytest.raises(UserError, match="is a run already, but not the branch of sft"):
        begin_branch(sft, child, 2)
    (tmp_path / "two_jobs" / "critic").mkdir(parents=True)
    shutil.copy(ppo.path / "run.json", tmp_path / "two_jobs")
    (tmp_path / "two_terminals").mkdir()
    info = ppo.info
    info["config"]["remote_critic_rm"]["critic"]["ip"] = "node7"
    (tmp_path / "two_terminals" / "run.json").write_text(json.dumps(info))
    for parent in ("two_jobs", "two_terminals"):
        with pytest.raises(UserError, match="ran as several jobs"):
            parents_settings(RunFolder(tmp_path / parent))


def test_steps_behind_a_change_during_the_run_are_not_computed_again(tmp_path):
    parent, child = RunFolder(tmp_path / "parent"), tmp_path / "child"
    parent.path.mkdir()
    (parent.path / "run.json").write_text('{"kind": "sft", "heartbeat": {"step": 9}, "changed_at": [5]}')
    with pytest.raises(
        UserError, match=r"changed parent after step 5, .* so the steps 1 to 6 can't be computed again"
    ):
        begin_branch(parent, child, 6)
    assert begin_branch(parent, child, 5) == 0
    assert RunFolder(child).info["changed_at"] == [], "the steps up to the change are computed again"


def test_steps_before_other_settings_are_not_computed_again(tmp_path):
    """The parent resumed after steps 4 and 6 with other settings; then steps 6 and 7 were computed again, from step 5."""
    parent, child = RunFolder(tmp_path / "parent"), tmp_path / "child"
    start = {"kind": "sft", "seed": 1, "hashes": {}, "max_steps": 9}
    for step, rate, folder in ((0, 1, "a"), (4, 2, "a"), (4, 2, "b"), (6, 3, "b"), (5, 3, "b")):
        config = {"model": {"lr": rate}, "exp_manager": {"name": folder}}
        with RunWriter(parent.path, config=config, **start) as run:
            run.start(step)
            run.log(step + 1, {"train/loss": 1.0})
    assert parent.info["other_settings_at"] == [4, 5]
    for step in (5, 9):
        (parent.path / "checkpoints" / f"step_{step:06d}").mkdir(parents=True)
    (parent.path / "run.json").write_text(json.dumps(parent.info | {"heartbeat": {"step": 9}}))
    with pytest.raises(
        UserError, match=r"after step 4, and has no checkpoint of step 3, .* a checkpoint \(5, 9\)"
    ):
        begin_branch(parent, child, 3)
    assert begin_branch(parent, child, 7) == 5
    assert RunFolder(child).info["other_settings_at"] == [4, 5]


@pytest.mark.parametrize(
    ("schedule", "changed", "counts"),
    [
        ({"name": "CosineAnnealing", "max_steps": None}, "max_steps", True),
        ({"name": "CosineAnnealing", "max_steps": 90}, "max_steps", False),
        ({"name": "constant", "max_steps": None}, "max_epochs", False),
        ({"name": "CosineAnnealing", "max_steps": None}, "save_interval", False),
        ({"name": "constant", "max_steps": None}, "gradient_clip_val", True),
    ],
)
def test_another_length_is_another_setting_only_for_a_rate_that_decays_over_the_run(
    tmp_path, schedule, changed, counts
):
    for step in (0, 4):
        config = {"trainer": {"sft": {changed: step}}, "model": {"optim": {"sched": schedule}}}
        with RunWriter(tmp_path, kind="sft", config=config, seed=1, hashes={}, max_steps=9) as run:
            run.start(step)
    assert RunFolder(tmp_path).info["other_settings_at"] == [4] * counts


def test_a_branch_of_a_parent_that_was_begun_anew_begins_anew(tmp_path):
    parent, child, info = tmp_path / "parent", tmp_path / "child", {"kind": "sft", "heartbeat": {"step": 9}}
    parent.mkdir()
    for created, old in ((1.0, []), (1.0, []), (2.0, ["old-1"])):
        (parent / "run.json").write_text(json.dumps(info | {"created": created}))
        begin_branch(RunFolder(parent), child, 5)
        assert RunFolder(child).info["parent"]["created"] == created
        assert [path.name for path in child.glob("old-*")] == old
    alive = {"status": "running", "host": os.uname().nodename, "pid": os.getpid()}
    (child / "run.json").write_text(json.dumps(RunFolder(child).info | alive))
    (parent / "run.json").write_text(json.dumps(info | {"created": 3.0}))
    with pytest.raises(UserError, match="child is still running: stop the branch first"):
        begin_branch(RunFolder(parent), child, 5)


def test_a_branch_that_was_stopped_before_its_fork_goes_on_there_with_the_same_command(
    sft, tmp_path, monkeypatch
):
    """Jobs that only count stand in for the branch's. The changed settings must not begin before the fork."""
    child, jobs, stops = tmp_path / "child", [], [1, FORK]

    def run(words: list[str]) -> int:
        jobs.append(words)
        if stops:
            checkpoint = child / "checkpoints" / f"step_{stops.pop(0):06d}"
            shutil.copytree(sft.latest_checkpoint(), checkpoint)
        return 0

    replaced = SimpleNamespace(environ=os.environ, execv=lambda _, words: run(words))
    monkeypatch.setattr(branch_jobs, "run_to_end", run)
    monkeypatch.setattr(branch_jobs, "os", replaced)
    for _ in range(2):
        branch_jobs.go_on(sft, FORK, child, ["model.optim.lr=0.01"])
    up_to_the_fork, again, rest = jobs
    assert up_to_the_fork == again and f"exp_manager.stop_after={FORK}" in again
    assert "model.optim.lr=0.01" not in again and rest[-1] == "model.optim.lr=0.01"
    assert not any("stop_after" in word for word in rest)


def test_a_branch_from_step_0_is_a_single_job_with_the_changed_settings(sft, tmp_path, monkeypatch):
    jobs = []
    replaced = SimpleNamespace(environ=os.environ, execv=lambda _, words: jobs.append(words))
    monkeypatch.setattr(branch_jobs, "os", replaced)
    branch_jobs.go_on(sft, 0, tmp_path / "child", ["model.optim.lr=0.01"])
    [words] = jobs
    assert words[-1] == "model.optim.lr=0.01" and not any("stop_after" in word for word in words)


def test_a_moved_run_is_branched_with_the_present_places_of_its_inputs(sft, jobs, tmp_path, monkeypatch):
    """Jobs that only count, and that end with an error, stand in for the branch's."""
    parent, child, info = tmp_path / "parent", tmp_path / "child", json.loads(json.dumps(sft.info))
    (parent / "functions").mkdir(parents=True)
    (parent / "functions" / "rate.py").write_text("def learning_rate(step, **schedule):\n    return 1e-3\n")
    info["config"]["exp_manager"]["explicit_log_dir"] = "/gone/runs/parent/"
    info["config"]["functions"]["learning_rate"] = "/gone/runs/parent/functions/rate.py"
    info["config"]["model"]["restore_from_path"] = "/gone/model"
    (parent / "run.json").write_text(json.dumps(info))
    moved, changed, started = f"model.restore_from_path={written(jobs.model)}", "model.optim.lr=0.01", []
    monkeypatch.setattr(branch_jobs, "run_to_end", lambda words: started.append(words) or 2)
    with pytest.raises(
        UserError, match=r"/gone/model of parent does not exist: .* model\.restore_from_path=…"
    ):
        branch_jobs.go_on(RunFolder(parent), FORK, child, [changed])
    with pytest.raises(SystemExit):
        branch_jobs.go_on(RunFolder(parent), FORK, child, [changed, moved])
    [words] = started
    assert moved in words and changed not in words
    assert f"functions.learning_rate={written(parent / 'functions' / 'rate.py')}" in words
    assert not child.exists(), "a job that does not start leaves no branch"


@pytest.mark.parametrize("exists", [True, False])
def test_another_function_applies_before_the_fork_only_if_it_stands_for_a_missing_file(tmp_path, exists):
    name, file = "functions.loss", tmp_path / "loss.py"
    info = {"config": {"functions": {"loss": f"{file}:loss"}}, "hashes": {name: "a"}}
    (tmp_path / "run.json").write_text(json.dumps(info))
    if exists:
        file.touch()
    overrides = [f"{name}=other.py", "functions.advantages=new.py", "model.optim.lr=0.01"]
    before_fork = branch_jobs._present_inputs(RunFolder(tmp_path), overrides)
    assert before_fork == ({} if exists else {name: "other.py"})


def test_a_branch_refuses_other_inputs_for_the_steps_before_its_fork(tmp_path):
    parent, child = tmp_path / "parent", tmp_path / "child"
    start = {"kind": "sft", "config": {}, "seed": 1, "max_steps": 9}
    with RunWriter(parent, hashes={"model": "a"}, **start) as run:
        run.start(0)
        run.log(5, {"train/loss": 1.0})
        run.finish("finished")
    assert begin_branch(RunFolder(parent), child, 5) == 0
    of_other_model = pytest.raises(UserError, match=r"begun with other inputs \(model\)")
    with of_other_model, RunWriter(child, hashes={"model": "b"}, **start) as run:
        run.start(0)


WAITS = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
pathlib.Path(sys.argv[1]).touch()
signal.pause()
"""


def test_a_scheduler_s_signal_reaches_the_job_that_computes_steps_again(tmp_path):
    ready = tmp_path / "ready"

    def terminate() -> None:
        forks.until(ready.exists, "the job's handler")
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=terminate)
    sender.start()
    assert branch_jobs.run_to_end([sys.executable, "-c", WAITS, str(ready)]) == 7
    sender.join()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
