"""The classroom in the browser: thirty seats, the order of need, news, and no fault that axe finds."""

import json
import os
import time

import pytest
from lab import wait_for

SEATS = 30
INFO = {"kind": "ppo", "name": "ppo", "max_steps": 12, "host": "another machine", "created": 1.0}


def write_run(folder, status: str, step: int, **more) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = INFO | {"status": status, "heartbeat": {"time": time.time(), "step": step}} | more
    (folder / ".run.json").write_text(json.dumps(info))
    (folder / ".run.json").rename(folder / "run.json")


@pytest.fixture
def room(tmp_path):
    """Thirty seats, of which one has failed, one has an alarm, and one gave a name."""
    for number in range(SEATS):
        write_run(tmp_path / f"seat-{number:02d}" / "runs" / "ppo", "running", step=number % 12)
    write_run(tmp_path / "seat-21" / "runs" / "ppo", "failed", 3, message="out of memory")
    alarm = {"name": "kl", "title": "Far from the reference", "step": 5}
    (tmp_path / "seat-11" / "runs" / "ppo" / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    (tmp_path / "seat-11" / "participant.json").write_text('{"name": "<b>Ada</b>"}')
    return tmp_path


def test_who_may_need_help_comes_first_and_news_arrive(page, room):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.show("room.ipynb", f"from widgets import Classroom\nClassroom({str(room)!r})")
    rows = page.page.locator(".lab-classroom tbody tr")
    wait_for(lambda: rows.count() == SEATS, 60)
    page.page.get_by_text("30 seats. 2 may need a look: seat-21 (failed), <b>Ada</b> (alarm).").wait_for()
    assert (
        "out of memory" in rows.nth(0).inner_text()
        and "Far from the reference (step 5)" in rows.nth(1).inner_text()
    )
    if folder := os.environ.get("ALIGNER_SCREENSHOTS"):
        page.page.screenshot(path=f"{folder}/classroom.png")
    write_run(room / "seat-21" / "runs" / "ppo-2", "running", 1, created=2.0)
    wait_for(
        lambda: rows.nth(0).inner_text().startswith("<b>Ada</b>"),
        60,
        "the seat that began anew is still first",
    )
    page.page.get_by_label("first").select_option("seat")
    wait_for(lambda: rows.nth(0).inner_text().startswith("seat-00"), 60)
    found = axe.Axe().run(page.page, context=".lab-widget").response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
