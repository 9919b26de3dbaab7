"""Marks on a run's charts: a setting that was changed, not a schedule."""

import pytest
from run_folders import change_info, write_run

from aligner_lib.run_folder.reader import RunFolder
from widgets.runs.marks import changes, marks
from widgets.runs.series import Series


def series_of(folder, **metrics) -> Series:
    write_run(folder, {name.replace("__", "/"): values for name, values in metrics.items()})
    series = Series(RunFolder(folder))
    series.poll()
    return series


def test_a_changed_setting_is_marked_at_its_step(tmp_path):
    series = series_of(
        tmp_path, train__lr=[1e-5, 1e-5, 5e-6, 5e-6], train_rollouts__kl_coef=[0.1, 0.1, 0.1, 0.0]
    )
    assert changes(series) == [(4, "KL coefficient 0.1 → 0"), (3, "learning rate 1e-05 → 5e-06")]


@pytest.mark.parametrize(
    ("rates", "changed_at", "marked"),
    [
        ([8.0, 7.0, 6.0, 2.0, 2.0], [3], [(4, "learning rate 6 → 2")]),  # during a decay
        ([8.0, 7.0, 6.0, 5.0, 4.0], [3], []),  # the KL coefficient was changed
        ([8.0, 8.0, 4.0, 2.0, 2.0], [2, 3], [(3, "learning rate 8 → 4"), (4, "learning rate 4 → 2")]),
        ([8.0, 8.0, 8.0, 4.0], [3, 9], [(4, "learning rate 8 → 4")]),  # a replay has not reached step 9 yet
        ([8.0, 8.0, 2.0, 2.0, 2.0], [], []),  # the end of a schedule
        ([8.0, 8.0, 8.3, 8.3], [2], [(3, "learning rate 8 → 8.3")]),
        ([8.0, 7.9, 7.8, 7.7], [2], []),  # the KL coefficient was changed
        ([7.6, 7.8, 8.0, 8.3, 8.3], [3], []),  # the KL coefficient was changed, and the warm-up ended
    ],
)
def test_a_change_is_marked_where_the_run_recorded_it(tmp_path, rates, changed_at, marked):
    series = series_of(tmp_path, train__lr=rates)
    change_info(tmp_path, changed_at=changed_at)
    assert changes(series) == marked


@pytest.mark.parametrize("rates", [[1e-6, 2e-6, 3e-6, 4e-6, 5e-6], [5e-6, 4.8e-6, 4.5e-6, 4.2e-6, 4e-6]])
def test_a_schedule_is_no_change(tmp_path, rates):
    assert changes(series_of(tmp_path, train__lr=rates)) == []


def test_alarms_checkpoints_and_resumes_stand_where_their_steps_are(tmp_path):
    series = series_of(tmp_path, train__loss=[3.0, 2.0, 1.0])
    (tmp_path / "checkpoints" / "step_000002").mkdir(parents=True)
    # 0: before a branch begins; 5: a replay has not reached it yet
    change_info(tmp_path, resumed_at=[0, 1, 5])
    assert marks(RunFolder(tmp_path), series, [(3, "Not a number")], series.axis("step")) == [
        [1.0, "resume", "resumed, step 1"],
        [2.0, "checkpoint", "checkpoint, step 2"],
        [3.0, "alarm", "Not a number, step 3"],
    ]
