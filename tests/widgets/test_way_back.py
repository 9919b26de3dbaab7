"""The way back after a change of settings that harmed a run: where it is named, and the button that takes it."""

import json
import logging

import pytest

from aligner_lib.run_folder.explain import explain
from aligner_lib.run_folder.reader import RunFolder, step_name
from aligner_lib.run_folder.writer import RunWriter
from widgets import JobPanel, Monitor
from widgets.frontend.wire import unpack
from widgets.runs import control
from widgets.runs.waiting import RunFailed, verdict

CHANGED_AFTER = 3  # steps; the run fails in its fifth


def save(run: RunWriter, step: int, **state) -> None:
    folder = run.checkpoint_tmp_dir(step)
    (folder / "trainer.json").write_text(json.dumps({"step": step} | state))
    run.accept_checkpoint(folder, step, keep=1, check=lambda _: None)


def train(path, change: dict[str, float], error: Exception | None, alarm_at: int | None = None) -> RunFolder:
    """Four steps with a checkpoint before a change after the third, and the last step's."""
    with RunWriter(path, kind="sft", config={}, seed=0, hashes={}, max_steps=9) as run:
        run.start(0)
        for step in (1, 2, 3, 4):
            run.log(step, {"train/loss": float("nan") if step == alarm_at else 1.0})
            if step == CHANGED_AFTER and change:
                save(run, step, changes=change, before={})
        save(run, 4, changes=change)
        if error is not None:
            raise error
        run.finish("stopped")
    return RunFolder(path)


@pytest.fixture
def failed(tmp_path) -> RunFolder:
    with pytest.raises(FloatingPointError):
        train(tmp_path / "run", {"lr": 1000.0}, FloatingPointError("the loss is NaN"))
    return RunFolder(tmp_path / "run")


def names_the_way_back(text: str, run: RunFolder) -> bool:
    parts = ("After step 3", "lr = 1000", f"`aligner undo {run.path}`", "undo_change(run)", "step_000003")
    return all(part in text for part in parts)


def heading(path) -> tuple[dict, dict]:
    """The heading of a monitor of this run, and its controls."""
    monitor = Monitor(path)
    monitor.close()
    head = unpack(monitor._feed.snapshot())[0]
    return head["runs"][0], head["steering"]


def test_a_failure_after_a_change_names_the_way_back_wherever_it_is_read(failed, capsys):
    from aligner_lib.cli.run_tables import show_run

    with pytest.raises(RunFailed) as raised:
        verdict(failed)
    assert names_the_way_back(str(raised.value), failed)
    assert names_the_way_back(str(explain(failed)), failed)
    assert names_the_way_back(heading(failed.path)[0]["way_back"], failed)
    panel = JobPanel(failed)
    panel.close()
    assert names_the_way_back(panel.view["way_back"], failed)
    show_run(failed)
    assert "aligner undo" in capsys.readouterr().out


def test_the_failing_run_itself_logs_the_way_back(tmp_path, caplog):
    with caplog.at_level(logging.WARNING), pytest.raises(FloatingPointError):
        train(tmp_path / "run", {"lr": 1000.0}, FloatingPointError("the loss is NaN"))
    assert names_the_way_back(caplog.text, RunFolder(tmp_path / "run"))


def test_a_failure_without_a_change_names_no_way_back(tmp_path):
    with pytest.raises(FloatingPointError):
        train(tmp_path / "run", {}, FloatingPointError("the loss is NaN"))
    run = RunFolder(tmp_path / "run")
    head, steering = heading(run.path)
    assert (head["way_back"], steering["undo"], explain(run).way_back) == ("", "", "")
    with pytest.raises(RunFailed) as raised:
        verdict(run)
    assert "undo" not in str(raised.value)


@pytest.mark.parametrize(("alarm_at", "named"), [(None, False), (2, False), (4, True)])
def test_an_alarm_names_the_way_back_only_after_the_change(tmp_path, alarm_at, named):
    run = train(tmp_path / "run", {"lr": 1000.0}, None, alarm_at)
    assert names_the_way_back(heading(run.path)[0]["way_back"], run) == named
    assert names_the_way_back(str(explain(run)), run) == named


def test_a_run_that_goes_on_is_to_be_stopped_first(failed):
    from aligner_lib.run_folder.set_aside import way_back

    info = failed.info | {"status": "running", "host": "elsewhere", "heartbeat": {"time": 9e12, "step": 4}}
    (failed.path / "run.json").write_text(json.dumps(info))
    assert "stop the run, and then take it back with `aligner undo" in way_back(failed, [4])
    steering = heading(failed.path)[1]
    assert (steering["undo"], steering["over"]) == ("", False)


def test_the_button_undoes_the_change_and_says_so(failed):
    monitor = Monitor(failed.path)
    monitor.close()
    assert "step_000003" in unpack(monitor._feed.snapshot())[0]["steering"]["undo"]
    monitor._on_message(monitor, {"kind": "undo"}, [])
    head = unpack(monitor._feed.snapshot())[0]
    assert head["steering"]["undo"] == "" and head["runs"][0]["way_back"] == ""
    words = "goes on from step_000003 with its settings' values when it is started again."
    assert head["steering"]["said"].endswith(words)
    assert [path.name for path in failed.checkpoints()] == [step_name(CHANGED_AFTER)]
    assert failed.info["message"] == "a change was undone: goes on from step_000003"


def test_a_button_that_has_nothing_to_undo_says_so(tmp_path):
    steering = control.Steering(train(tmp_path / "run", {}, None))
    steering.execute({"kind": "undo"})
    assert "no checkpoint from before a change" in steering._answer
