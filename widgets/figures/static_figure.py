"""Static figures of runs, which remain in a saved notebook without a kernel."""

from __future__ import annotations

import io
import threading
from html import escape

from widgets.figures.palette import pen
from widgets.runs import downsample
from widgets.runs.charts import Chart, column, deviations, drawable, gaps, timers
from widgets.runs.feed import Feed, open_feed
from widgets.runs.series import Series, distinct_names
from widgets.runs.smooth import DEFAULT, smooth

INK, SOFT, GRID, BAD = "#222222", "#666666", "#E3E3E3", "#B3261E"
POINTS = 600  # points of a line, more than a chart has pixels
DPI = 144
COLOURS = 128
COLUMNS = 3  # charts in a row


class Picture:
    """A figure with a text description. A notebook displays a PNG with the text below.

    The text is also in the metadata of the output, but JupyterLab and nbconvert's default page ignore the metadata.
    """

    def __init__(self, figure, alt: str):
        self.figure = figure
        self.alt = alt

    def png(self) -> bytes:
        """The figure as PNG bytes. A palette of 128 colours reduces the size to a third, which keeps notebooks small."""
        from PIL import Image

        full, small = io.BytesIO(), io.BytesIO()
        self.figure.savefig(full, format="png", dpi=DPI, facecolor="white")
        picture = Image.open(full).convert("RGB")
        picture.quantize(COLOURS, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
        return small.getvalue()

    def save(self, path) -> None:
        """Write the figure to a file. The extension selects the format (png, svg, pdf)."""
        self.figure.savefig(path, dpi=DPI, facecolor="white")

    def _ipython_display_(self) -> None:
        from IPython.display import display

        data, metadata = self._repr_mimebundle_()
        display(data, metadata=metadata, raw=True)
        display(in_words(self.alt), raw=True)

    def _repr_mimebundle_(self, **kwargs):
        size = {"width": round(self.figure.get_figwidth() * 96)}
        return {"image/png": self.png(), "text/plain": self.alt}, {"image/png": {"alt": self.alt, **size}}


def curves(runs, metrics: list | None = None, *, axis: str = "step", smoothing: float = DEFAULT):
    """A Picture with the curves of a run, or of several runs in the same charts.

    metrics: metric names, lists of names for a common chart, or a `chart(…)`; None: the default charts of the kind of run.
    axis: `step`, `time` or `tokens`. smoothing: half-life as a fraction of the run; 0 draws only the records.
    Raises ValueError for an unknown axis, and for an empty list of runs.
    """
    feed = open_feed(runs, metrics, axis)
    return draw(feed.runs, feed.series, feed.charts, axis, smoothing)


def draw(runs, series: list[Series], charts: list[Chart], axis: str, smoothing=DEFAULT) -> Picture:
    """Draw the charts in a grid, with a text description."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max(1, min(COLUMNS, len(charts)))
    rows = max(1, -(-len(charts) // columns))
    figure = Figure(figsize=(3.35 * columns, 2.35 * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, hspace=0.04, wspace=0.03)
    several, legend = len(runs) > 1, None
    for i, chart in enumerate(charts):
        axes = figure.add_subplot(rows, columns, i + 1)
        _draw_chart(axes, chart, runs, series, axis, smoothing)
        labels = axes.get_legend_handles_labels()[1]
        if labels != legend and len(series) * len(chart.lines) > 1 and labels:
            _draw_legend(axes)
            legend = labels
        if i >= len(charts) - columns:
            axes.set_xlabel(axis_label(axis), color=SOFT, fontsize=8)
    if not charts:
        figure.text(0.5, 0.5, "No metrics yet", ha="center", color=SOFT)
    figure.suptitle(
        _heading(runs),
        x=0.01,
        ha="left",
        fontsize=10,
        color=INK,
        weight="bold" if not several else None,
        parse_math=False,  # a run's name may have two dollar signs
    )
    return Picture(figure, describe(runs, series, charts))


def _draw_chart(axes, chart: Chart, runs, series, axis: str, smoothing: float) -> None:
    several, names = len(series) > 1, distinct_names(runs)
    smoothing = 0 if chart.exact else smoothing
    for r, run_series in enumerate(series):
        x = run_series.axis(axis)
        for k, line in enumerate(chart.lines):
            rows, values = drawable(line, run_series)
            spans = gaps(line, run_series)
            for first, last, _ in spans:
                _draw_gap(axes, x[first], x[last], pen(r if several else k))
            if len(values):
                label = _shown_label(label_of(names[r], line.label, several, k > 0))
                spread = deviations(line, run_series)
                _draw_line(
                    axes,
                    x[rows],
                    values,
                    spread,
                    x[[first for first, *_ in spans]],
                    pen(r if several else k),
                    several and k > 0,
                    label,
                    smoothing,
                )
    unit = f"  ({chart.unit})" if chart.unit else ""
    axes.set_title(chart.title + unit, loc="left", fontsize=9, color=INK, parse_math=False)
    _plain(axes)
    if (flat := flat_range(*axes.get_ylim(), chart.least)) is not None:
        axes.set_ylim(flat)
    if axis == "step":
        axes.locator_params(axis="x", integer=True)


def _draw_legend(axes) -> None:
    legend = axes.legend(fontsize=7, frameon=False, labelcolor=SOFT, handlelength=2.6, borderaxespad=0.2)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw_line(axes, x, y, spread, gaps, pen, faint: bool, label: str, smoothing: float) -> None:
    size = downsample.bucket_size(len(y), POINTS)
    points = downsample.interrupted(downsample.downsample(x, y, size), gaps)
    calm = smooth(points, size, smoothing)
    if spread is not None and not faint:
        spreads = downsample.interrupted(downsample.downsample(x, spread, size), gaps)
        band = smooth(spreads, size, smoothing)
        axes.fill_between(points[:, 0], calm - band, calm + band, color=pen.colour, alpha=0.13, linewidth=0)
    axes.plot(points[:, 0], points[:, 1], color=pen.colour, linewidth=0.8, alpha=0.35)
    axes.plot(
        points[:, 0],
        calm,
        color=pen.colour,
        linestyle=pen.dash,
        linewidth=1.0 if faint else 1.6,
        marker=pen.marker,
        markersize=3.2,
        markerfacecolor="white" if faint else pen.colour,
        markevery=1 if len(points) < 15 else len(points) // 6,
        label=label,
    )


def _draw_gap(axes, first: float, last: float, pen) -> None:
    """Draw a cross at the bottom of the chart at a value that cannot be drawn, and a bar for the length of the gap."""
    bottom = axes.get_xaxis_transform()
    axes.plot([first, last], [0.02, 0.02], color=pen.colour, linewidth=2, transform=bottom, clip_on=False)
    axes.plot(
        [first], [0.02], "x", color=BAD, markersize=6, markeredgewidth=1.8, transform=bottom, clip_on=False
    )


def _plain(axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(colors=SOFT, labelsize=7.5, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.02, y=0.12)
    axes.locator_params(axis="y", nbins=5)
    axes.locator_params(axis="x", nbins=5)


def flat_range(low: float, high: float, least: float = 0.0) -> tuple[float, float] | None:
    """A y range for values that vary by less than `least`, or are constant up to rounding; None for other values.

    Without this range, the axis would magnify noise and rounding errors.
    """
    size, height = max(abs(low), abs(high)), max(high - low, least)
    if height < 1e-4 * size:
        height = 0.1 * size
    middle = (low + high) / 2
    return None if height == high - low else (middle - height / 2, middle + height / 2)


def label_of(name: str, line: str, several_runs: bool, later_line: bool) -> str:
    """The label of a run's line: with several runs the run's name, followed by the line's label except for a chart's first."""
    return " ".join([name] * several_runs + [line] * (later_line or not several_runs))


def _shown_label(label: str) -> str:
    """The label for matplotlib, whose legend leaves out labels that begin with an underscore. A zero-width space precedes it."""
    return f"\N{ZERO WIDTH SPACE}{label}" if label.startswith("_") else label


def axis_label(axis: str) -> str:
    """The label of an x axis."""
    return {"step": "step", "time": "seconds since the first step", "tokens": "tokens"}[axis]


def _heading(runs) -> str:
    return "    ".join(f"{name}: {run.status}" for name, run in zip(distinct_names(runs), runs))


# -- in words -------------------------------------------------------------------------------------------------------


def describe(runs, series: list[Series], charts: list[Chart]) -> str:
    """The charts in words: the first, last, lowest and highest value of every line."""
    sentences = []
    for name, run, run_series in zip(distinct_names(runs), runs, series):
        step = run_series.steps[-1] if len(run_series) else 0
        sentences.append(f"Run {name}: {run.status}, step {step}.")
        for chart in charts:
            for line in chart.lines:
                _, values = column(line, run_series)
                if len(values):
                    sentences.append(_in_words(chart, line, values))
                sentences += [
                    f"{_name(chart, line)} is {value} at step {run_series.steps[first]}"
                    + (f" to {run_series.steps[last]}." if last > first else ".")
                    for first, last, value in gaps(line, run_series)[:3]
                ]
        if parts := timers(run_series):
            sentences.append("Seconds a step: " + ", ".join(f"{name} {s:.3g}" for name, s in parts) + ".")
    return " ".join(sentences)


def _in_words(chart: Chart, line, values) -> str:
    name = _name(chart, line)
    text = f"{name}: {values[0]:.3g} at first, {values[-1]:.3g} at last"
    low, high = values.min(), values.max()
    outside = low < min(values[0], values[-1]) or high > max(values[0], values[-1])
    return text + (f", between {low:.3g} and {high:.3g}." if outside else ".")


def _name(chart: Chart, line) -> str:
    return chart.title if len(chart.lines) == 1 else f"{chart.title} ({line.label})"


def in_words(text: str) -> dict:
    """A notebook output with the collapsed description of a picture."""
    style = "font: 12px/1.5 system-ui, sans-serif; opacity: .8"
    folded = f'<details class="lab-words" style="{style}"><summary>The picture in words</summary>{escape(text)}</details>'
    return {"text/html": folded, "text/plain": ""}


# Without a kernel, a reopened page has no model for the widget. JupyterLab then writes an error message into the output. Only
# the output with the error message has the class jupyter-widgets. These styles hide the error message and show a note instead,
# below the picture.
INSTEAD = """<style>
.jp-OutputArea-child:has(.lab-instead) + .jp-OutputArea-child:has(> .jp-OutputArea-output.jupyter-widgets) { display: none; }
.jp-OutputArea-child:has(+ .jp-OutputArea-child > .jp-OutputArea-output.jupyter-widgets) .lab-instead { display: block !important; }
</style><p class="lab-instead" hidden style="font: 12px/1.5 system-ui, sans-serif; margin: 4px 0">
This is how things were when the notebook was saved. Run the cell again to watch the run live: the run itself does not
depend on the notebook.</p>"""


def instead_of_a_widget(text: str) -> dict:
    """The output between a widget's picture and the widget: the description, and a note for pages without a live widget."""
    words = in_words(text) if text else {"text/html": "", "text/plain": ""}
    return words | {"text/html": INSTEAD + words["text/html"]}


class LivePicture:
    """The picture above a monitor. The picture is redrawn from time to time during the run, and at the end of the run."""

    def __init__(self, runs, feed: Feed, lock):
        self._runs, self._feed, self._lock = runs, feed, lock
        self._handles = None  # display handles of the picture and of its description
        self._drawn = None
        # Two threads draw. Without this lock, a thread could send an old picture after the other thread's final picture.
        self._sending = threading.RLock()

    def show(self) -> None:
        """Display the picture, or display it again. Empty if there is nothing to draw yet."""
        from IPython.display import display

        with self._sending:
            ids = [handle.display_id for handle in self._handles or ()] or [True, True]
            handles = [
                display(data, metadata=metadata, raw=True, display_id=id)
                for (data, metadata), id in zip(self._outputs(), ids)
            ]
            # outside IPython, `display` prints the description and returns no handle
            self._handles = self._handles or [handle for handle in handles if handle is not None]

    def draw(self) -> bool:
        """Redraw the picture if the data have changed. Returns whether there is anything to draw yet."""
        with self._sending:
            with self._lock:
                changed = self._seen() != self._drawn
            if changed and self._handles is not None:
                for handle, (data, metadata) in zip(self._handles, self._outputs()):
                    handle.update(data, metadata=metadata, raw=True)
        return any(map(len, self._feed.series))

    def _outputs(self):
        """(data, metadata) of the picture and of its description."""
        if not any(map(len, self._feed.series)):
            return [({"text/plain": ""}, {}), (instead_of_a_widget(""), {})]
        with self._lock:
            self._drawn = self._seen()
            picture = draw(self._runs, self._feed.series, self._feed.charts, self._feed.axis)
        return [picture._repr_mimebundle_(), (instead_of_a_widget(picture.alt), {})]

    def _seen(self) -> list:
        return [(len(series), run.status) for series, run in zip(self._feed.series, self._runs)]
