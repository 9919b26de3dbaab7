"""A branch beside its parent is drawn from the fork on."""

import json

import pytest
from run_folders import write_run

from aligner_lib.run_folder.reader import RunFolder
from widgets.figures.static_figure import curves
from widgets.recordings import recording_file
from widgets.recordings.replay import Recording
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
    (tmp_path / "link").symlink_to(tmp_path / "parent")
    linked = open_feed([RunFolder(tmp_path / "link"), child], ["train/loss"]).series
    assert list(linked[1].steps) == list(range(4, 12))
    stranger = run(tmp_path / "stranger", range(3))
    assert list(open_feed([stranger, child], ["train/loss"]).series[1].steps) == list(range(12))
    assert "child" in curves([parent, child], ["train/loss"]).alt


@pytest.mark.parametrize("known", [True, False], ids=["created", "an older run"])
def test_a_packed_branch_beside_its_packed_parent_begins_at_the_fork(known, tmp_path):
    """The branch is started at 200 s, and its first own step 3 ends at 300 s."""
    write_run(tmp_path / "parent", created=1.0)
    origin = {"name": "parent", "step": 2} | ({"created": 1.0} if known else {})
    write_run(tmp_path / "child", parent={"run": str(tmp_path / "parent")} | origin, created=200.0)
    for name, last in (("parent", 3), ("child", 300)):
        records = [{"step": step, "time": time, "a": 1} for step, time in ((1, 1), (2, 2), (3, last))]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    runs = [tmp_path / "parent", tmp_path / "child"]
    packed = [recording_file.record(run, tmp_path / f"{run.name}-packed") for run in runs]
    parent, child = (Recording(path, speed=float("inf")) for path in packed)
    assert child.info["parent"] == origin
    for beside in ([parent, child], [child, parent]):
        of_child = open_feed(beside, ["a"]).series[beside.index(child)]
        assert list(of_child.steps) == [2, 3] and list(of_child.axis("time")) == [1, 1]
    assert list(open_feed(child, ["a"]).series[0].steps) == [1, 2, 3]
    unpacked = open_feed([parent, RunFolder(tmp_path / "child")], ["a"]).series[1]
    assert list(unpacked.steps) == ([2, 3] if known else [1, 2, 3])


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


def test_a_branch_of_a_branch_leaves_out_the_pauses_before_both(tmp_path):
    """Steps take 1 s. The child starts at 100 s after the steps 1 and 2, and the grandchild at 1000 s after the step 3."""
    starts, times = {"parent": 0, "child": 99, "grandchild": 999}, [1, 2, 100, 1000]
    for number, (name, created) in enumerate(starts.items()):
        earlier = list(starts)[number - 1]
        origin = {"run": str(tmp_path / earlier), "name": earlier, "step": number + 1}
        write_run(tmp_path / name, created=created, **{"parent": origin} if number else {})
        records = [{"step": step + 1, "time": time, "a": 1} for step, time in enumerate(times[: number + 2])]
        (tmp_path / name / "metrics.jsonl").write_text(
            "".join(json.dumps(record) + "\n" for record in records)
        )
    runs = [RunFolder(tmp_path / name) for name in starts]
    # the first step after a pause has the time of the step before
    assert [list(series.axis("time")) for series in open_feed(runs, ["a"]).series] == [[0, 1], [1, 1], [1, 1]]
    alone = open_feed(runs[1:], ["a"]).series  # without its parent, the child has no pause
    assert [list(series.axis("time")) for series in alone] == [[0, 1, 99], [99, 99]]
