"""The monitor with a run that trains, in a real JupyterLab: reloads, tabs, restarts and deaths of kernels, and its buttons."""

import os
import signal

import pytest
from lab import Page, wait_for


@pytest.fixture
def watched(page, trainer, request):
    """Starts a training and shows its monitor: watched(*cells after it, before=a cell before it, …) gives the run."""

    def start(*cells: str, before: str = "", points: int = 3, **options):
        run = trainer("run", **{"steps": 6000, "seconds": 0.1} | options)
        first = f"from widgets import Monitor\n{before}"
        show = f"monitor = Monitor({str(run.path)!r})\nmonitor"
        page.show(f"{request.node.name}.ipynb", first, show, *cells)
        page.wait_for_points(points)
        return run

    return start


def test_a_restart_is_said_a_reloaded_page_shows_the_picture_and_running_the_cells_again_shows_the_same_run(
    page, watched
):
    run = watched()
    pid = run.info["pid"]
    notice = page.page.locator(".lab-monitor > .lab-lost:not(.lab-unanswered)")
    assert not notice.is_visible()
    page.restart_kernel()
    notice.wait_for()
    for words in ("The kernel was restarted", "The run does not notice", "run cell [2] again"):
        assert words in notice.inner_text()
    assert page.page.locator(".lab-state").inner_text() == "was running"
    assert page.page.locator(".lab-body[inert]").count() == 1, "no button can be pressed"
    page.save()
    page.reload()
    page.page.get_by_text("This is how things were when the notebook was saved.").wait_for()
    assert page.page.locator(".jp-OutputArea-output img").is_visible()
    assert not page.page.get_by_text("model not found").is_visible()
    page.run_all()
    count = len(run.metrics())
    page.wait_for_points(count + 5)
    assert page.points()[:count] == list(range(1, count + 1))
    assert run.status == "running" and run.info["pid"] == pid and run.info["resumed"] == 0


def test_a_kernel_that_dies_is_noticed(page, watched, tmp_path):
    """JupyterLab starts another kernel then, and tells widgets nothing: they notice only that no messages come."""
    pid = tmp_path / "pid"
    watched(before=f"import os, pathlib\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    page.page.locator(".lab-monitor > .lab-lost:not(.lab-unanswered)").wait_for()
    assert page.page.locator(".lab-body[inert]").count() == 1


def test_a_blocking_cell_delays_a_button_and_not_the_chart_and_stop_during_await_ends_the_run(
    page, watched, tmp_path
):
    go_on = tmp_path / "go on"
    blocking = f"import os, time\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.05)"
    run = watched(blocking, "await monitor")
    page.page.get_by_role("button", name="Change settings").click()
    page.page.get_by_role("button", name="Checkpoint now").click()
    page.wait_for_points(len(page.points()) + 5)
    go_on.touch()
    checkpoint = wait_for(run.latest_checkpoint, "no checkpoint was saved")
    page.page.get_by_role("button", name="Stop after this step").click()
    wait_for(lambda: run.status == "stopped", "the run did not stop")
    assert run.latest_checkpoint() != checkpoint
    page.page.get_by_text("was stopped after step").wait_for()


def test_enter_in_a_knob_s_field_changes_the_run_and_opens_no_cell(page, watched):
    run = watched(kind="sft")
    page.page.get_by_role("button", name="Change settings").click()
    rate = page.page.get_by_label("learning rate", exact=True)
    wait_for(lambda: rate.get_attribute("placeholder") not in ("", "–"), "SFT's learning rate is missing")
    rate.fill("0.25")
    rate.press("Enter")
    page.page.get_by_text("Really lr = 0.25?").wait_for()  # more than ten times the present rate
    rate.fill("0.25")
    rate.press("Enter")
    wait_for(lambda: run.metrics()[-1]["train/lr"] == 0.25, "the run did not take over the rate")
    wait_for(lambda: rate.get_attribute("placeholder") == "0.25")
    assert page.page.locator(".jp-Cell.jp-mod-active .jp-mod-focused, .cm-focused").count() == 0
    run.request_stop()
    page.page.get_by_role("button", name="Change settings").wait_for(state="hidden")


def test_a_reloaded_page_and_a_second_tab_have_all_points_and_texts_and_their_buttons_work(page, watched):
    """With `./lab jupyter`'s settings; JupyterLab's own left the monitor deaf in three of four reloads."""
    run = watched("from widgets import Completions\nCompletions(monitor.runs[0])", points=20)
    step = page.page.locator(".lab-paged .lab-step output")
    first = step.inner_text()
    wait_for(lambda: step.inner_text() != first, "the completions show no new step")

    def check_checkpoint_button(tab) -> None:
        before = run.latest_checkpoint()
        tab.page.bring_to_front()
        last = tab.points()[-1]  # a saved page shows its points before it reaches the kernel
        wait_for(lambda: tab.points()[-1] > last, "the page shows no new point")
        if not tab.page.locator(".lab-knobs").is_visible():
            tab.page.get_by_role("button", name="Change settings").click()
        tab.page.get_by_role("button", name="Checkpoint now").click()
        wait_for(lambda: run.latest_checkpoint() != before, "no checkpoint was saved")

    page.save()
    for _ in range(2):
        page.reload()
        page.page.wait_for_selector(".lab-monitor")
        page.wait_for_points(len(run.metrics()))
        points = page.points()
        assert points == list(range(1, len(points) + 1))
        check_checkpoint_button(page)
    page.page.get_by_text(", the latest").wait_for()
    assert page.page.locator(".lab-paged .lab-card").count() == 4
    second = Page(page.page.context.new_page(), page.lab)
    second.open(page.notebook).page.wait_for_selector(".lab-monitor")
    second.wait_for_points(3)
    for tab in (second, page):
        check_checkpoint_button(tab)
    assert not page.page.get_by_text("The connection from this page").is_visible()
    assert page.beyond() == []
    second.page.close()
