"""Steering by files: what is asked, what is refused, and how the run acknowledges."""

import json

import pytest

from aligner_lib.run_folder.reader import RunFolder
from widgets import control


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run.json").write_text(
        json.dumps({"status": "running", "controls": ["stop", "checkpoint", "kl_coef"]})
    )
    return RunFolder(tmp_path)


def test_changes_add_up_until_the_run_takes_them(run):
    assert control.pending(run) == {"stop": False, "checkpoint": False, "set": {}}
    control.request_change(run, kl_coef=0.05)
    control.request_change(run, kl_coef=0.02)
    control.request_checkpoint(run)
    assert control.pending(run) == {"stop": False, "checkpoint": True, "set": {"kl_coef": 0.02}}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1])
def test_a_value_that_makes_no_sense_is_refused(run, value):
    with pytest.raises(ValueError, match="takes a number that is not negative"):
        control.request_change(run, kl_coef=value)


def test_what_a_run_does_not_obey_is_refused(run):
    with pytest.raises(
        ValueError, match=r"does not take 'lr' while it runs; it obeys stop, checkpoint, kl_coef"
    ):
        control.request_change(run, lr=1e-6)
    with pytest.raises(ValueError, match="'temperature' is no control of a run; there are kl_coef, lr"):
        control.request_change(run, temperature=2.0)


def test_every_run_obeys_stop(tmp_path):
    assert control.obeys(RunFolder(tmp_path)) == ["stop"]


def test_what_the_run_is_doing_just_now_is_pending_too(run):
    control.request_change(run, kl_coef=0.05)
    folder = run.path / "control"
    (folder / "set.json").rename(folder / "set.json.taken")
    control.request_checkpoint(run)
    (folder / "checkpoint").rename(folder / "checkpoint.taken")
    assert control.pending(run) == {"stop": False, "checkpoint": True, "set": {"kl_coef": 0.05}}
    (folder / "set.json").write_text("[1]")
    assert control.pending(run)["set"] == {"kl_coef": 0.05}
