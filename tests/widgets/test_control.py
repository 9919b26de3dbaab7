"""Steering by files: what is asked, what is refused, and how the run acknowledges."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_folders import change_info, write_run

from aligner_lib.run_folder.reader import RunFolder, step_name
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
    return RunFolder(write_run(tmp_path / "run", **RUNNING))


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
        ({"kl_coef": float("nan")}, "set a number of at least 0"),
        ({"kl_coef": float("inf")}, "set a number of at least 0"),
        ({"kl_coef": -0.1}, "set a number of at least 0"),
        ({"lr": 1e-6}, "does not take 'lr' while it runs; it obeys stop, checkpoint, kl_coef"),
        ({"temperature": 2.0}, "'temperature' is no control of a run; there are kl_coef, lr"),
    ],
)
def test_a_change_that_a_run_does_not_accept_is_refused_and_a_button_says_so(run, change, words):
    with pytest.raises(ValueError, match=words):
        control.request_change(run, **change)
    [(name, value)] = change.items()
    assert words in press(run, set_to(str(value), name))["said"]


# ---- buttons --------------------------------------------------------------------------------------------------------


def set_to(value: str, name: str = "kl_coef") -> dict:
    """The message of a value's button."""
    return {"kind": "set", "name": name, "value": value}


def logged(**metrics) -> SimpleNamespace:
    """The last values of a run's metrics."""
    return SimpleNamespace(latest=metrics.get)


def press(run, button: dict) -> dict:
    """What the buttons show after one was pressed."""
    steering = control.Steering(run)
    steering.execute(button)
    return steering.view(logged())


def test_a_button_says_what_will_come_until_it_has(run):
    steering = control.Steering(run)
    steering.execute(set_to("0.05"))
    assert steering.view(logged())["said"] == "It goes on with kl_coef = 0.05 from its next step."
    (run.path / "control" / "set.json").unlink()  # the run has done it
    assert steering.view(logged())["said"] == ""


def test_a_value_beyond_ten_times_the_present_one_is_asked_about_first(run):
    steering, now = control.Steering(run), logged(**{"train_rollouts/kl_coef": 0.02})
    steering.view(now)
    steering.execute(set_to("1000"))
    view = steering.view(now)
    assert view["said"].startswith("Really kl_coef = 1000? That is 5e+04 times today's 0.02")
    assert view["pending"]["set"] == {}
    # another value is another question; ten times is none
    for value, requested in (("900", {}), ("900", {"kl_coef": 900}), ("0.2", {"kl_coef": 0.2})):
        steering.execute(set_to(value))
        assert control.pending(run)["set"] == requested


def test_nothing_is_promised_after_the_end(run):
    steering = control.Steering(run)
    steering.execute({"kind": "stop"})
    view = steering.view(logged())
    assert view["said"] == "It ends after this step, with a checkpoint." and view["pending"]["stop"]
    change_info(run.path, status="stopped")
    view = steering.view(logged())
    assert (view["said"], view["over"]) == ("", True)


@pytest.mark.parametrize(
    ("button", "number", "cure"),
    [
        ({"kind": "stop"}, errno.EACCES, "another account"),
        ({"kind": "checkpoint"}, errno.EROFS, "read-only"),
        (set_to("0.05"), errno.ENOSPC, "The disk is full"),
    ],
    ids=["stop", "checkpoint", "set"],
)
def test_a_button_that_cannot_write_its_request_says_why(run, monkeypatch, button, number, cure):
    def refuse(self, *_, **__):
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    sentence = press(run, button)["said"]
    assert "The request was not written" in sentence and cure in sentence and os.strerror(number) in sentence


def test_a_full_disk_leaves_no_half_a_request(run):
    (run.path / "control").mkdir()
    (run.path / "control" / ".set.json").symlink_to("/dev/full")
    assert "The disk is full" in press(run, set_to("0.05"))["said"]
    assert control.pending(run)["set"] == {}


def test_stop_in_a_monitor_names_every_run_that_could_not_be_asked(tmp_path, monkeypatch):
    runs = [write_run(tmp_path / name, **RUNNING) for name in ("first", "second")]
    for run in runs:
        (run / "control").touch()  # a file in the folder's place: no request can be written
    monitor, sent = Monitor(runs), []
    monitor.close()
    monkeypatch.setattr(monitor, "send", lambda content, buffers=None: sent.append(content))
    monitor._on_message(monitor, {"kind": "stop"}, [])
    [sentence] = [content["said"] for content in sent if content["kind"] == "stop"]
    assert all(
        f"The request was not written, and the run goes on as before ({run}" in sentence for run in runs
    )
    assert sent[-1] == {"kind": "answer"}


def test_a_double_click_undoes_only_the_change_that_the_page_shows(run):
    change_info(run.path, status="stopped")
    for step, before in ((10, {}), (20, {"lr": 1e-5})):
        checkpoint = run.path / "checkpoints" / step_name(step)
        checkpoint.mkdir(parents=True)
        (checkpoint / "trainer.json").write_text(json.dumps({"changes": {"lr": 1e-4}, "before": before}))
    steering = control.Steering(run)
    assert steering.view(logged())["undo_step"] == 20
    for step, earlier in ((20, 10), (10, None)):
        for words in (f"goes on from {step_name(step)}", "No further change was undone"):
            steering.execute({"kind": "undo", "step": step})
            view = steering.view(logged())
            assert words in view["said"] and view["undo_step"] == earlier


@pytest.mark.parametrize("metric", ["train/lr", "train_optim/lr"])
def test_a_knob_shows_the_rate_of_every_kind_of_run(run, metric):
    """SFT and the reward model log train/lr, PPO train_optim/lr."""
    assert control.Steering(run).view(logged(**{metric: 3e-5}))["values"] == {"kl_coef": None, "lr": 3e-5}
