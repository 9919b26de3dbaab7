"""The way back after a change of settings that harmed a run: where it is named, and the button that takes it."""

import json
import logging

import pytest
from run_folders import change_info

from aligner_lib.cli.run_tables import show_run
from aligner_lib.run_folder.explain import explain
from aligner_lib.run_folder.reader import RunFolder, step_name
from aligner_lib.run_folder.set_aside import way_back
from aligner_lib.run_folder.writer import RunWriter
from widgets import JobPanel, Monitor
from widgets.frontend.wire import unpack
from widgets.runs import control
from widgets.runs.waiting import RunFailed, verdict

CHANGED_AFTER = 3  # steps; the run fails in its fifth
HIGH_RATE = {"lr": 1000.0}


def save(run: RunWriter, step: int, **state) -> None:
    folder = run.checkpoint_tmp_dir(step)
    (folder / "trainer.json").write_text(json.dumps({"step": step} | state))
    run.accept_checkpoint(folder, step, keep=1, check=lambda _: None)


def train(path, change: dict[str, float], fails: bool = False, alarm_at: int | None = None) -> RunFolder:
    """Four steps with a checkpoint before a change after the third, and the last step's."""
    try:
        with RunWriter(path, kind="sft", config={}, seed=0, hashes={}, max_steps=9) as run:
            run.start(0)
            for step in (1, 2, 3, 4):
                run.log(step, {"train/loss": float("nan") if step == alarm_at else 1.0})
                if step == CHANGED_AFTER and change:
                    save(run, step, changes=change, before={})
            save(run, 4, changes=change)
            if fails:
                raise FloatingPointError("the loss is NaN")
            run.finish("stopped")
    except FloatingPointError:
        pass
    return RunFolder(path)


def names_the_way_back(text: str, run: RunFolder) -> bool:
    parts = ("After step 3", "lr = 1000", f"`aligner undo {run.path}`", "undo_change(run)", "step_000003")
    return all(part in text for part in parts)


def heading(monitor: Monitor) -> tuple[dict, dict]:
    """The heading of a monitor of one run, and its controls."""
    head = unpack(monitor._feed.snapshot())[0]
    return head["runs"][0], head["steering"]


def monitor_of(run: RunFolder) -> Monitor:
    monitor = Monitor(run.path)
    monitor.close()
    return monitor


def test_a_failure_after_a_change_names_the_way_back_wherever_it_is_read(tmp_path, capsys, caplog):
    with caplog.at_level(logging.WARNING):
        failed = train(tmp_path / "run", HIGH_RATE, fails=True)
    assert names_the_way_back(caplog.text, failed)
    with pytest.raises(RunFailed) as raised:
        verdict(failed)
    assert names_the_way_back(str(raised.value), failed)
    assert names_the_way_back(str(explain(failed)), failed)
    assert names_the_way_back(heading(monitor_of(failed))[0]["way_back"], failed)
    panel = JobPanel(failed)
    panel.close()
    assert names_the_way_back(panel.view["way_back"], failed)
    show_run(failed)
    assert "aligner undo" in capsys.readouterr().out


def test_a_failure_without_a_change_names_no_way_back(tmp_path):
    run = train(tmp_path / "run", {}, fails=True)
    head, steering = heading(monitor_of(run))
    assert (head["way_back"], steering["undo"], explain(run).way_back) == ("", "", "")
    with pytest.raises(RunFailed) as raised:
        verdict(run)
    assert "undo" not in str(raised.value)
    buttons = control.Steering(run)
    buttons.execute({"kind": "undo"})
    assert "no checkpoint from before a change" in buttons._answer


@pytest.mark.parametrize(("alarm_at", "named"), [(None, False), (2, False), (4, True)])
def test_an_alarm_names_the_way_back_only_after_the_change(tmp_path, alarm_at, named):
    run = train(tmp_path / "run", HIGH_RATE, alarm_at=alarm_at)
    assert names_the_way_back(heading(monitor_of(run))[0]["way_back"], run) == named
    assert names_the_way_back(str(explain(run)), run) == named


def test_a_run_that_goes_on_is_to_be_stopped_first(tmp_path):
    run = train(tmp_path / "run", HIGH_RATE, fails=True)
    change_info(run.path, status="running", host="elsewhere", heartbeat={"time": 9e12, "step": 4})
    assert "stop the run, and then take it back with `aligner undo" in way_back(run, [4])
    steering = heading(monitor_of(run))[1]
    assert (steering["undo"], steering["over"]) == ("", False)


def test_the_button_undoes_the_change_and_says_so(tmp_path):
    failed = train(tmp_path / "run", HIGH_RATE, fails=True)
    monitor = monitor_of(failed)
    shown = heading(monitor)[1]
    assert "step_000003" in shown["undo"]
    monitor._on_message(monitor, {"kind": "undo", "step": shown["undo_step"]}, [])
    head, steering = heading(monitor)
    assert (steering["undo"], head["way_back"]) == ("", "")
    words = "goes on from step_000003 with its settings' values when it is started again."
    assert steering["said"].endswith(words)
    assert [path.name for path in failed.checkpoints()] == [step_name(CHANGED_AFTER)]
    assert failed.info["message"] == "a change was undone: goes on from step_000003"
