"""The monitor's branch form: what it offers, what it starts, and what it says where it can't."""

import time
from types import SimpleNamespace

import pytest
from run_folders import change_info, write_run

from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import RunFolder
from widgets.monitor.monitor import Monitor
from widgets.runs.branching import Branching

CONFIG = {
    "model": {"optim": {"lr": 1e-4, "betas": [0.9, 0.98]}, "data": {"chat_template": "plain"}},
    "exp_manager": {"seed": 1},
    "trainer": {"sft": {"max_steps": 8}},
}


@pytest.fixture
def run(tmp_path):
    return RunFolder(write_run(tmp_path / "sft", config=CONFIG, heartbeat={"step": 8, "time": 0}))


def branch_with(value: str) -> dict:
    """The form's message: another learning rate after step 3."""
    return {"kind": "branch", "step": 3, "setting": "model.optim.lr", "value": value}


def test_it_offers_the_settings_that_have_a_single_value_with_it_once_the_run_is_over(run):
    assert Branching(run, None).view() is None
    view = Branching(run, print).view()
    single = {"model.optim.lr": "0.0001", "model.data.chat_template": "plain", "trainer.sft.max_steps": "8"}
    assert (view["steps"], view["settings"]) == (8, single)
    change_info(run.path, status="running", heartbeat={"step": 8, "time": time.time()})
    assert Branching(RunFolder(run.path), print).view() is None


@pytest.mark.parametrize(("text", "value"), [("1e-5", 1e-5), ("true", True), ("plain", "plain")])
def test_a_value_is_a_number_where_it_reads_as_one(run, text, value):
    given = []

    def branch(*args, **settings):
        given.append((args, settings))
        return SimpleNamespace(run=run.path)

    form = Branching(run, branch)
    form.execute(branch_with(text) | {"step": 3.5})
    assert given == [((run,), {"at": 3, "model.optim.lr": value})]
    assert "goes on after step 3, with" in form.view()["said"]


@pytest.mark.parametrize("error", [UserError, RuntimeError, TypeError])
def test_what_the_job_refuses_is_said_and_nothing_is_drawn(run, error):
    def refuse(*args, **settings):
        raise error("model.optim.lr: a number above 0")

    monitor = Monitor(run, branch=refuse)
    monitor._handle(branch_with("-1"))
    assert [watched.name for watched in monitor.runs] == ["sft"]
    assert monitor._feed.branching.view()["said"] == "model.optim.lr: a number above 0"
    monitor.close()


def test_a_branch_is_drawn_beside_its_run_and_waited_for_once(run, tmp_path):
    job = SimpleNamespace(run=tmp_path / "branch", state="finished")
    monitor = Monitor(run, branch=lambda *args, **settings: job)
    for _ in range(2):  # the same branch again only says so
        monitor._handle(branch_with("1"))
    assert [watched.name for watched in monitor.runs] == ["sft", "branch"]
    assert monitor._jobs[1:] == [([monitor.runs[1]], job)]
    monitor.close()
