"""Finished runs through plotly: every line is there, long ones thinned with their spikes, and nothing from outside."""

import base64
import json

import numpy as np
import pytest

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
    (tmp_path / "run.json").write_text(json.dumps({"status": "finished", "kind": "sft"}))
    records = ({"step": i, "time": i, "train/loss": 9.0 if i == 77_777 else 1.0} for i in range(100_000))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    explorer = explore(tmp_path)
    assert len(explorer.figure.data[0].x) <= 2000 and max(explorer.figure.data[0].y) == 9
    assert len(json.dumps(explorer._repr_mimebundle_()[PLOTLY])) < 200_000


def test_it_is_told_in_words_where_plotly_is_not_and_asks_for_nothing(healthy):
    data = explore(healthy)._repr_mimebundle_()
    assert "KL to the reference: 0 at first" in data["text/plain"]
    assert not data[PLOTLY]["config"]["displaylogo"] and "http" not in json.dumps(data[PLOTLY])
    y = data[PLOTLY]["data"][0]["y"]
    assert np.isfinite(np.frombuffer(base64.b64decode(y["bdata"]), y["dtype"])).all()


def test_values_that_vary_by_less_than_the_least_height_of_their_axis_are_flat(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"status": "finished", "kind": "dpo"}))
    figures = {"train/acc": [0.50, 0.51], "validation/kl": [0.0, 1e-8], "train/loss": [0.7, 0.5]}
    records = [{"step": i, "time": i} | {name: both[i] for name, both in figures.items()} for i in range(2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    layout = explore(tmp_path, [*figures, "train/acc"]).figure.layout
    assert layout.yaxis.range == pytest.approx((0.48, 0.53)) and layout.yaxis4.range == layout.yaxis.range
    assert layout.yaxis2.range == pytest.approx((-0.005, 0.005))
    assert layout.yaxis3.range is None  # it varies by more


def test_an_unknown_axis(healthy):
    with pytest.raises(ValueError, match=r"axis='hours'.*step, time, tokens"):
        explore(healthy, axis="hours")


def test_the_page_s_colour_shows_through(healthy):
    layout = explore(healthy).figure.layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert contrast(layout.font.color, "#ffffff") > 4 and contrast(layout.font.color, "#111111") > 4


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
