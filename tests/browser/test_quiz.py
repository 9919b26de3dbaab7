"""The quiz in the browser: with the keyboard alone, for screen readers, on a dark page, and without its kernel."""

import pytest
from lab import wait_for

from aligner_lib.tutorial.quiz.quiz_file import load_quiz
from aligner_lib.tutorial.workspace import learning_progress
from widgets import Quiz

CELLS = (
    "from aligner_lib.tutorial import Workspace\nfrom widgets import Quiz\nlab = Workspace({!r}, 'smoke')",
    "Quiz('03')",
)
# The page holds the reasons a second time: in the quiz that is read without a kernel, hidden while this one lives.
ANSWER = ".lab-quiz form:not([hidden]) [role=status]"
# Of an element that is no choice the name, because the text of the whole page has every choice in it.
FOCUSED = (
    "() => document.activeElement.closest('label')?.textContent ?? `<${document.activeElement.className}>`"
)


def answer(page, text: str) -> None:
    """Choose with the arrow keys, from wherever the question's choices are, and press Enter."""
    for _ in range(5):
        if text in page.evaluate(FOCUSED):
            page.keyboard.press("Enter")
            return
        page.keyboard.press("ArrowDown")
    raise AssertionError(f"{text!r} was never reached; the focus is on {page.evaluate(FOCUSED)!r}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_quiz_is_answered_with_the_keyboard_explains_each_choice_and_is_accessible(
    show, tmp_path, monkeypatch, theme
):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    monkeypatch.setattr(learning_progress, "_workspace", tmp_path)
    page = show(Quiz("03"), theme=theme).page
    explanation = page.locator(ANSWER)

    def assert_accessible() -> None:
        violations = axe.Axe().run(page, context=".lab-quiz").response["violations"]
        assert [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in violations] == []

    first, second = load_quiz("03").questions[:2]
    page.get_by_role("radio").first.focus()
    page.keyboard.press("Enter")
    assert "Choose an answer first" in explanation.inner_text()
    page.keyboard.press("Space")
    answer(page, first.choices[2].text)
    explanation.get_by_text(f"No. {first.choices[2].why}").wait_for()
    assert_accessible()
    answer(page, first.choices[0].text)
    explanation.get_by_text(f"Right. {first.choices[0].why}").wait_for()
    assert page.get_by_text("1 of 5 right, 0 at the first try").is_visible()
    assert_accessible()
    page.keyboard.press("Enter")  # on to the next one, whose first choice has the focus
    page.get_by_role("group", name=second.ask).wait_for()
    page.keyboard.press("Space")
    answer(page, second.choices[0].text)
    page.get_by_text("2 of 5 right, 1 at the first try").wait_for()
    answers = {first.id: [2, 0], second.id: [0]}
    assert answers in [quiz.answers for quiz in learning_progress.read_progress(tmp_path).quizzes.values()]
    steps = page.locator(".lab-quiz-steps button")
    assert steps.nth(0).get_attribute("aria-label") == "question 1, answered right"
    assert steps.nth(1).get_attribute("aria-current") == "step"
    page.locator("form:not([hidden]) summary").click()
    page.locator("form:not([hidden]) dd").get_by_text(second.choices[3].why).wait_for()


def test_a_quiz_works_without_its_kernel_and_a_reloaded_page_says_how_to_open_it(page, tmp_path):
    notebook, page = page, page.page
    notebook.show("quiz-lost.ipynb", CELLS[0].format(str(tmp_path)), CELLS[1])
    static = page.locator(".lab-quiz-static")
    assert not static.is_visible(), "the living widget hides it"
    first, second = load_quiz("03").questions[:2]
    page.get_by_role("radio").first.focus()
    page.keyboard.press("Space")
    answer(page, first.choices[0].text)
    page.locator(ANSWER).get_by_text(first.choices[0].why).wait_for()
    assert page.locator(".jp-Cell.jp-mod-active .jp-mod-focused, .cm-focused").count() == 0, (
        "Enter opened no cell"
    )
    wait_for(lambda: learning_progress.read_progress(tmp_path).quizzes, "the answer was not kept")
    notebook.restart_kernel()
    page.get_by_text("is not kept until you run cell [2] again").wait_for()
    page.get_by_role("button", name="Next question").click()
    page.get_by_label(second.choices[0].text).check()
    page.get_by_role("button", name="Answer", exact=True).click()
    page.locator(ANSWER).get_by_text(second.choices[0].why).wait_for()
    notebook.save()
    notebook.reload()
    static.wait_for()
    assert 'run the cell Quiz("03")' in static.inner_text()
    assert not page.get_by_text("model not found").is_visible()
    static.get_by_text(first.choices[1].text).click()
    page.get_by_text(first.choices[1].why).wait_for()
    assert notebook.beyond() == []
