"""Interactive plotly charts of finished runs, with hover, zoom, and a legend that hides runs."""

from __future__ import annotations

import json

from widgets.figures.palette import pen, places
from widgets.figures.static_figure import COLUMNS, axis_label, describe, flat_range, label_of
from widgets.runs import downsample
from widgets.runs.charts import drawable, gaps
from widgets.runs.feed import MAX_POINTS, open_feed
from widgets.runs.series import Series, distinct_names
from widgets.runs.smooth import DEFAULT, smooth

PLOTLY = "application/vnd.plotly.v1+json"
# plotly's names for the dashes of widgets.figures.palette
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
ROW_PIXELS = 270
CLEAR, GREY, HAIR = "rgba(0,0,0,0)", "#777777", "rgba(128,128,128,0.25)"


class Explorer:
    """A plotly figure (`.figure`), with a text description for pages without plotly.

    The output contains no PNG, because JupyterLab would display the PNG instead of the interactive figure. For a static
    picture, see `curves`.
    """

    def __init__(self, figure, words: str):
        self.figure, self.words = figure, words

    def _repr_mimebundle_(self, **kwargs):
        # `responsive` is off: JupyterLab adapts the width, and plotly would take the height from the container, which has no
        # height of its own.
        content = json.loads(self.figure.to_json()) | {"config": {"displaylogo": False, "responsive": False}}
        return {PLOTLY: content, "text/plain": self.words}

    def __repr__(self) -> str:
        return self.words


def explore(runs, metrics: list | None = None, *, axis: str = "step"):
    """An Explorer of one or several runs. All charts zoom together, and the legend hides and shows runs.

    metrics, axis: as for `curves`. A long line is reduced to at most 2,000 points, including the lowest and the
    highest records.
    """
    from plotly.subplots import make_subplots

    feed = open_feed(runs, metrics, axis)
    runs, series, charts = feed.runs, feed.series, feed.charts
    columns = max(1, min(COLUMNS, len(charts)))
    rows = max(1, -(-len(charts) // columns))
    # The unit is below the title. On the same line, the titles of narrow charts would overlap.
    titles = [chart.title + (f"<br><sup>{chart.unit}</sup>" if chart.unit else "") for chart in charts]
    figure = make_subplots(rows, columns, subplot_titles=titles, vertical_spacing=0.22 / rows)
    for i, chart in enumerate(charts):
        place = {"row": i // columns + 1, "col": i % columns + 1}
        for trace in _traces(chart, runs, series, axis, 0 if chart.exact else DEFAULT):
            figure.add_trace(trace, **place)
        if (flat := _flat_range(chart, series)) is not None:
            figure.update_yaxes(range=flat, **place)
    _style(figure, rows, axis)
    return Explorer(figure, describe(runs, series, charts))


def _traces(chart, runs, series: list[Series], axis: str, smoothing: float):
    """Two traces for each line: the logged values in a faint colour, and the smoothed values."""
    from plotly.graph_objects import Scatter

    several, names = len(runs) > 1, distinct_names(runs)
    for r, run_series in enumerate(series):
        x = run_series.axis(axis)
        for k, line in enumerate(chart.lines):
            rows, values = drawable(line, run_series)
            if not len(values):
                continue
            size = downsample.bucket_size(len(values), MAX_POINTS)
            points = downsample.downsample(x[rows], values, size)
            points = downsample.interrupted(points, x[[first for first, *_ in gaps(line, run_series)]])
            number = r if several else k
            name = label_of(names[r], line.label, several, k > 0)
            shared = {"x": points[:, 0], "legendgroup": name, "name": name}
            colour = pen(number).colour
            yield Scatter(
                **shared, y=points[:, 1], line_color=colour, line_width=1, opacity=0.35, mode="lines",
                hoverinfo="skip", showlegend=False,
            )  # fmt: skip
            yield Scatter(
                **shared, y=smooth(points, size, smoothing), customdata=points[:, 1], mode="lines",
                line={"color": colour, "width": 2, "dash": DASHES[(places(number)[1] + k * several) % len(DASHES)]},
                hovertemplate="%{customdata:.4~g}",
            )  # fmt: skip


def _flat_range(chart, series: list[Series]) -> tuple[float, float] | None:
    """The y range of a chart whose lines vary by less than the chart's least height; None for other charts.

    Without this range, plotly would magnify the small variation.
    """
    values = [
        value for run_series in series for line in chart.lines for value in drawable(line, run_series)[1]
    ]
    return flat_range(min(values), max(values), chart.least) if values else None


def _style(figure, rows: int, axis: str) -> None:
    named = set()
    for trace in figure.data:  # show a line of several charts once in the legend
        if trace.showlegend is not False:
            trace.showlegend = trace.name not in named
            named.add(trace.name)
    figure.update_layout(
        template="plotly_white",
        # JupyterLab's theme is unknown and may change: a transparent background, and greys that fit light and dark pages
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        font_color=GREY,
        hoverlabel={"bgcolor": "#ffffff", "font_color": "#222222"},
        height=ROW_PIXELS * rows + 60,
        margin={"l": 50, "r": 20, "t": 50, "b": 80},
        hovermode="x unified",
        legend={"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
    )
    figure.update_xaxes(matches="x", showticklabels=True)
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(gridcolor=HAIR, zerolinecolor=HAIR)
    figure.update_xaxes(title={"text": axis_label(axis), "font_size": 12}, row=rows)
    figure.update_annotations(font_size=13)
