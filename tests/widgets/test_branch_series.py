"""A branch beside its parent is drawn from the fork on."""

import json

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
