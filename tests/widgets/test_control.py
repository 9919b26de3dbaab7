"""Steering by files: what is asked, what is refused, and how the run acknowledges."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from aligner_lib.run_folder.reader import RunFolder
from widgets import Monitor
from widgets.runs import control

RUNNING = {
    "status": "running",
    "controls": ["stop", "checkpoint", "kl_coef"],
    "host": "elsewhere",
    "heartbeat": {"time": 9e12},
}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(RUNNING))
    return RunFolder(tmp_path)


def test_changes_add_up_until_the_run_has_carried_them_out(run):
    assert control.pending(run) == {"stop": False, "checkpoint": False, "set": {}}
    control.request_change(run, kl_coef=0.05)
    control.request_change(run, kl_coef=0.02)
    control.request_checkpoint(run)
    requested = {"stop": False, "checkpoint": True, "set": {"kl_coef": 0.02}}
    assert control.pending(run) == requested
    for name in ("set.json", "checkpoint"):  # the run has begun
        path = run.path / "control" / name
        path.rename(f"{path}.taken")
    assert control.pending(run) == requested
    (run.path / "control" / "set.json").write_text("[1]")
    assert control.pending(run) == requested


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *(({"kl_coef": odd}, "set a number of at least 0") for odd in (float("nan"), float("inf"), -0.1)),
        ({"lr": 1e-6}, "does not take 'lr' while it runs; it obeys stop, checkpoint, kl_coef"),
        ({"temperature": 2.0}, "'temperature' is no control of a run; there are kl_coef, lr"),
    ],
)
def test_a_change_that_a_run_does_not_accept_is_refused_and_a_button_says_so(run, change, words):
    with pytest.raises(ValueError, match=words):
        control.request_change(run, **change)
    [(name, value)] = change.items()
    assert words in pressed(run, {"kind": "set", "name": name, "value": str(value)})["said"]


# ---- buttons --------------------------------------------------------------------------------------------------------


def logged(**metrics) -> SimpleNamespace:
    """The last values of a run's metrics."""
    return SimpleNamespace(latest=metrics.get)


def pressed(run, button: dict) -> dict:
    """What the buttons show after one was pressed."""
    steering = control.Steering(run)
    steering.execute(button)
    return steering.view(logged())


def test_a_button_says_what_will_come_until_it_has(run, tmp_path):
    steering = control.Steering(run)
    steering.execute({"kind": "set", "name": "kl_coef", "value": "0.05"})
    assert steering.view(logged())["said"] == "It goes on with kl_coef = 0.05 from its next step."
    (tmp_path / "control" / "set.json").unlink()  # the run has done it
    assert steering.view(logged())["said"] == ""


def test_a_value_beyond_ten_times_the_present_one_is_asked_about_first(run):
    steering = control.Steering(run)
    steering.view(logged(**{"train_rollouts/kl_coef": 0.02}))
    set_to = lambda value: steering.execute({"kind": "set", "name": "kl_coef", "value": value})  # noqa: E731
    set_to("1000")
    view = steering.view(logged(**{"train_rollouts/kl_coef": 0.02}))
    assert view["said"].startswith("Really kl_coef = 1000? That is 5e+04 times today's 0.02")
    assert view["pending"]["set"] == {}
    set_to("900")  # another value is another question
    assert control.pending(run)["set"] == {}
    set_to("900")
    assert control.pending(run)["set"] == {"kl_coef": 900}
    set_to("0.2")  # ten times is no question
    assert control.pending(run)["set"] == {"kl_coef": 0.2}


def test_nothing_is_promised_after_the_end(run, tmp_path):
    steering = control.Steering(run)
    steering.execute({"kind": "stop"})
    view = steering.view(logged())
    assert view["said"] == "It ends after this step, with a checkpoint." and view["pending"]["stop"]
    (tmp_path / "run.json").write_text('{"status": "stopped"}')
    assert (steering.view(logged())["said"], steering.view(logged())["over"]) == ("", True)


BUTTONS = [{"kind": "stop"}, {"kind": "checkpoint"}, {"kind": "set", "name": "kl_coef", "value": "0.05"}]
REFUSALS = [(errno.EACCES, "another account"), (errno.EROFS, "read-only"), (errno.ENOSPC, "The disk is full")]


@pytest.mark.parametrize("button", BUTTONS, ids=lambda button: button["kind"])
@pytest.mark.parametrize(("number", "cure"), REFUSALS)
def test_a_button_that_cannot_write_its_request_says_why(run, monkeypatch, button, number, cure):
    def refuse(self, *_, **__):
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    said = pressed(run, button)["said"]
    assert "The request was not written" in said and cure in said and os.strerror(number) in said


def test_a_full_disk_leaves_no_half_a_request(run, tmp_path):
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / ".set.json").symlink_to("/dev/full")
    assert "The disk is full" in pressed(run, BUTTONS[2])["said"]
    assert control.pending(run)["set"] == {}


@pytest.mark.parametrize("several", [False, True])
def test_stop_in_a_monitor_ends_in_a_sentence_where_it_cannot_be_written(tmp_path, monkeypatch, several):
    runs = []
    for name in ("first", "second")[: 1 + several]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(RUNNING))
        (tmp_path / name / "control").touch()  # a file in the folder's place: no request can be written
        runs.append(tmp_path / name)
    monitor, sent = Monitor(runs), []
    monkeypatch.setattr(monitor, "send", lambda content, buffers=None: sent.append(content))
    try:
        monitor._on_message(monitor, {"kind": "stop"}, [])
    finally:
        monitor.close()
    [said] = [content["said"] for content in sent if content["kind"] == "stop"]
    assert said.count("The request was not written") == len(runs)
    assert sent[-1] == {"kind": "answer"}


@pytest.mark.parametrize("metric", ["train/lr", "train_optim/lr"])
def test_a_knob_shows_the_rate_of_every_kind_of_run(run, metric):
    """SFT and the reward model log train/lr, PPO train_optim/lr."""
    assert control.Steering(run).view(logged(**{metric: 3e-5}))["values"] == {"kl_coef": None, "lr": 3e-5}


def test_every_run_obeys_stop(tmp_path):
    assert control.obeys(RunFolder(tmp_path)) == ["stop"]
