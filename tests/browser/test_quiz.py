"""The quiz in the browser: with the keyboard alone, for screen readers, on a dark page, and without its kernel."""

import pytest
from lab import wait_for

from aligner_lib.tutorial.quiz.quiz_file import load_quiz
from aligner_lib.tutorial.workspace.learning_progress import read_progress

CELLS = (
    "from aligner_lib.tutorial import Workspace\nfrom widgets import Quiz\nlab = Workspace({!r}, 'smoke')",
    "Quiz('03')",
)
# The page holds the reasons a second time: in the quiz that is read without a kernel, hidden while this one lives.
SAID = ".lab-quiz form:not([hidden]) [role=status]"
# Of an element that is no choice the name, because the text of the whole page has every choice in it.
FOCUSED = (
    "() => document.activeElement.closest('label')?.textContent ?? `<${document.activeElement.className}>`"
)


def choose(page, text: str) -> None:
    """With the arrow keys, from wherever the question's choices are."""
    for _ in range(5):
        if text in page.evaluate(FOCUSED):
            return
        page.keyboard.press("ArrowDown")
    raise AssertionError(f"{text!r} was never reached; the focus is on {page.evaluate(FOCUSED)!r}")


def test_a_quiz_is_answered_with_the_keyboard_explains_each_choice_and_is_accessible(page, tmp_path):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    notebook, page = page, page.page
    notebook.show("quiz.ipynb", CELLS[0].format(str(tmp_path)), CELLS[1])
    said, faults = page.locator(SAID), {}

    def look_for_faults(when: str) -> None:
        for theme in ("JupyterLab Dark", "JupyterLab Light"):
            notebook.theme(theme)
            found = axe.Axe().run(page, context=".lab-quiz").response["violations"]
            faults[when, theme] = [(v["id"], [node["html"] for node in v["nodes"]]) for v in found]

    def answer(text: str, words: str) -> None:
        choose(page, text)
        page.keyboard.press("Enter")
        wait_for(lambda: said.inner_text() == words, said.inner_text())

    first, second = load_quiz("03").questions[:2]
    page.get_by_role("radio").first.focus()
    page.keyboard.press("Enter")
    assert "Choose an answer first" in said.inner_text()
    page.keyboard.press("Space")
    answer(first.choices[2].text, f"No. {first.choices[2].why}")
    look_for_faults("wrong")
    answer(first.choices[0].text, f"Right. {first.choices[0].why}")
    assert page.get_by_text("1 of 5 right, 0 at the first try").is_visible()
    look_for_faults("right")
    page.keyboard.press("Enter")  # on to the next one, whose first choice has the focus
    page.get_by_role("group", name=second.ask).wait_for()
    page.keyboard.press("Space")
    choose(page, second.choices[0].text)
    page.keyboard.press("Enter")
    page.get_by_text("2 of 5 right, 1 at the first try").wait_for()
    kept = {first.id: [2, 0], second.id: [0]}
    wait_for(lambda: kept in [quiz.answers for quiz in read_progress(tmp_path).quizzes.values()])
    steps = page.locator(".lab-quiz-steps button")
    assert steps.nth(0).get_attribute("aria-label") == "question 1, answered right"
    assert steps.nth(1).get_attribute("aria-current") == "step"
    page.locator("form:not([hidden]) summary").click()
    page.locator("form:not([hidden]) dd").get_by_text(second.choices[3].why).wait_for()
    assert faults == {moment: [] for moment in faults}


def test_a_quiz_works_without_its_kernel_and_a_reloaded_page_says_how_to_open_it(page, tmp_path):
    page.show("quiz-lost.ipynb", CELLS[0].format(str(tmp_path)), CELLS[1])
    static = page.page.locator(".lab-quiz-static")
    assert not static.is_visible(), "the living widget hides it"
    page.restart_kernel()
    page.page.get_by_text("is not kept until you run cell [2] again").wait_for()
    question = load_quiz("03").questions[0]
    page.page.get_by_label(question.choices[0].text).check()
    page.page.get_by_role("button", name="Answer", exact=True).click()
    page.page.locator(SAID).get_by_text(question.choices[0].why).wait_for()
    page.save()
    page.reload()
    static.wait_for()
    assert 'run the cell Quiz("03")' in static.inner_text()
    assert not page.page.get_by_text("model not found").is_visible()
    static.get_by_text(question.choices[1].text).click()
    page.page.get_by_text(question.choices[1].why).wait_for()
    assert page.beyond() == []
