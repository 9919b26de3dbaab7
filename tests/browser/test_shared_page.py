"""The page of `aligner share` in a browser: it draws without a kernel, and answers queries as the kernel does."""

import itertools

import pytest
from run_folders import write_run

from aligner_lib.tutorial.report.html_page import html_page
from widgets.completions.completions import COLOURS, SORTS, CompletionPages
from widgets.frontend.widget import text_of
from widgets.recordings.replay import Recording
from widgets.share.page import _texts, write_page

ORDERS = [{"sort": sort} for sort in SORTS] + [{"colour": colour} for colour in COLOURS]
QUERIES = [
    order | {"split": split, "together": together}
    for order, split, together in itertools.product(ORDERS, ("train", "validation"), (True, False))
] + [
    {},
    {"step": 5}, {"step": -1}, {"step": 3, "split": "validation"}, {"step": 10**6},
    {"every": True, "start": 16}, {"every": True, "start": 10**6}, {"start": 3},
    {"cut": True, "every": True}, {"failed": True, "every": True}, {"end": True, "colour": "KL", "split": "train"},
    {"text": "Number", "every": True}, {"text": "no such words", "every": True}, {"beside": False}, {"split": "nothing"},
    {"sort": "nothing", "colour": "nothing", "environment": "conversations"}, {"environment": "nothing"},
]  # fmt: skip


@pytest.fixture
def open_page(browser, tmp_path):
    """A function that opens the page of some runs from the disk, without a network."""
    pages, errors = [], []

    def opened(runs, width: int = 838):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.context.set_offline(True)
        page.on("pageerror", lambda error: errors.append(str(error)))
        pages.append(page)
        page.goto(write_page(runs, tmp_path / "run.html").as_uri())
        page.wait_for_function("document.querySelectorAll('.lab-chart svg path').length")
        return page

    yield opened
    for page in pages:
        page.close()
    assert not errors


def kernel_answer(run, query: dict) -> dict:
    """The kernel's answer, without what the page keeps once: a row's prompt."""
    page = CompletionPages(run).find(query)
    for row in page["rows"]:
        row.pop("prompt", None)
        for member in row.get("members", []):
            member.pop("prompt", None)
    return page


def assert_same(of_page, of_kernel, where: str) -> None:
    """The page's answer has all that the kernel's has; numbers of tokens have four digits there."""
    assert type(of_page) is type(of_kernel) or isinstance(of_kernel, float), where
    if isinstance(of_kernel, dict):
        for key, value in of_kernel.items():
            assert key in of_page or value is None, f"{where}.{key}"
            assert_same(of_page.get(key), value, f"{where}.{key}")
    elif isinstance(of_kernel, list):
        assert len(of_page) == len(of_kernel), where
        for place, pair in enumerate(zip(of_page, of_kernel)):
            assert_same(*pair, f"{where}[{place}]")
    elif isinstance(of_kernel, float):
        assert of_page == pytest.approx(of_kernel, rel=2e-3, abs=1e-6), where
    elif where.endswith(".scale.beyond"):
        assert abs(of_page - of_kernel) <= 1, f"{where}: rounding moves a token at most over the percentile"
    else:
        assert of_page == of_kernel, where


@pytest.mark.parametrize("name", ["ppo-drawn", "grpo-forms"])
def test_queries_are_answered_as_by_the_kernel(browser, name):
    run = Recording(name, speed=float("inf"))
    page = browser.new_page()
    answers = page.evaluate(
        "([run, queries]) => {"
        + text_of("still.js")
        + "return queries.map((query) => findCompletions(run, query)); }",
        [_texts(run, run.name), QUERIES],
    )
    page.close()
    rows = 0
    for query, of_page in zip(QUERIES, answers, strict=True):
        expected = kernel_answer(run, query)
        rows += expected["total"]
        assert_same(of_page, expected, str(query))
    assert rows > 100


def test_charts_axes_numbers_and_responses_work_without_a_kernel(open_page):
    page = open_page(Recording("ppo-drawn"))
    assert page.locator(".lab-chart").count() >= 6
    assert page.locator(".lab-texts .lab-card").count() == 3  # groups, open from the start
    page.get_by_role("slider", name="step", exact=True).evaluate(
        "(slider) => { slider.value = 0; slider.dispatchEvent(new Event('input')); }"
    )
    page.wait_for_function("document.querySelector('.lab-texts .lab-step output').textContent === 'step 1'")
    page.get_by_label("over").select_option("time")
    page.wait_for_function("document.querySelector('.lab-monitor').lab.store.head.axis === 'time'")
    page.get_by_role("button", name="Numbers").click()
    page.wait_for_selector(".lab-numbers tbody tr")
    assert page.locator(".lab-numbers tbody tr").count() == 13
    for hidden in ("Stop after this step", "Change settings", "Play again"):
        assert not page.get_by_role("button", name=hidden).is_visible()
    page.get_by_text("All settings").click()
    assert "trainer.ppo.max_steps" in page.locator("details", has_text="All settings").inner_text()


def test_a_click_on_a_point_of_a_run_without_responses_says_why_there_are_none(open_page, tmp_path):
    page = open_page(write_run(tmp_path / "dpo", {"train/loss": [0.7, 0.6] * 20}, kind="dpo"))
    zoomed = "const {lab} = document.querySelector('.lab-monitor'); lab.zoom([10, 12]); return lab.charts[0].lines()[0].line.x"
    assert page.evaluate(f"() => {{ {zoomed}; }}") == [9, 10, 11, 12, 13], "what is smoothed is the view's"
    page.evaluate("document.querySelector('.lab-monitor').lab.pick(0, 2, 'train')")
    note = page.locator(".lab-texts .lab-note")
    note.wait_for()
    assert note.inner_text() == "dpo has no completions: dpo does not generate."


def test_two_runs_share_charts_and_fit_a_phone(open_page):
    page = open_page([Recording("ppo-forms"), Recording("ppo-forms-both")], width=360)
    assert page.locator(".lab-runs li").count() == 2
    assert page.locator(".lab-alarms").inner_text()
    page.get_by_text("All settings").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_a_long_formula_of_the_report_fits_a_phone(browser):
    page = browser.new_page(viewport={"width": 360, "height": 800})
    page.set_content(html_page("", f'<main><math display="block"><mi>{"x" * 200}</mi></math></main>'))
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.close()
