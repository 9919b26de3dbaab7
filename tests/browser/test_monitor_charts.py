"""The monitor's charts, tables and notices in a browser, of runs that a page without JupyterLab shows (kernelless.py)."""

import re
import time

from lab import ROOT
from run_folders import write_run

from aligner_lib.run_folder.alarms import Thresholds
from widgets import Monitor, Recording
from widgets.frontend.widget import text_of

NAN = float("nan")
PENS = ROOT / "widgets" / "monitor" / "pens.js"
LAB = "document.querySelector('.lab-monitor').lab"
STORE = f"{LAB}.store"


def chart_of(page, name: str):
    return page.get_by_role("slider", name=name, exact=True)


def press(page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def drag(page, chart, start: float, end: float) -> None:
    """start, end: pixels from the chart's left edge."""
    box = chart.bounding_box()
    page.mouse.move(box["x"] + start, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + end, box["y"] + 60, steps=4)
    page.mouse.up()


def test_zoom_hover_table_axes_and_charts_by_keyboard(show, healthy):
    desk = show(Monitor(healthy))
    page = desk.page
    chart = chart_of(page, "Reward")
    chart.focus()
    press(page, "Home")
    assert chart.get_attribute("aria-valuetext").startswith("step 1: train ")
    press(page, "ArrowRight")
    assert chart.get_attribute("aria-valuetext").startswith("step 2: ")
    press(page, "End", "+")
    desk.wait(lambda: float(chart.get_attribute("aria-valuemin")) > 30, "no zoom")
    press(page, "Escape")
    desk.wait(lambda: float(chart.get_attribute("aria-valuemin")) == 1, "no way back")
    page.get_by_role("button", name="Numbers").press("Enter")
    page.get_by_text("records 71 to 120 of 120").wait_for()
    assert page.get_by_role("button", name="Numbers", expanded=True).count() == 1
    page.get_by_role("button", name="Later").press("Enter")  # there are no later records
    page.get_by_role("button", name="Earlier").press("Enter")
    page.get_by_text("records 21 to 70 of 120").wait_for()
    of_other_view = "{run: 0, start: 70, metrics: [], rows: []}"
    page.evaluate(f"document.querySelector('.lab-monitor').lab.numbers.receive({of_other_view})")
    assert page.get_by_text("records 21 to 70 of 120").is_visible()
    chart.focus()
    press(page, "Home", "+")
    page.get_by_role("button", name="Show all").wait_for()
    page.get_by_label("over").select_option("time")
    desk.wait(lambda: desk.points()[0] == 0, "the axis did not change")
    page.get_by_role("button", name="Show all").wait_for(state="hidden")
    metrics = page.get_by_label("add a chart")
    metrics.press("ArrowDown")
    metrics.select_option("train_optim/grad_norm")
    page.get_by_role("button", name="Add", exact=True).press("Enter")
    added = chart_of(page, "train_optim/grad_norm")
    added.wait_for()
    assert page.locator(".lab-remove:visible").count() == 1, "the arrow added no chart"
    page.locator(".lab-numbers th").get_by_text("train_optim/grad_norm").wait_for()
    page.get_by_role("button", name="remove train_optim/grad_norm").click()
    added.wait_for(state="detached")
    assert page.locator(".lab-remove:visible").count() == 0, "the run's own charts stay"


def test_a_click_on_a_point_shows_the_completions_of_its_step(show, healthy):
    page = show(Monitor(healthy), height=420).page
    chart, texts = chart_of(page, "Reward"), page.locator(".lab-texts")
    chart.focus()
    press(page, "Home", "ArrowRight", "ArrowRight", "Enter")
    texts.get_by_text("train · step 3", exact=True).first.wait_for()
    page.wait_for_function("() => document.activeElement.className === 'lab-texts'")
    assert 0 <= texts.bounding_box()["y"] < 420, "the completions are in view"
    chart.click(position={"x": chart.bounding_box()["width"] - 10, "y": 60})
    texts.get_by_text(re.compile("(train|validation) · step 120")).first.wait_for()
    texts.get_by_label("find text").fill("no such words")
    texts.get_by_text("nothing found").wait_for()
    chart.click(position={"x": chart.bounding_box()["width"] - 10, "y": 60})
    texts.get_by_text(re.compile("(train|validation) · step 120")).first.wait_for()
    assert texts.get_by_label("find text").input_value() == "", "the click ended the search"
    page.get_by_role("button", name="close the completions").click()
    texts.wait_for(state="hidden")


def test_a_drag_zooms_into_every_record_of_a_long_run_and_a_double_click_shows_all(show, tmp_path):
    desk = show(Monitor(write_run(tmp_path / "run", {"train/loss": [1.0, 2.0] * 2500})))
    assert desk.points()[-1] == 5000 and len(desk.points()) <= 2000
    chart = chart_of(desk.page, "Loss")
    drag(desk.page, chart, 100, 150)
    xs = desk.page.wait_for_function(f"() => {STORE}.detail?.lines.get('0/0/0').x").json_value()
    assert xs[0] > 1 and xs == list(range(int(xs[0]), int(xs[-1]) + 1))
    zoomed = f"(view) => {{ {LAB}.zoom(view); {LAB}.charts[0].draw(); return {LAB}.state.view; }}"
    for view in ([9, 9.01], [9, 9.001]):  # the second one is too narrow
        assert desk.page.evaluate(zoomed, view) == [9, 9.01]
    assert desk.page.locator(".lab-marker").count() == 0, "a point beyond the view has a marker"
    chart.dblclick(position={"x": 120, "y": 60})
    desk.page.get_by_role("button", name="Show all").wait_for(state="hidden")


def test_the_cursor_on_a_point_of_a_long_run_over_time_has_the_point_s_value_and_step(show, tmp_path):
    losses = [1.0] * 5000
    losses[2506] = 50.0
    desk = show(Monitor(write_run(tmp_path / "run", {"train/loss": losses}), ["train/loss"], axis="time"))
    spike = "lab.charts[0].snap(2506)"  # seconds after step 1
    texts = "[lab.cursorName(), lab.charts[0].values.textContent, lab.stepOf(0, lab.state.cursor)]"
    lab = "const lab = document.querySelector('.lab-monitor').lab"
    shown = desk.page.evaluate(f"() => {{ {lab}; lab.moveCursor({spike}); return {texts}; }}")
    assert shown == ["about step 2507 · 41 min 46 s", "50", 2507]


def test_a_zoomed_chart_follows_the_run_into_its_view_and_names_the_run_s_latest_value(show, tmp_path):
    folder = write_run(tmp_path / "run", {"train/loss": [1.0, 2.0, 3.0, 4.0]}, **RUNNING)
    desk = show(Monitor(folder, ["train/loss"]))
    chart, values = chart_of(desk.page, "train/loss"), desk.page.locator(".lab-chart .lab-value b")
    drag(desk.page, chart, 100, chart.bounding_box()["width"] + 80)  # beyond step 4
    desk.page.wait_for_function(f"() => {STORE}.detail")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "time": 1000000005, "train/loss": 5.0}\n')
    desk.wait(lambda: desk.page.evaluate(f"() => {STORE}.detail.lines.get('0/0/0').x.at(-1)") == 5)
    desk.page.get_by_role("button", name="Show all").click()
    chart.focus()
    press(desk.page, "Home", "+")
    desk.page.wait_for_function(f"() => {STORE}.detail.lines.get('0/0/0').x.at(-1) < 5")
    assert values.inner_text() == "1", "at the cursor"
    chart.blur()
    assert values.inner_text() == "5"
    desk.page.get_by_role("button", name="Numbers").click()
    newest = desk.page.locator(".lab-numbers tbody tr").first
    desk.wait(lambda: newest.count() and newest.inner_text() == "5\t5")
    desk.page.evaluate(f"() => {LAB}.numbers.go(50)")  # a page that the resumed run does not reach
    resumed = [f'{{"step": {step}, "time": 2e9, "train/loss": 9}}\n' for step in range(1, 6)]
    (folder / "metrics.jsonl").write_text("".join(resumed))
    desk.wait(lambda: newest.inner_text() == "5\t9", "the rows of the resumed run did not come")


def test_a_run_of_three_steps_has_whole_steps_labels_that_differ_and_branches_at_a_step_only(show, tmp_path):
    losses = {"train/loss": [-100_000.0, -100_400.0, -101_000.0]}
    run = write_run(tmp_path / "run", losses, heartbeat={"time": 0, "step": 3})
    steps = []

    def branch(*args, at, **settings):
        steps.append(at)
        raise ValueError("no branch")

    page = show(Monitor(run, ["train/loss"], branch=branch)).page
    grid = page.locator(".lab-chart .lab-grid")
    grid.locator("text[dy]").nth(2).wait_for(state="attached")
    assert grid.locator("text[dy]").all_text_contents()[:2] == ["-101k", "-100.5k"]
    assert grid.locator("text[text-anchor=middle]").all_text_contents() == ["1", "2", "3"]
    labels = (
        f"(range) => {{ {text_of('format.js')} const t = ticks(...range); return t.places.map(t.label); }}"
    )
    assert page.evaluate(labels, [0, 4e12, 2]) == ["0", "2T", "4T"]
    assert page.evaluate(labels, [123_450, 123_460, 2]) == ["123.45k", "123.455k", "123.46k"]
    page.evaluate(f"() => {{ {LAB}.state.view = [1.25, 1.75]; {LAB}.charts[0].draw(); }}")
    drawn = page.evaluate(f"{LAB}.charts[0].range")
    assert drawn == [-100_314, -100_086], "from −100,300 to −100,100, and 7 % on each side"
    page.evaluate(f"() => {{ {LAB}.state.view = [1.25, 1.31]; {LAB}.charts[0].draw(); }}")
    assert "-100.11k" in grid.locator("text[dy]").all_text_contents()
    begins = "labels => labels.map(label => label.getBBox().x)"
    assert min(grid.locator("text[dy]").evaluate_all(begins)) >= 0, "the edge cuts no label"
    form = page.locator(".lab-branch")
    for step in ("1.5", "2"):
        form.get_by_label("= ").fill("1")
        form.get_by_label("with").fill("lr")
        form.get_by_label("Go on from step").fill(step)
        form.get_by_label("Go on from step").press("Enter")
    form.get_by_text("no branch").wait_for()
    assert steps == [2], "only a step of the run"


def test_the_cursor_names_its_step_and_gives_no_value_of_another(show, tmp_path):
    losses = {"train/loss": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "validation/loss": [10.0, *[None] * 4, 60.0]}
    page = show(Monitor(write_run(tmp_path / "run", losses, seconds=60), axis="time")).page
    chart = chart_of(page, "Loss")
    chart.focus()
    press(page, "Home", "ArrowRight", "ArrowRight")
    assert chart.locator(".lab-at").text_content() == "step 3 · 2 min"
    values = page.locator(".lab-chart", has=chart).locator(".lab-value b")
    assert values.all_inner_texts() == ["3", "–"], "the validation nearest to step 3 is of another step"
    press(page, "End")
    assert values.all_inner_texts() == ["6", "60"]


def test_a_nan_is_marked_the_line_is_broken_and_the_rest_stays(show, tmp_path):
    loss = [1.0, 0.9, NAN, 0.7, 1e300, 0.5, 0.4]
    spread = [0.1, 0.1, 0.1, 0.1, 0.1, NAN, 0.1]
    # places that are no 32-bit floats
    run = write_run(tmp_path / "run", {"train/loss": loss, "train/loss_std": spread}, seconds=10.1)
    page = show(Monitor(run, ["train/loss"], axis="time")).page
    chart = page.locator(".lab-chart")
    chart.locator(".lab-gap").first.wait_for(state="attached")
    titles = chart.locator(".lab-gap title").all_text_contents()
    assert titles == ["loss: NaN at 20 s", "loss: 1e300 at 40 s"]
    strokes = re.findall("[ML]", chart.locator(".lab-line").get_attribute("d"))
    assert "".join(strokes) == "MLMML", "five points in three pieces"
    assert chart.locator(".lab-line").get_attribute("d").count("h3") == 1, "the point alone is drawn"
    assert chart.locator(".lab-band").get_attribute("d").count("Z") == 1
    assert "NaN" not in chart.locator(".lab-plot").inner_html().replace("loss: NaN", "")
    labels = [float(text) for text in chart.locator(".lab-grid text[dy]").all_text_contents()]
    assert min(labels) >= 0 and max(labels) <= 1.2, "the axis is that of the values that can be drawn"
    slider = page.get_by_role("slider", name="train/loss")
    slider.focus()
    press(page, "Home", "ArrowRight", "ArrowRight")
    assert slider.get_attribute("aria-valuetext").endswith("loss NaN")


def test_a_resume_is_a_mark_on_the_chart_and_a_last_value_of_nan_is_said(show, tmp_path):
    run = write_run(tmp_path / "run", {"train/loss": [3.0, 2.0, NAN]}, resumed_at=[2])
    page = show(Monitor(run, ["train/loss"])).page
    value = page.locator(".lab-chart .lab-value b")
    value.wait_for()
    assert value.inner_text() == "NaN"
    mark = page.locator('.lab-mark[data-kind="resume"]')
    assert mark.locator("title").text_content() == "resumed, step 2"
    assert mark.locator("path").bounding_box()["width"] > 4


def test_a_change_of_settings_is_a_mark_on_every_chart_and_rounding_is_no_mountain(show, tmp_path):
    metrics = {"train_optim/lr": [1e-5, 1e-5, 2e-6, 2e-6], "train_rollouts/kl": [1e-8, 3e-8, 0.0, 2e-8]}
    charts = show(Monitor(write_run(tmp_path / "run", metrics, kind="ppo"))).page.locator(".lab-chart")
    charts.first.locator(".lab-mark").wait_for(state="attached")
    titles = [chart.locator(".lab-mark title").all_text_contents() for chart in charts.all()]
    assert all(title == ["learning rate 1e-05 → 2e-06, step 3"] for title in titles)
    line = charts.filter(has_text="KL to the reference").locator(".lab-raw").get_attribute("d")
    heights = [float(y) for y in re.findall(r"[ML]\S+ (\S+?)(?=L|$)", line)]
    assert len(heights) == 4 and max(heights) - min(heights) < 1, "of 128 pixels"


# ---- several runs ---------------------------------------------------------------------------------------------------


def test_several_runs_share_charts_and_alarms_name_theirs(show, healthy, gaming):
    desk = show(Monitor([gaming, healthy]))
    assert (desk.points("0/0/0")[-1], desk.points("1/0/0")[-1]) == (60, 120)
    chart_of(desk.page, "Reward").press("End")
    assert chart_of(desk.page, "Reward").get_attribute("aria-valuetext").startswith("step 120: healthy ")
    desk.page.locator(".lab-alarm").nth(1).wait_for()  # the alarms come after the charts
    alarms = desk.page.locator(".lab-alarm").all_inner_texts()
    assert len(alarms) >= 2 and all("gaming, since step" in text for text in alarms)
    pen_of = f"(run) => {{ {PENS.read_text()} return Object.values(penOf(run, 0, true)); }}"
    pens = [desk.page.evaluate(pen_of, run) for run in range(18)]
    assert len({tuple(pen) for pen in pens}) == 18, "two runs are drawn alike"


def test_two_runs_have_a_legend_and_a_table_of_differences(show, tmp_path):
    runs = [
        write_run(
            tmp_path / name,
            {"train/loss": [loss] * 3, "train/lr": [lr] * 3},
            config={"model": {"optim": {"lr": lr, "name": "adam"}}},
            parent={"run": str(tmp_path / "first"), "step": 2},
            created=1e9,
        )
        for name, loss, lr in (("first", 2.0, 0.5), ("second", 1.5, 0.25))
    ]
    monitor = Monitor(runs)
    desk = show(monitor)
    page, chart = desk.page, desk.page.locator(".lab-chart").first
    values, settings = page.locator(".lab-compared").all()
    assert values.locator("tbody tr").first.inner_text().split() == ["Loss,", "train", "nats", "2", "1.5−0.5"]
    assert settings.locator("tbody tr").all_inner_texts() == ["model.optim.lr\t0.5\t0.25"]
    page.locator(".lab-comparison summary").first.click()
    with open(runs[0] / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "time": 1000000004, "train/loss": 2.0}\n')
    desk.wait(lambda: "first, step 4" in page.locator(".lab-compared").first.text_content())
    assert page.locator(".lab-comparison details[open]").count() == 1, "a folded table stays folded"
    for shown in (["first", "second"], ["second"], ["first", "second"]):
        desk.wait(
            lambda shown=shown: chart.locator(".lab-run-of").all_inner_texts() == shown, f"not shown: {shown}"
        )
        page.get_by_role("button", name="first", exact=True).click()
    page.get_by_role("button", name="first", exact=True).click()
    page.get_by_label("over").select_option("time")
    page.wait_for_function(f"() => {LAB}.drawnAxis === 'time'")
    chart_of(page, "Loss").press("Home")
    assert chart.locator(".lab-value b").all_inner_texts() == ["2", "–"], "the branch has no first step"
    page.get_by_role("button", name="Numbers").click()
    table = page.get_by_label("run", exact=True)
    table.select_option("second")
    monitor._feed.follow(monitor.runs[0])
    monitor.refresh()
    desk.wait(lambda: table.locator("option").count() == 3)
    assert table.input_value() == "1", "the choice stays when a branch comes"


# ---- running, and not ----------------------------------------------------------------------------------------------


RUNNING = {"status": "running", "host": "elsewhere", "heartbeat": {"time": time.time() + 1e6, "step": 2}}


def test_a_run_that_gives_no_sign_of_life_is_marked(show, tmp_path):
    long_ago = {"time": time.time() - 45, "step": 2}
    run = write_run(tmp_path / "run", {"train/loss": [2.0, 1.0]}, **RUNNING | {"heartbeat": long_ago})
    monitor = Monitor(run, limits=Thresholds(heartbeat_seconds=30))
    show(monitor).page.wait_for_selector(".lab-facts[data-stale]")


def test_a_failed_run_says_why(show, tmp_path):
    message = "the loss is NaN at step 7: lower the learning rate"
    run = write_run(tmp_path / "run", {"train/loss": [2.0, 1.0]}, status="failed", message=message)
    page = show(Monitor(run)).page
    page.locator(".lab-message").get_by_text(message).wait_for()
    assert page.locator(".lab-state").inner_text() == "failed"


def test_a_page_whose_messages_do_not_arrive_says_so(show, tmp_path):
    """The page's messages are dropped here as a deaf part of the kernel drops them: sent, and never answered."""
    page = show(Monitor(write_run(tmp_path / "run", {"train/loss": [2.0, 1.0]}, **RUNNING))).page
    page.evaluate("() => { document.querySelector('.lab-monitor').lab.model.send = () => {}; }")
    stop = page.get_by_role("button", name="Stop after this step")
    stop.click()
    notice = page.get_by_text("The connection from this page to the kernel is lost")
    notice.wait_for()
    assert "Kernel Comms over subshells: Disabled" in notice.inner_text()
    page.wait_for_function("(button) => !button.disabled", arg=stop.element_handle())
    assert page.locator(".lab-body[inert]").count() == 0


def test_a_choice_of_axis_and_an_unreadable_number_stay_while_the_kernel_is_busy(show, tmp_path):
    metrics = {"train/loss": [2.0, 1.0], "train/lr": [0.5, 0.5]}
    page = show(Monitor(write_run(tmp_path / "run", metrics, controls=["lr"], **RUNNING))).page
    page.get_by_role("button", name="Change settings").click()
    rate = page.get_by_label("learning rate", exact=True)
    rate.press_sequentially("2e-")
    rate.press("Enter")
    assert rate.evaluate("(input) => input.validity.badInput"), "the text is no number, and is still there"
    page.evaluate("() => { window.kernel = () => new Promise(() => {}); }")
    page.get_by_label("over").select_option("time")
    page.evaluate("document.querySelector('.lab-monitor').lab.drawTools()")
    assert page.get_by_label("over").input_value() == "time"


def test_a_chart_s_long_name_is_broken_within_its_chart(show, tmp_path):
    name = "train/" + "long" * 30
    page = show(Monitor(write_run(tmp_path / "run", {name: [1.0]}), [name, "train/loss"])).page
    title = page.locator(".lab-chart .lab-title").first
    title.wait_for()
    assert title.evaluate("(title) => title.scrollWidth <= title.closest('figure').clientWidth")


def test_stop_that_cannot_be_written_says_so(show, tmp_path):
    run = write_run(tmp_path / "run", {"train/loss": [2.0, 1.0]}, **RUNNING)
    (run / "control").touch()  # a file in the folder's place
    page = show(Monitor(run)).page
    stop = page.get_by_role("button", name="Stop after this step")
    stop.click()
    page.get_by_text("The request was not written").wait_for()
    assert stop.is_enabled()


def test_a_recording_plays(show, tmp_path):
    run = write_run(tmp_path / "run", {"train/loss": [2.0, 1.0] * 20}, seconds=0.1)
    desk = show(Monitor(Recording(run, speed=0.2)))
    state = desk.page.locator(".lab-state")
    desk.wait(lambda: len(desk.points()) >= 2)
    assert len(desk.points()) < 40 and state.inner_text() == "running"
    desk.page.get_by_role("button", name="Stop after this step").click()
    desk.page.get_by_text("the recording was stopped at step").wait_for()
    assert state.inner_text() == "stopped"
    desk.page.get_by_role("button", name="Play again").click()
    desk.wait(lambda: state.inner_text() == "running", "the recording did not begin again")
    desk.page.get_by_label("recorded, at").select_option("100")
    desk.wait(lambda: desk.points() == list(range(1, 41)))
