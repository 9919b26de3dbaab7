"""Finished runs through plotly: every line is there, long ones thinned with their spikes, and nothing from outside."""

import base64
import json

import numpy as np
import pytest
from run_folders import write_run

from widgets import explore
from widgets.figures.explorer import PLOTLY


def test_two_runs_share_charts_and_each_is_in_the_legend_once(healthy, gaming):
    figure = explore([healthy, gaming], ["train_rollouts/rewards", "train_rollouts/kl"]).figure
    assert [trace.name for trace in figure.data if trace.showlegend is not False] == ["healthy", "gaming"]
    assert len(figure.data) == 2 * 2 * 2  # charts, runs, and for each what was logged and its mean
    assert {trace.line.color for trace in figure.data} == {"#0072B2", "#D55E00"}
    logged = figure.data[1]
    assert list(logged.x) == list(range(1, 61)) and len(logged.customdata) == 60


def test_a_long_line_keeps_its_spike(tmp_path):
    losses = [9.0 if i == 17_777 else 1.0 for i in range(20_000)]
    explorer = explore(write_run(tmp_path, {"train/loss": losses}))
    assert len(explorer.figure.data[0].x) <= 2000 and max(explorer.figure.data[0].y) == 9
    assert len(json.dumps(explorer._repr_mimebundle_()[PLOTLY])) < 200_000


def test_it_is_told_in_words_where_plotly_is_not_and_asks_for_nothing(healthy):
    data = explore(healthy)._repr_mimebundle_()
    assert "KL to the reference: 0 at first" in data["text/plain"]
    assert not data[PLOTLY]["config"]["displaylogo"] and "http" not in json.dumps(data[PLOTLY])
    y = data[PLOTLY]["data"][0]["y"]
    assert np.isfinite(np.frombuffer(base64.b64decode(y["bdata"]), y["dtype"])).all()


def test_values_that_vary_by_less_than_the_least_height_of_their_axis_are_flat(tmp_path):
    figures = {"train/acc": [0.50, 0.51], "validation/kl": [0.0, 1e-8], "train/loss": [0.7, 0.5]}
    run = write_run(tmp_path, figures, kind="dpo")
    layout = explore(run, [*figures, "train/acc"]).figure.layout
    assert layout.yaxis.range == pytest.approx((0.48, 0.53)) and layout.yaxis4.range == layout.yaxis.range
    assert layout.yaxis2.range == pytest.approx((-0.005, 0.005))
    assert layout.yaxis3.range is None  # it varies by more


def test_an_unknown_axis(healthy):
    with pytest.raises(ValueError, match=r"axis='hours'.*step, time, tokens"):
        explore(healthy, axis="hours")


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_page_s_colour_shows_through_and_the_font_is_read_on_light_and_dark(healthy):
    layout = explore(healthy).figure.layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    for page in ("#ffffff", "#111111"):
        low, high = sorted(map(luminance, (layout.font.color, page)))
        assert (high + 0.05) / (low + 0.05) > 4, "WCAG's contrast"
