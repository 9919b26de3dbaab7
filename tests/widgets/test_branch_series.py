"""A branch beside its parent is drawn from the fork on."""

import json

import pytest
from run_folders import write_run

from aligner_lib.run_folder.reader import RunFolder
from widgets.figures.static_figure import curves
from widgets.runs.feed import open_feed


def run(folder, steps: range, **info) -> RunFolder:
    folder.mkdir()
    content = {
        "kind": "sft",
        "status": "finished",
        "config": {},
        "heartbeat": {"time": 0, "step": steps[-1]},
    } | info
    (folder / "run.json").write_text(json.dumps(content))
    records = [{"step": step, "time": 100.0 + step, "train/loss": 1 / (1 + step)} for step in steps]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return RunFolder(folder)


def test_a_branch_beside_its_parent_begins_at_the_fork_and_alone_at_its_beginning(tmp_path):
    parent = run(tmp_path / "parent", range(9))
    origin = {"run": str((tmp_path / "parent").absolute()), "name": "parent", "step": 4}
    child = run(tmp_path / "child", range(12), parent=origin)
    both = open_feed([parent, child], ["train/loss"]).series
    assert [list(series.steps) for series in both] == [list(range(9)), list(range(4, 12))]
    assert list(open_feed(child, ["train/loss"]).series[0].steps) == list(range(12))
    stranger = run(tmp_path / "stranger", range(3))
    assert list(open_feed([stranger, child], ["train/loss"]).series[1].steps) == list(range(12))
    assert "child" in curves([parent, child], ["train/loss"]).alt


@pytest.mark.parametrize(("fork", "shared"), [(3, 3), (1, 1), (3, 2)])
def test_a_branch_goes_on_from_its_parent_s_tokens_and_time_not_from_the_clock(tmp_path, fork, shared):
    """shared: the parent's last checkpoint at or before the fork; the branch computes the steps after it again."""
    parent = write_run(tmp_path / "parent", {"train/tokens": [10, 10, None, 10, 10]}, seconds=2.0)
    origin = {"run": str(parent.absolute()), "name": "parent", "step": fork}
    child = write_run(tmp_path / "child", parent=origin, created=2e9)
    records = RunFolder(parent).metrics()
    for record in records[shared:]:
        record["time"] += 2e9  # the branch is trained much later
    (child / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    of_parent, of_child = open_feed([parent, child], ["train/tokens"]).series
    assert of_child.axis("tokens").tolist() == of_parent.axis("tokens")[fork - 1 :].tolist()
    times = of_parent.axis("time")
    times[shared:] -= times[shared] - times[shared - 1]
    assert of_child.axis("time").tolist() == times[fork - 1 :].tolist()
    assert open_feed(child, ["train/tokens"]).series[0].axis("tokens").tolist() == [10, 20, 20, 30, 40]
