"""The monitor's gates, in a real JupyterLab in a real Chromium."""

import pytest
from lab import wait_for

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
    assert page.points() == list(range(1, len(page.points()) + 1))
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


def test_drag_zooms_into_detail(page, trainer, tmp_path):
    run = trainer("run", steps=5000, kind="sft")
    page.show("drag.ipynb", f"{START}\nMonitor({str(run.path)!r})")
    wait_for(lambda: run.is_over, 60)
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
