"""Charts of the reader's own."""

import pytest

from widgets import chart
from widgets.charts import Line, charts_for

MARGIN = Line("margin", ("train/chosen",), minus="train/rejected")


@pytest.mark.parametrize(
    "line, metrics",
    [
        (("loss", "train/loss"), ("train/loss",)),
        (["loss", "train/loss", "loss"], ("train/loss", "loss")),
        ("train/loss", ("train/loss",)),
    ],
)
def test_a_line_is_a_label_and_its_metrics(line, metrics):
    made = chart("Loss", line, MARGIN, unit="nats", exact=True)
    assert made.lines == (Line("loss", metrics), MARGIN) and (made.unit, made.exact) == ("nats", True)
    hash(made)  # as frozen as it says


def test_names_become_charts_and_charts_stay():
    mine = chart("Mine", "train/loss")
    one, together, same = charts_for([], "sft", ["train/loss", ["train/loss", "validation/loss"], mine])
    assert one.hint.startswith("Falls") and [line.label for line in one.lines] == ["loss"]
    assert together.title == "loss" and [line.label for line in together.lines] == [
        "train/loss",
        "validation/loss",
    ]
    assert same is mine
