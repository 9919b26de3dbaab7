"""What is sent, applied to what was sent before, is always the whole: the browser never drifts from the run."""

import json

import numpy as np
from run_folders import write_run
from wire_js import fold

from aligner_lib.run_folder.alarms import Thresholds
from aligner_lib.run_folder.reader import RunFolder
from widgets.frontend.wire import finite, unpack
from widgets.runs import feed as feed_module
from widgets.runs.feed import Feed, open_feed


class Browser:
    """widgets/frontend/wire.js in Python."""

    def __init__(self):
        self.lines, self.head = {}, {}

    def apply(self, data: bytes) -> None:
        head, points = unpack(data)
        if head["kind"] == "snapshot":
            self.lines.clear()
        else:
            assert head["base"] == self.head["version"], "an update was missed"
        for line, new in zip(head["lines"], points):
            known = self.lines.get(line["key"], np.empty((0, 3), dtype=np.float32))
            for _ in range(line["fold"]):
                known = fold(known)
            self.lines[line["key"]] = np.concatenate([known[: line["keep"]], new])
        self.head |= head


def append(path, first, last, **metrics):
    with open(path / "metrics.jsonl", "a") as file:
        for step in range(first, last + 1):
            record = {"step": step, "time": 1000.0 + step, "train/loss": (step * 7919 % 1009) / 100}
            file.write(json.dumps(record | metrics) + "\n")


def follow(path, **options):
    feed, browser = Feed([RunFolder(path)], ["train/loss"], **options), Browser()
    feed.poll()
    browser.apply(feed.snapshot())
    return feed, browser


def test_updates_add_up_to_a_snapshot(tmp_path, monkeypatch):
    monkeypatch.setattr(feed_module, "MAX_POINTS", 16)
    feed, browser = follow(tmp_path)
    step = 0
    for count in (1, 2, 5, 8, 1, 1, 30, 3, 200, 1):
        append(tmp_path, step + 1, step + count)
        step += count
        feed.poll()
        browser.apply(feed.update())
        _, fresh = follow(tmp_path)
        assert browser.lines.keys() == fresh.lines.keys()
        for key, points in fresh.lines.items():
            assert np.allclose(browser.lines[key], points, rtol=1e-5), key
    feed.poll()
    assert feed.update() is None, "nothing new sends nothing"
    assert len(browser.lines["0/0/0"]) <= 16


def test_a_resumed_run_starts_the_browser_anew(tmp_path):
    append(tmp_path, 1, 20)
    feed, browser = follow(tmp_path)
    append(tmp_path, 11, 12)  # the run was resumed at step 10
    feed.poll()
    browser.apply(feed.update())
    assert browser.head["kind"] == "snapshot"
    assert browser.lines["0/0/0"][:, 0].tolist() == list(range(1, 13))


def test_of_a_long_run_an_update_is_small_and_a_narrow_view_has_every_record(tmp_path):
    append(tmp_path, 1, 10_000)
    feed, _ = follow(tmp_path)
    head, (points,) = unpack(feed.detail(8_000, 8_500))
    assert head["view"] == [8_000, 8_500]
    assert points[:, 0].tolist() == list(range(7_999, 8_502))
    append(tmp_path, 10_001, 10_010)
    feed.poll()
    assert len(feed.update()) < 2_000


def test_on_another_axis_the_steps_travel_with_the_places(tmp_path):
    append(tmp_path, 1, 3)
    append(tmp_path, 7, 7)
    feed, browser = follow(tmp_path, axis="time")
    assert browser.lines["0/step"][:, :2].tolist() == [[0, 1], [1, 2], [2, 3], [6, 7]]
    feed.axis = "step"
    browser.apply(feed.snapshot())
    assert "0/step" not in browser.lines, "there it would be the places themselves"


def test_a_chart_is_added_once_and_can_be_removed(tmp_path):
    append(tmp_path, 1, 3, **{"train/lr": 1.0})
    feed, browser = follow(tmp_path)
    feed.add("train/lr")
    feed.add("train/lr")
    browser.apply(feed.update())
    charts = [(spec["title"], spec["added"]) for spec in browser.head["charts"]]
    assert charts == [("train/loss", ""), ("train/lr", "train/lr")]
    feed.remove("train/lr")
    browser.apply(feed.update())
    assert [spec["title"] for spec in browser.head["charts"]] == ["train/loss"]
    assert "0/1/0" not in browser.lines


def test_a_value_that_no_chart_can_draw_leaves_the_others_and_is_named(tmp_path):
    losses = [1.0, 1e300, -1e300, float("nan"), float("nan"), float("inf"), 2.0]
    _, browser = follow(write_run(tmp_path, {"train/loss": losses}))
    assert browser.lines["0/0/0"][:, :2].tolist() == [[1, 1], [7, 2]]
    gaps = [[2, 2, "1e300"], [3, 3, "−1e300"], [4, 5, "NaN"], [6, 6, "∞"]]
    assert browser.head["gaps"]["0/0/0"] == gaps
    assert [alarm["name"] for alarm in browser.head["alarms"]] == ["not_finite"]
    assert finite({"a": [float("inf")]}) == {"a": ["inf"]}


def test_of_many_gaps_the_last_one_is_kept_because_it_may_be_the_latest_value(tmp_path):
    _, browser = follow(write_run(tmp_path, {"train/loss": [1.0, float("nan")] * 60}))
    gaps = browser.head["gaps"]["0/0/0"]
    assert len(gaps) == 50 and [gap[0] for gap in gaps[-2:]] == [98, 120]


def test_runs_that_end_with_nan_send_nothing_new(tmp_path):
    """A NaN differs from itself, and the table of two runs would be sent again and again."""
    feed = open_feed([write_run(tmp_path / name, {"train/loss": [1.0, float("nan")]}) for name in ("a", "b")])
    feed.snapshot()
    feed.poll()
    assert feed.update() is None


def test_a_run_that_is_added_has_the_limits_of_the_others(tmp_path):
    runs = [write_run(tmp_path / name, {"train_rollouts/kl": [0.4] * 8}, kind="ppo") for name in ("a", "b")]
    feed = open_feed(runs[0], limits=Thresholds(kl=0.5))
    feed.follow(RunFolder(runs[1]))
    feed.poll()
    assert unpack(feed.snapshot())[0]["alarms"] == []
