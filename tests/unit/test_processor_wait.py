"""Time that a job waits for a core is counted, and a monitor's heading says its share."""

import pytest

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.trainers.processor_wait import ProcessorWait
from widgets.runs.progress import waits_for_cores
from widgets.runs.series import Series


def test_seconds_since_the_last_call(tmp_path):
    file = tmp_path / "schedstat"
    assert ProcessorWait(file).seconds() is None  # a system that does not count waits
    file.write_text("123456 5000000000 7\n")
    wait = ProcessorWait(file)
    for nanoseconds, seconds in ((5_500_000_000, 0.5), (5_750_000_000, 0.25)):
        file.write_text(f"123456 {nanoseconds} 9\n")
        assert wait.seconds() == seconds


def test_the_share_is_the_median_of_the_last_steps(tmp_path):
    records = [{"step": 0, "time": 0.0, "timers/validation_time": 3.0}]
    for step, waited in enumerate([9.0, 0.0, 1.0, 2.0, 8.0, 2.0], 1):
        timers = {"timers/step_time": 10.0, "timers/processor_wait": waited}
        records.append({"step": step, "time": float(step), **timers})
    series = Series(RunFolder(tmp_path))
    assert waits_for_cores(series) is None
    series.extend(records)
    assert waits_for_cores(series) == pytest.approx(0.2)  # of 0, 1, 2, 8 and 2
