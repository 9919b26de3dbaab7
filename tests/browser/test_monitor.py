"""The monitor's gates, in a real JupyterLab in a real Chromium."""

import json
import os
import re
import signal
from itertools import pairwise

import pytest
from lab import Page, wait_for

START = "from widgets import Monitor"


def test_live(page, trainer):
    """Records reach the chart while the training process runs (how soon: ./lab bench --only monitor)."""
    run = trainer("run", steps=400, seconds=0.25)
    page.show("live.ipynb", f"{START}\nmonitor = Monitor({str(run.path)!r})\nmonitor")
    page.wait_for_points(1)
    page.wait_for_points(int(max(page.points())) + 22)
    assert run.status == "running"


def test_reload_keeps_all_points(page, trainer):
    run = trainer("run", steps=400, seconds=0.1)
    page.show("reload.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    page.wait_for_points(20)
    page.save()
    page.reload()
    page.page.wait_for_selector(".lab-monitor")
    before = len(run.metrics())
    page.wait_for_points(before)
    points = page.points()
    assert points == list(range(1, len(points) + 1))
    page.wait_for_points(before + 5)  # and it is still live


def test_restart_does_not_touch_the_job(page, trainer):
    run = trainer("run", steps=600, seconds=0.1)
    page.show("restart.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    page.wait_for_points(5)
    pid = run.info["pid"]
    page.restart_kernel()
    page.run_all()
    count = len(run.metrics())
    page.wait_for_points(count + 5)
    assert page.points()[:count] == list(range(1, count + 1))
    assert run.status == "running" and run.info["pid"] == pid and run.info["resumed"] == 0


def test_a_monitor_without_its_kernel_says_so_and_a_reloaded_page_shows_the_picture(page, trainer):
    run = trainer("run", steps=3000, seconds=0.1)
    page.show("lost.ipynb", START, f"Monitor({str(run.path)!r})")
    page.wait_for_points(5)
    notice = page.page.locator(".lab-monitor > .lab-lost:not(.lab-unanswered)")
    assert not notice.is_visible()
    page.restart_kernel()
    notice.wait_for()
    assert (
        "The kernel was restarted" in notice.inner_text() and "The run does not notice" in notice.inner_text()
    )
    assert "run cell [2] again" in notice.inner_text()
    assert page.page.locator(".lab-state").inner_text() == "was running"
    assert page.page.locator(".lab-body[inert]").count() == 1, "no button can be pressed"
    page.save()
    page.reload()
    page.page.get_by_text("This is how things were when the notebook was saved.").wait_for()
    assert page.page.locator(".jp-OutputArea-output img").is_visible()
    assert not page.page.get_by_text("model not found").is_visible()
    assert run.status == "running"


def test_a_kernel_that_dies_is_noticed(page, trainer, tmp_path):
    """JupyterLab starts another kernel then, and tells widgets nothing: that no more is heard is all that can be seen."""
    run = trainer("run", steps=3000, seconds=0.1)
    pid = tmp_path / "pid"
    note_pid = f"import os, pathlib\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))"
    page.show("dies.ipynb", f"{START}\n{note_pid}\nMonitor({str(run.path)!r})")
    page.wait_for_points(
        3
    )  # a kernel that dies before its widget is on the page leaves no widget to notice it
    os.kill(int(pid.read_text()), signal.SIGKILL)
    page.page.locator(".lab-monitor > .lab-lost:not(.lab-unanswered)").wait_for()
    assert page.page.locator(".lab-body[inert]").count() == 1


def test_stop_during_await_ends_the_run_with_a_checkpoint(page, trainer):
    run = trainer("run", steps=2000, seconds=0.1)
    page.show("stop.ipynb", f"{START}\nmonitor = Monitor({str(run.path)!r})\nmonitor", "await monitor")
    page.wait_for_points(3)
    page.page.get_by_role("button", name="Stop after this step").click()
    wait_for(lambda: run.status == "stopped", 60, "the run did not stop")
    assert run.latest_checkpoint() is not None
    page.page.get_by_text("was stopped after step").wait_for()


def test_stop_during_a_blocking_cell_works_on_the_next_chance(page, trainer):
    run = trainer("run", steps=2000, seconds=0.1)
    go_on = run.path / "go on"
    block = f"import os, time\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.05)"
    page.show("block.ipynb", f"{START}\nmonitor = Monitor({str(run.path)!r})\nmonitor", block)
    page.wait_for_points(3)
    page.page.get_by_role("button", name="Stop after this step").click()
    page.wait_for_points(len(page.points()) + 5)  # it is drawn live even while the cell blocks
    go_on.touch()
    wait_for(lambda: run.status == "stopped", 60, "the run did not stop")


def test_failure_is_told(page, trainer):
    run = trainer("run", kind="sft", steps=20, seconds=0.05, fail_at=7)
    page.show("failed.ipynb", f"{START}\nmonitor = Monitor({str(run.path)!r})\nmonitor", "await monitor")
    page.page.get_by_text("RunFailed").first.wait_for()
    assert "lower the learning rate" in page.page.locator(".lab-message").inner_text()
    assert page.page.locator(".lab-state").inner_text() == "failed"


def test_offline(page, trainer):
    """Zero requests beyond the local server."""
    run = trainer("run", steps=30)
    page.show("offline.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    page.wait_for_points(30)
    assert page.beyond() == []


def test_zoom_hover_table_and_axes_by_keyboard(page, trainer):
    run = trainer("run", steps=200)
    page.show("keys.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    page.wait_for_points(200)
    chart = page.page.get_by_role("slider", name="Reward", exact=True)
    chart.focus()
    page.page.keyboard.press("Home")
    assert chart.get_attribute("aria-valuetext").startswith("step 1: train ")
    page.page.keyboard.press("ArrowRight")
    assert chart.get_attribute("aria-valuetext").startswith("step 2: ")
    page.page.keyboard.press("End")
    page.page.keyboard.press("+")
    wait_for(lambda: float(chart.get_attribute("aria-valuemin")) > 50, 60, "no zoom")
    page.page.keyboard.press("Escape")
    wait_for(lambda: float(chart.get_attribute("aria-valuemin")) == 1, 60, "no way back")
    page.page.get_by_role("button", name="Numbers").press("Enter")
    page.page.get_by_text("records 151 to 200 of 200").wait_for()
    page.page.get_by_role("button", name="Earlier").press("Enter")
    page.page.get_by_text("records 101 to 150 of 200").wait_for()
    page.page.get_by_label("over").select_option("time")
    wait_for(lambda: page.points()[0] == 0, 60, "the axis did not change")
    page.page.get_by_label("add a chart").select_option("train_optim/grad_norm")
    page.page.get_by_role("slider", name="train_optim/grad_norm").wait_for()


def write_run(folder, records: list[dict], **info) -> str:
    """A finished run folder of these metrics records; returns its path."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"status": "finished", "kind": "sft", **info}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


SECONDS = {"d": 86400, "h": 3600, "min": 60, "s": 1}


def test_labels_of_the_axis_stand_where_their_steps_are(page, tmp_path):
    records = [
        {"step": step, "time": 100.0 + step, "train/loss": 1.0 / step} for step in range(1, 42)
    ]  # 41: an edge that is near to the label 40, and leaves it room
    page.show("axis.ipynb", f"{START}\nMonitor({write_run(tmp_path / 'run', records)!r})")
    page.wait_for_points(41)
    labels = page.page.get_by_role("slider", name="Loss", exact=True).locator(".lab-grid text:not([dy])")
    wait_for(lambda: "40" in labels.all_text_contents(), 60)
    centres = {
        int(label.text_content()): box["x"] + box["width"] / 2
        for label in labels.all()
        if (box := label.bounding_box())
    }
    steps = sorted(centres)
    widths = [(centres[b] - centres[a]) / (b - a) for a, b in pairwise(steps)]
    assert max(widths) < 1.05 * min(widths)


def test_equal_steps_of_the_time_axis_have_equal_labels(page, tmp_path):
    records = [{"step": i, "time": 1e9 + 47.0 * i, "train/loss": 1.0 / i} for i in range(1, 9)]
    page.show("clock.ipynb", f"{START}\nMonitor({write_run(tmp_path / 'run', records)!r}, axis='time')")
    page.wait_for_points(8)
    chart = page.page.get_by_role("slider", name="Loss", exact=True)
    labels = chart.locator(".lab-grid text[text-anchor=middle]")
    wait_for(lambda: labels.count() > 2, 60)
    places = [float(label.get_attribute("x")) for label in labels.all()]
    seconds = [
        sum(int(n) * SECONDS[unit] for n, unit in re.findall(r"(\d+) (\w+)", label))
        for label in labels.all_text_contents()
    ]
    assert seconds[0] == 0 and seconds == [i * seconds[1] for i in range(len(seconds))]
    assert places == pytest.approx(
        [places[0] + i * (places[1] - places[0]) for i in range(len(places))], abs=0.2
    )


def test_the_cursor_names_its_step_and_gives_no_value_of_another(page, tmp_path):
    records = [{"step": i, "time": 1e9 + 60.0 * i, "train/loss": float(i)} for i in range(1, 7)]
    records[5]["validation/loss"] = 60.0
    records[0]["validation/loss"] = 10.0
    page.show("cursor.ipynb", f"{START}\nMonitor({write_run(tmp_path / 'run', records)!r}, axis='time')")
    page.wait_for_points(6)
    chart = page.page.get_by_role("slider", name="Loss", exact=True)
    chart.focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.page.keyboard.press(key)
    assert chart.locator(".lab-at").text_content() == "step 3 · 2 min"
    values = page.page.locator(".lab-chart", has=chart).locator(".lab-value b")
    assert values.all_inner_texts() == ["3", "–"], "the validation nearest to step 3 is of another step"
    page.page.keyboard.press("End")
    assert values.all_inner_texts() == ["6", "60"]
    last = chart.locator(".lab-marker").last.bounding_box()
    clip = page.page.evaluate(
        "() => { const c = document.querySelector('.lab-plot clipPath rect'), s = c.closest('svg').getBoundingClientRect();"
        " return s.x + Number(c.getAttribute('x')) + Number(c.getAttribute('width')); }"
    )
    assert last["x"] + last["width"] <= clip + 0.5, "the last marker is whole"


def test_an_added_chart_can_be_removed(page, trainer):
    run = trainer("run", steps=30)
    page.show("remove.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    page.wait_for_points(30)
    page.page.get_by_label("add a chart").select_option("train_optim/grad_norm")
    added = page.page.get_by_role("slider", name="train_optim/grad_norm")
    added.wait_for()
    page.page.get_by_role("button", name="remove train_optim/grad_norm").click()
    added.wait_for(state="detached")
    assert page.page.locator(".lab-remove:visible").count() == 0, "the run's own charts stay"


def test_enter_in_a_knob_s_field_changes_the_run(page, trainer):
    run = trainer("run", kind="sft", steps=3000, seconds=0.1)
    page.show("knob.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    page.wait_for_points(3)
    page.page.get_by_role("button", name="Change settings").click()
    rate = page.page.get_by_label("learning rate", exact=True)
    wait_for(
        lambda: rate.get_attribute("placeholder") not in ("", "–"), 60, "SFT's own learning rate is not shown"
    )
    rate.fill("0.25")
    rate.press("Enter")
    page.page.get_by_text("Really lr = 0.25?").wait_for()  # more than ten times the present rate
    rate.fill("0.25")
    rate.press("Enter")
    wait_for(lambda: run.metrics()[-1]["train/lr"] == 0.25, 60, "the run did not take it over")
    wait_for(lambda: rate.get_attribute("placeholder") == "0.25", 60)
    assert page.page.locator(".jp-Cell.jp-mod-active .jp-mod-focused, .cm-focused").count() == 0, (
        "no cell was opened"
    )
    run.request_stop()
    page.page.get_by_role("button", name="Change settings").wait_for(state="hidden")


def test_a_click_on_a_point_shows_the_completions_of_its_step(page, trainer):
    run = trainer("run", steps=40, validate=10)
    page.show("click.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    page.wait_for_points(40)
    chart = page.page.get_by_role("slider", name="Reward", exact=True)
    chart.focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "Enter"):
        page.page.keyboard.press(key)
    texts = page.page.locator(".lab-texts")
    texts.get_by_text("train · step 3", exact=True).first.wait_for()
    box = chart.bounding_box()
    chart.click(position={"x": box["width"] - 10, "y": 60})
    texts.get_by_text(re.compile("(train|validation) · step 40")).first.wait_for()
    page.page.get_by_role("button", name="close the completions").click()
    texts.wait_for(state="hidden")


def test_drag_zooms_into_detail(page, trainer, tmp_path):
    run = trainer("run", steps=5000, kind="sft")
    wait_for(lambda: run.is_over, 60)
    page.show("drag.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    wait_for(lambda: page.points() and page.points()[-1] == 5000, 60)
    assert len(page.points()) <= 2000
    box = page.page.get_by_role("slider", name="Loss").bounding_box()
    page.page.mouse.move(box["x"] + 100, box["y"] + 60)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 150, box["y"] + 60, steps=4)
    page.page.mouse.up()
    detail = "() => document.querySelector('.lab-monitor').lab.store.detail?.lines.get('0/0/0').x"
    xs = wait_for(lambda: page.page.evaluate(detail), 60, "no detail came")
    assert xs == list(range(int(xs[0]), int(xs[-1]) + 1)), "every record of the view"
    page.page.get_by_role("button", name="Show all").click()


def test_several_runs_share_charts_and_alarms_name_theirs(page, trainer):
    good, bad = trainer("good", steps=60), trainer("bad", steps=60, kl_coef=0.0)
    page.show("two.ipynb", f"{START}\nMonitor([{str(good.path)!r}, {str(bad.path)!r}])")
    page.wait_for_points(60, "0/0/0")
    page.wait_for_points(60, "1/0/0")
    alarms = page.page.locator(".lab-alarm")
    assert alarms.count() >= 2
    assert all("bad, since step" in text for text in alarms.all_inner_texts())


def test_two_runs_have_a_legend_and_a_table_of_differences(page, tmp_path):
    def made(name: str, loss: float, lr: float) -> str:
        records = [{"step": i, "time": 1e9 + i, "train/loss": loss, "train/lr": lr} for i in (1, 2, 3)]
        return write_run(tmp_path / name, records, config={"model": {"optim": {"lr": lr, "name": "adam"}}})

    runs = [made("first", 2.0, 0.5), made("second", 1.5, 0.25)]
    page.show("legend.ipynb", f"{START}\nMonitor({runs!r})")
    page.wait_for_points(3, "1/0/0")
    values, settings = page.page.locator(".lab-compared").all()
    assert values.locator("tbody tr").first.inner_text().split() == ["Loss,", "train", "nats", "2", "1.5−0.5"]
    assert settings.locator("tbody tr").all_inner_texts() == ["model.optim.lr\t0.5\t0.25"]
    chart = page.page.locator(".lab-chart").first
    assert chart.locator(".lab-run-of").all_inner_texts() == ["first", "second"]
    page.page.get_by_role("button", name="first", exact=True).click()
    wait_for(
        lambda: chart.locator(".lab-run-of").all_inner_texts() == ["second"], 60, "the run was not hidden"
    )
    page.page.get_by_role("button", name="first", exact=True).click()
    wait_for(
        lambda: len(chart.locator(".lab-run-of").all_inner_texts()) == 2, 60, "the run did not come back"
    )


def test_a_run_that_gives_no_sign_of_life_is_marked(page, trainer):
    run = trainer("run", steps=400, seconds=0.5)
    limits = (
        "from aligner_lib.run_folder.alarms import Thresholds\nlimits = Thresholds(heartbeat_seconds=0.0)"
    )
    page.show("stale.ipynb", f"{START}\n{limits}\nMonitor({str(run.path)!r}, limits=limits)")
    page.page.wait_for_selector(".lab-facts[data-stale]")


def test_a_recording_plays(page, trainer):
    run = trainer("run", steps=40, seconds=0.1)
    wait_for(lambda: run.is_over, 60)
    page.show(
        "play.ipynb",
        f"from widgets import Monitor, Recording\nMonitor(Recording({str(run.path)!r}, speed=0.2))",
    )
    page.wait_for_points(2)
    state = page.page.locator(".lab-state")
    assert len(page.points()) < 40 and state.inner_text() == "running"
    page.page.get_by_role("button", name="Stop after this step").click()
    page.page.get_by_text("the recording was stopped at step").wait_for()
    assert state.inner_text() == "stopped"
    page.page.get_by_role("button", name="Play again").click()
    wait_for(lambda: state.inner_text() == "running", 60, "it did not begin again")
    page.page.get_by_label("recorded, at").select_option("100")
    page.wait_for_points(40)
    assert page.points() == list(range(1, 41))


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_accessible(page, trainer, theme):
    """axe-core finds no serious fault in the monitor."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    run = trainer("run", steps=60, kl_coef=0.0)
    page.show("axe.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    page.wait_for_points(60)
    page.theme(theme)
    page.page.get_by_role("button", name="Numbers").click()
    page.page.get_by_text("records 11 to 60 of 60").wait_for()
    found = axe.Axe().run(page.page, context=".lab-monitor").response["violations"]
    assert [
        (v["id"], [n["html"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")
    ] == []


def checkpoint_now(page) -> None:
    knobs = page.page.locator(".lab-knobs")
    if not knobs.is_visible():
        page.page.get_by_role("button", name="Change settings").click()
    page.page.get_by_role("button", name="Checkpoint now").click()


def test_buttons_work_after_a_reload_and_from_each_of_two_tabs(page, trainer):
    """With `./lab jupyter`'s settings; JupyterLab's own left the monitor deaf in three of four reloads."""
    run = trainer("run", steps=6000, seconds=0.1)
    page.show("deaf.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    page.wait_for_points(3)
    page.save()
    for _ in range(3):
        before = run.latest_checkpoint()
        page.reload()
        page.page.wait_for_selector(".lab-monitor")
        page.wait_for_points(3)
        checkpoint_now(page)
        wait_for(lambda before=before: run.latest_checkpoint() != before, 60, "no checkpoint after a reload")
    second = Page(page.page.context.new_page(), page.lab)
    second.open("deaf.ipynb").page.wait_for_selector(".lab-monitor")
    second.wait_for_points(3)
    for tab in (second, page):
        before = run.latest_checkpoint()
        tab.page.bring_to_front()
        checkpoint_now(tab)
        wait_for(lambda before=before: run.latest_checkpoint() != before, 60, "no checkpoint from a tab")
    assert not page.page.get_by_text("The connection from this page").is_visible()
    second.page.close()


def test_a_page_whose_messages_do_not_arrive_says_so(page, trainer):
    """The page's messages are dropped here as a deaf part of the kernel drops them: sent, and never answered."""
    run = trainer("run", steps=6000, seconds=0.1)
    page.show("mute.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    page.wait_for_points(3)
    page.page.evaluate("() => { document.querySelector('.lab-monitor').lab.model.send = () => {}; }")
    page.page.get_by_role("button", name="Stop after this step").click()
    notice = page.page.get_by_text("The connection from this page to the kernel is lost")
    notice.wait_for()
    assert "Kernel Comms over subshells: Disabled" in notice.inner_text()
    stop = page.page.get_by_role("button", name="Stop after this step")
    wait_for(stop.is_enabled, 60, "Stop promises what does not come")
    assert run.status == "running" and page.page.locator(".lab-body[inert]").count() == 0


def test_stop_that_cannot_be_written_says_so(page, trainer):
    run = trainer("run", steps=6000, seconds=0.1)
    refuse = (
        "from aligner_lib.run_folder.reader import RunFolder\n"
        "def full(run): raise OSError(28, 'No space left on device')\nRunFolder.request_stop = full\n"
    )
    page.show("refused.ipynb", f"{refuse}{START}\nMonitor({str(run.path)!r})")
    page.wait_for_points(3)
    page.page.get_by_role("button", name="Stop after this step").click()
    page.page.get_by_text("The request was not written").wait_for()
    assert page.page.get_by_role("button", name="Stop after this step").is_enabled()
    if folder := os.environ.get("ALIGNER_SCREENSHOTS"):
        page.page.screenshot(path=f"{folder}/refused.png")
