"""The site in a browser: from a disk, without a network, with living monitors and quizzes."""

import re

import small_site

from aligner_lib.tutorial.hunt import bug_hunt
from aligner_lib.tutorial.hunt.faults import FAULTS


def answer(page, title: str, choice: str, mark) -> None:
    """Answer the frame's question with the first choice that contains the text, and wait for the mark."""
    frame = page.frame_locator(f'iframe[title="{title}"]')
    page.locator(f'iframe[title="{title}"]').scroll_into_view_if_needed()
    frame.locator(".lab-quiz-choice", has_text=choice).first.click()
    frame.get_by_role("button", name="Answer", exact=True).click()
    frame.locator(".lab-quiz-mark", has_text=mark).first.wait_for()


def test_the_site_works_from_a_disk(browser, tmp_path):
    site = small_site.build(tmp_path)
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.context.set_offline(True)
    failed, errors = [], []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((site / "notebooks" / "solved" / "05_ppo.html").as_uri())
    monitor = page.frame_locator('iframe[title="monitor of ppo-drawn"]')
    page.locator("iframe").first.scroll_into_view_if_needed()
    monitor.locator(".lab-chart").first.wait_for()
    page.wait_for_function("document.querySelector('iframe').getBoundingClientRect().height > 1000")
    height = "document.querySelector('iframe').getBoundingClientRect().height"
    before = page.evaluate(height)
    monitor.get_by_role("button", name="close the completions").click()
    page.wait_for_function(f"(before) => {height} < before", arg=before)
    answer(page, "quiz 05", "", re.compile("right|no"))
    page.goto((site / "notebooks" / "solved" / "10_bug_hunt.html").as_uri())
    hunt = page.frame_locator("iframe >> nth=0")
    page.locator("iframe").first.scroll_into_view_if_needed()
    hunt.locator(".lab-chart").nth(len(bug_hunt.CHARTS) - 1).wait_for()  # the charts of notebook 10
    hunt.locator(":visible", has_text="hunt-healthy-2").last.wait_for()
    fault = FAULTS[bug_hunt.HUNTED["hunt-01"].fault].title
    other_fault = next(other.title for other in FAULTS.values() if other.title != fault)
    answer(page, "quiz hunt-01", other_fault, "✗ no")
    answer(page, "quiz hunt-01", fault, "✓ right")
    assert not failed and not errors
    # From a disk a browser does not let the search read the pages, so results have no excerpts.
    page.goto((site / "search.html").as_uri() + "?q=advantage")
    page.locator("ul.search li a").first.wait_for()
    page.close()
