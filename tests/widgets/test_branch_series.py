"""A branch beside its parent is drawn from the fork on."""

import pytest
from run_folders import write_run

from aligner_lib.run_folder.reader import RunFolder
from widgets.frontend.wire import unpack
from widgets.recordings import recording_file
from widgets.recordings.replay import Recording
from widgets.runs.feed import open_feed


def steps_at(*places: tuple[int, float]) -> list[dict]:
    """Records of these (step, time)."""
    return [{"step": step, "time": time, "a": 1} for step, time in places]


@pytest.mark.parametrize("known", [True, False], ids=["created", "an older run"])
def test_a_packed_branch_beside_its_packed_parent_begins_at_the_fork(known, tmp_path):
    """The branch is started at 200 s, and its first own step 3 ends at 300 s."""
    origin = {"name": "parent", "step": 2} | ({"created": 1.0} if known else {})
    write_run(tmp_path / "parent", steps_at((1, 1), (2, 2), (3, 3)), created=1.0)
    branch = {"run": str(tmp_path / "parent")} | origin
    write_run(tmp_path / "child", steps_at((1, 1), (2, 2), (3, 300)), parent=branch, created=200.0)
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
    records = RunFolder(parent).metrics()
    for record in records[shared:]:
        record["time"] += 2e9  # the branch is trained much later
    child = write_run(tmp_path / "child", records, parent=origin, created=2e9)
    of_parent, of_child = open_feed([parent, child], ["train/tokens"]).series
    assert list(of_child.steps) == list(range(fork, 6))
    assert of_child.axis("tokens").tolist() == of_parent.axis("tokens")[fork - 1 :].tolist()
    times = of_parent.axis("time")
    times[shared:] -= times[shared] - times[shared - 1]
    assert of_child.axis("time").tolist() == times[fork - 1 :].tolist()
    assert open_feed(child, ["train/tokens"]).series[0].axis("tokens").tolist() == [10, 20, 20, 30, 40]


def test_a_branch_beside_its_parent_has_the_alarms_of_the_whole_branch(tmp_path):
    """The entropy at the start, before the fork, is 2."""
    entropies, origin = [2.0] * 5, {"run": str(tmp_path / "parent"), "name": "parent", "step": 5}
    parent = write_run(tmp_path / "parent", {"train_rollouts/entropy": entropies}, kind="ppo")
    metrics = {"train_rollouts/entropy": [*entropies, 0.5, 0.5, 0.5, 0.5]}
    child = write_run(tmp_path / "child", metrics, kind="ppo", parent=origin)
    alarms = unpack(open_feed([parent, child]).snapshot())[0]["alarms"]
    assert [(alarm["name"], alarm["where"]) for alarm in alarms] == [("entropy", "child, since step 8")]


def test_a_branch_of_a_branch_leaves_out_the_pauses_before_both(tmp_path):
    """Steps take 1 s. The child starts at 99 s after step 2, and the grandchild at 999 s after step 3."""
    at, before = enumerate((1, 2, 100, 1000), 1), None
    places, runs = [*at], []
    for name, created, steps in (("parent", 0, 2), ("child", 99, 3), ("grandchild", 999, 4)):
        origin = {"parent": {"run": str(before), "name": before.name, "step": steps - 1}} if before else {}
        before = write_run(tmp_path / name, steps_at(*places[:steps]), created=created, **origin)
        runs.append(RunFolder(before))
    # the first step after a pause has the time of the step before
    assert [list(series.axis("time")) for series in open_feed(runs, ["a"]).series] == [[0, 1], [1, 1], [1, 1]]


def test_a_branch_beside_another_run_is_whole_and_its_parent_is_known_through_a_link(tmp_path):
    origin = {"run": str(tmp_path / "parent"), "name": "parent", "step": 2}
    write_run(tmp_path / "parent", steps_at((1, 1), (2, 2)))
    child = write_run(tmp_path / "child", steps_at((1, 1), (2, 2), (3, 3)), parent=origin)
    (tmp_path / "link").symlink_to(tmp_path / "parent")
    stranger = write_run(tmp_path / "stranger", steps_at((1, 1)))
    for beside, steps in ((tmp_path / "link", [2, 3]), (stranger, [1, 2, 3])):
        assert list(open_feed([RunFolder(beside), child], ["a"]).series[1].steps) == steps
