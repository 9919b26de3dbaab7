"""Several runs in numbers: last values, differences, and the settings that differ."""

import pytest
from run_folders import write_run

from widgets import Recording, compare_runs, curves, explore
from widgets.runs.charts import charts_for
from widgets.runs.comparison import last_values, settings_that_differ
from widgets.runs.feed import open_feed
from widgets.runs.series import Series, as_run, distinct_names


def test_differences_are_to_the_first_run(tmp_path):
    metrics = {"a": {"train/loss": [2.0]}, "b": {"train/loss": [1.5]}, "c": {"train/acc": [0.5]}}
    runs = [Series(as_run(write_run(tmp_path / name, values))) for name, values in metrics.items()]
    for series in runs:
        series.poll()
    (loss,) = last_values(runs, charts_for(runs, "", ["train/loss"]))
    assert (loss["values"], loss["differences"]) == ([2.0, 1.5, None], [-0.5, None])


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    losses = {"seat-1": [2.0], "seat-2": [1.5]}
    runs = [
        write_run(tmp_path / seat / "runs" / "ppo", {"train/loss": loss}) for seat, loss in losses.items()
    ]
    names = ["seat-1 ppo", "seat-2 ppo"]
    assert compare_runs(runs).columns[3] == "seat-2 ppo − seat-1 ppo"
    assert [run["name"] for run in open_feed(runs)._describe()["runs"]] == names
    assert [trace.name for trace in explore(runs).figure.data][::2] == names
    assert "Run seat-2 ppo: finished" in curves(runs).alt
    assert distinct_names(list(map(as_run, [runs[0], runs[0]]))) == ["ppo 1", "ppo 2"]
    assert distinct_names([Recording("healthy"), as_run(runs[0])]) == ["healthy", "ppo"]


def test_settings_that_differ_are_named_in_full_and_nothing_else():
    a = {"optim": {"lr": 1e-5, "name": "adam"}}
    b = {"optim": {"lr": 5e-5, "name": "adam"}, "tp": None}
    infos = [
        {"seed": 1, "config": {"model": model, "exp_manager": {"explicit_log_dir": place}}}
        for model, place in ((a, "/a"), (b, "/b"))
    ]
    assert settings_that_differ(infos) == [
        {"name": "model.optim.lr", "values": ["1e-05", "5e-05"]},
        {"name": "model.tp", "values": ["–", "none"]},
    ]


def test_the_table_of_two_recorded_runs_tells_what_was_changed():
    """The recording without a KL penalty was made with two other settings and more steps."""
    table = compare_runs([Recording(name, float("inf")) for name in ("healthy", "no-kl-penalty")])
    assert table.columns[1:] == ["healthy, step 12", "no-kl-penalty, step 10", "no-kl-penalty − healthy"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["trainer.ppo.initial_policy_kl_penalty"][:2] == ["0.06", "0"]
    assert rows["trainer.ppo.max_steps"][:2] == ["12", "20"]
    reward = rows["Reward, train"]
    assert reward[2] == pytest.approx(reward[1] - reward[0])
    assert f"no-kl-penalty − healthy: {reward[2]:.3f}\n" in repr(table)
    with pytest.raises(ValueError, match="give two runs or more"):
        compare_runs([Recording("healthy")])
