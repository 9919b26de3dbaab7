"""What depends on JupyterLab itself: its keyboard, its style sheets and themes, MathJax, and its plotly."""

import pytest
from lab import wait_for
from run_folders import write_run

JOB = """
class Job:
    state, reason, nodes = "RUNNING", "", ("node7",)
    def tail(self, n=20): return "step 1\\n<b>step 2</b>"
"""
EVERY_WIDGET = """
import widgets
display(widgets.Monitor([{good!r}, {bad!r}]), widgets.Completions({good!r}))
display(widgets.JobPanel({good!r}, Job()), widgets.Chat({{"a": str.upper}}))
pair = {{"prompt": "p", "chosen": "c", "rejected": "r"}}
display(widgets.Pairs([pair] * 12, scores=[(1, 0)] * 12), widgets.Quiz("03"))
"""
REACH = """() => {
    const all = "button, input, select, textarea, summary, a[href], [tabindex='0']";
    return [...document.querySelectorAll(".lab-widget")].flatMap((widget) => [...widget.querySelectorAll(all)])
        .filter((e) => !e.disabled && e.checkVisibility() && !(e.type === "radio" && !e.checked));
}"""


def test_every_widget_is_accessible_reached_by_tab_and_uncut_at_800_pixels(page, healthy, gaming):
    """axe-core finds no serious fault in a light or a dark page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.page.set_viewport_size({"width": 800, "height": 900})
    page.show("every.ipynb", JOB, EVERY_WIDGET.format(good=str(healthy), bad=str(gaming)))
    page.page.locator(".lab-quiz").wait_for()
    page.page.locator(".lab-paged .lab-card").first.wait_for()
    for name, count in {"lab-monitor": 1, "lab-paged": 2, "lab-panel": 1, "lab-chat": 1}.items():
        assert page.page.locator(f".{name}").count() == count, name
    wide = "() => [...document.querySelectorAll('.lab-widget')].filter((w) => w.scrollWidth > w.clientWidth).map((w) => w.className)"
    assert page.page.evaluate(wide) == []
    page.page.get_by_label("prompts").select_option("train")
    page.page.get_by_label("tokens by").select_option("KL")
    page.page.locator(".lab-text span[title^='KL']").first.wait_for()
    page.page.get_by_role("button", name="Numbers").click()
    page.page.get_by_text("records 71 to 120 of 120").wait_for()
    faults = {}
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        page.theme(theme)
        violations = axe.Axe().run(page.page, context=".lab-widget").response["violations"]
        serious = [fault for fault in violations if fault["impact"] in ("serious", "critical")]
        faults[theme] = [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in serious]
    assert faults == {theme: [] for theme in faults}
    controls = page.page.evaluate(f"() => (window.controls = ({REACH})()).length")
    assert controls > 20
    page.page.evaluate("() => window.controls[0].focus()")
    reached = {0}
    for _ in range(2 * controls):
        page.page.keyboard.press("Tab")
        reached.add(page.page.evaluate("() => window.controls.indexOf(document.activeElement)"))
    names = page.page.evaluate("() => window.controls.map((e) => e.ariaLabel || e.textContent || e.id)")
    assert [name for i, name in enumerate(names) if i not in reached] == []


TABLES = """
from IPython.display import HTML, display
from widgets import compare_runs, explore, show_completions
display(HTML("<p id='formula'>$x^2$</p>"), show_completions({run!r}), compare_runs([{run!r}, {run!r}]))
explore({healthy!r})
"""


def test_tables_are_readable_in_jupyterlab_dollars_are_no_formula_and_a_plot_keeps_its_height(
    page, healthy, tmp_path
):
    text = "It costs $5 at first, and $10 later. " * 4
    record = {"step": 1, "prompt": "Why $5 and not $10?", "response": text, "reward": 0.5, "length": 3}
    run = write_run(tmp_path / "$5 or $10", {"train/loss": [2.0]}, [record])
    page.lab.write("tables.ipynb", TABLES.format(run=str(run), healthy=str(healthy)))
    page.open("tables.ipynb").run_all()
    notebook, page = page, page.page
    page.locator("#formula mjx-container").wait_for(state="attached")  # MathJax has been here
    table, compared = page.locator("table.lab-table").all()
    assert page.locator("table.lab-table mjx-container").count() == 0
    cells = table.locator("tbody td")
    assert cells.nth(0).inner_text() == "Why $5 and not $10?" and cells.nth(1).inner_text() == text
    style = "(e) => { const s = getComputedStyle(e); return [s.textAlign, s.verticalAlign]; }"
    assert [cells.nth(i).evaluate(style) for i in (0, 1)] == [["start", "top"]] * 2
    assert cells.nth(2).evaluate(style) == ["right", "top"]
    widths = [cell.bounding_box()["width"] for cell in cells.all()]
    assert widths[1] > 2 * widths[2], "a text has more room than a number"
    assert "$5 or $10 2 − $5 or $10 1" in compared.inner_text()

    drag = page.locator(".jp-RenderedPlotly .nsewdrag").first
    drag.wait_for()
    x = "() => document.querySelector('.jp-RenderedPlotly').calcdata[0].map(point => point.x)"
    assert page.evaluate(x) == list(range(1, 121))
    drag.hover(position={"x": 120, "y": 60})
    page.locator(".hoverlayer .legend, .hoverlayer .hovertext").first.wait_for()
    assert notebook.beyond() == []
    plot = page.locator(".jp-RenderedPlotly .svg-container")
    width, height = (plot.bounding_box()[side] for side in ("width", "height"))
    assert height > 300
    page.set_viewport_size({"width": 900, "height": 700})
    wait_for(lambda: plot.bounding_box()["width"] < width, "the plot did not follow the window")
    assert plot.bounding_box()["height"] == height
