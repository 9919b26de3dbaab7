"""Finished runs through plotly: every line is there, long ones thinned with their spikes, and nothing from outside."""

import base64
import json

import numpy as np
import pytest
from run_folders import write_run

from widgets import curves, explore
from widgets.figures.explorer import PLOTLY
from widgets.figures.palette import pen


def test_two_runs_share_charts_each_is_in_the_legend_once_and_nothing_is_loaded(healthy, gaming):
    explorer = explore([healthy, gaming], ["train_rollouts/rewards", "train_rollouts/kl"])
    traces = explorer.figure.data
    assert [trace.name for trace in traces if trace.showlegend is not False] == ["healthy", "gaming"]
    assert len(traces) == 2 * 2 * 2  # charts, runs, and for each what was logged and its mean
    assert {trace.line.color for trace in traces} == {"#0072B2", "#D55E00"}
    assert list(traces[1].x) == list(range(1, 61)) and len(traces[1].customdata) == 60
    plotly = explorer._repr_mimebundle_()[PLOTLY]
    assert not plotly["config"]["displaylogo"] and "http" not in json.dumps(plotly)
    y = plotly["data"][0]["y"]
    assert np.isfinite(np.frombuffer(base64.b64decode(y["bdata"]), y["dtype"])).all()


def test_a_long_line_keeps_its_spike_and_is_told_in_words_where_plotly_is_not(tmp_path):
    losses = [9.0 if i == 7_777 else 1.0 for i in range(10_000)]
    explorer = explore(write_run(tmp_path, {"train/loss": losses}))
    assert len(explorer.figure.data[0].x) <= 2000 and max(explorer.figure.data[0].y) == 9
    data = explorer._repr_mimebundle_()
    assert len(json.dumps(data[PLOTLY])) < 200_000 and "Loss" in data["text/plain"]


def test_a_value_that_cannot_be_drawn_interrupts_the_line_here_and_in_the_picture(tmp_path):
    run = write_run(tmp_path, {"train/loss": [1.0, 2.0, np.nan, np.nan, 3.0]})
    traces, (axes,) = explore(run).figure.data, curves(run).figure.axes
    for x, y in (*((trace.x, trace.y) for trace in traces), axes.lines[-1].get_data()):
        assert list(x) == [1, 2, 3, 5] and np.isnan(y).tolist() == [False, False, True, False]


def test_values_that_vary_by_less_than_the_least_height_of_their_axis_are_flat_here_and_in_the_picture(
    tmp_path,
):
    """Else a chart would show rounding as mountains. The last line varies by more."""
    values = {"train/acc": [0.50, 0.51], "validation/kl": [0.0, 1e-8], "train/loss": [0.7, 0.5]}
    run = write_run(tmp_path, values, kind="dpo")
    layout = explore(run, [*values]).figure.layout
    accuracy, kl, loss = curves(run, [*values]).figure.axes
    for flat in (layout.yaxis.range, accuracy.get_ylim()):
        assert flat == pytest.approx((0.48, 0.53))
    for flat in (layout.yaxis2.range, kl.get_ylim()):
        assert flat == pytest.approx((-0.005, 0.005))
    assert layout.yaxis3.range is None and loss.get_ylim()[1] - loss.get_ylim()[0] < 0.3


def test_eighteen_runs_have_pens_of_their_own():
    assert len({pen(run) for run in range(18)}) == 18
    assert len({(pen(run).dash, pen(run).marker) for run in range(18)}) == 18, "in greyscale"


def test_an_unknown_axis(healthy):
    with pytest.raises(ValueError, match=r"axis='hours'.*step, time, tokens"):
        explore(healthy, axis="hours")
