"""The site in a browser: from a disk, without a network, with living monitors and quizzes."""

import re

import small_site


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
    quiz = page.frame_locator('iframe[title="quiz 05"]')
    page.locator("iframe").last.scroll_into_view_if_needed()
    quiz.locator(".lab-quiz-choice").first.click()
    quiz.get_by_role("button", name="Answer", exact=True).click()
    quiz.locator(".lab-quiz-mark", has_text=re.compile("right|no")).first.wait_for()
    assert not failed and not errors
    # From a disk a browser does not let the search read the pages, so results have no excerpts.
    page.goto((site / "search.html").as_uri() + "?q=advantage")
    page.locator("ul.search li a").first.wait_for()
    page.close()
