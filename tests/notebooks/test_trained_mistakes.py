"""The button below a named mistake: the recorded run with the mistake, and which chart shows it."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from aligner_lib.config.functions import FunctionFile
from aligner_lib.config.kind import chart
from aligner_lib.config.kinds import kind_of
from aligner_lib.tutorial.checking.check import judge
from aligner_lib.tutorial.exercises.registry import exercises
from aligner_lib.tutorial.mistakes import recorded
from aligner_lib.tutorial.mistakes.drawing import drawing
from aligner_lib.tutorial.mistakes.evidence import MistakenRun, evidence_of
from aligner_lib.tutorial.mistakes.recorded import FILE, function_text, mistaken_run, write

TRAINING = [exercise for exercise in exercises().values() if exercise.trains]
CHARTS = [chart("Loss", ("train", "loss")), chart("Reward", ("train", "reward"))]


def run(loss: list[float], reward: list[float], status: str = "finished", message: str = ""):
    """A run folder with these metrics from step 1 on."""
    series, steps = {"loss": loss, "reward": reward}, list(range(1, 1 + len(loss)))
    records = [
        {
            "step": step,
            "timers/step_time": id(series) * step,
            "loss": loss[step - 1],
            "reward": reward[step - 1],
        }
        for step in steps
    ]
    return SimpleNamespace(
        kind="ppo",
        status=status,
        info={"message": message},
        metrics=lambda: records,
        series=lambda name: (steps, series[name]) if name in series else ([], []),
    )


RIGHT = run([1.0, 0.8, 0.6], [0.0, 0.1, 0.2])
OTHERS = [run([1.1, 0.9, 0.5], [0.0, 0.2, 0.3]), run([0.9, 0.8, 0.7], [0.1, 0.0, 0.3])]


def evidence(wrong, others=OTHERS):
    return evidence_of(wrong, RIGHT, others, CHARTS, steps=3)


# ---- evidence --------------------------------------------------------------------------------------------------------


def test_the_chart_farthest_from_the_right_run_shows_the_mistake():
    """The loss is 0.2 off, where right runs are 0.1 off; the reward 0.7, where they are 0.1 off."""
    shown = evidence(run([1.0, 0.8, 0.8], [0.0, 0.1, -0.5]))
    assert (shown.differs_at, shown.chart, shown.metric) == (3, "Reward", "reward")
    assert shown.wrong == ((1, 0.0), (2, 0.1), (3, -0.5)) and shown.right[2] == (3, 0.2)
    assert "differ from step 3 on (`loss`). The chart Reward shows" in shown.sentence


def test_a_run_no_farther_off_than_a_right_one_of_another_seed_is_shown_by_no_chart():
    shown = evidence(OTHERS[0], [*OTHERS[1:], run([1.2], [0.3])])
    assert (shown.differs_at, shown.figure, shown.chart) == (1, "loss", "")
    assert "no chart shows the mistake in 3 steps" in shown.sentence and drawing(shown) == ""


def test_equal_figures_and_an_error_are_told_and_times_are_not_compared():
    shown = evidence(run([1.0, 0.8, 0.6], [0.0, 0.1, 0.2]))
    assert shown.differs_at is None and "no figure differs" in shown.sentence
    failed = run([1.0], [0.0], "failed", "loss of step 2 has no gradient")
    assert "step 2 has no gradient" in evidence(failed).sentence


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_every_mistake_that_can_train_has_a_run_of_its_kind_and_no_other_has_one():
    for exercise in exercises().values():
        for mistake in exercise.mistakes:
            recorded = mistaken_run(exercise.name, mistake.name)
            assert bool(recorded) == bool(exercise.trains), (exercise.name, mistake.name)
            if recorded:
                titles = {chart.title for chart in kind_of(exercise.trains[0]).charts}
                assert recorded.kind == exercise.trains[0]
                assert not recorded.chart or (recorded.chart in titles and len(recorded.others) >= 2)
    assert FILE.stat().st_size < 2_000_000


def test_the_runs_of_an_exercise_are_written_in_its_place_among_the_others(tmp_path, monkeypatch):
    written = MistakenRun("rm", 3, "", 1, "loss", "Loss", "loss", ((1, 0.5),), ((1, 0.7),), (((1, 0.6),),))
    file = Path(shutil.copy(FILE, tmp_path))
    monkeypatch.setattr(recorded, "FILE", file)
    of_gae = {mistake.name: mistaken_run("gae", mistake.name) for mistake in exercises()["gae"].mistakes}
    try:
        write("gae", {"no_lambda": written})
        assert mistaken_run("gae", "no_lambda") == written and mistaken_run("gae", "forwards") is None
        write("gae", of_gae)
        assert file.read_text() == FILE.read_text()
    finally:
        recorded._recorded.cache_clear()


# ---- the function that trains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("exercise", TRAINING, ids=lambda exercise: exercise.name)
def test_the_file_has_the_mistake_in_the_library_s_signature(exercise, tmp_path):
    kind, name = exercise.trains
    mistake, file = exercise.mistakes[-1], tmp_path / "mistake.py"

    def loaded(answer: str):
        file.write_text(function_text(exercise, answer))
        return FunctionFile.read(str(file), kind_of(kind).functions[name]).load()

    assert judge(exercise, loaded(mistake.name)).mistake == mistake
    assert judge(exercise, loaded("")).passed


# ---- the verdict -----------------------------------------------------------------------------------------------------


def test_a_named_mistake_has_a_button_with_its_run_if_it_can_train():
    exercise = exercises()["gae"]
    mistake = exercise.mistakes[0]
    verdict = judge(exercise, mistake.answer)
    assert verdict.training == mistaken_run("gae", mistake.name)
    assert '<summary class="trained">Train with this mistake</summary>' in verdict._repr_html_()
    assert verdict.training.sentence in repr(verdict)
    exercise = exercises()["no_gradient"]
    verdict = judge(exercise, exercise.mistakes[0].answer)
    assert verdict.mistake and not verdict.training and "Train with" not in verdict._repr_html_()
