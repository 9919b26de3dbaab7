"""The quizzes: their files, and the widget without a browser."""

import re
from collections import Counter
from pathlib import Path

import pytest

from aligner_lib.tutorial import Workspace
from aligner_lib.tutorial.quiz.quiz_file import load_quiz, parse_quiz, quiz_names
from aligner_lib.tutorial.workspace import learning_progress
from aligner_lib.tutorial.workspace.learning_progress import read_progress
from widgets import Quiz

ROOT = Path(__file__).parents[2]
QUESTIONS = [(name, question) for name in quiz_names() for question in load_quiz(name).questions]

# ---- the files ------------------------------------------------------------------------------------------------------


def test_every_notebook_has_five_questions_and_the_end_fifteen():
    notebooks = sorted(path.name[:2] for path in (ROOT / "notebooks" / "src").glob("0*.py"))
    assert {name: len(load_quiz(name).questions) for name in quiz_names()} == dict.fromkeys(notebooks, 5) | {
        "final": 15
    }


def test_every_choice_has_a_sentence_of_its_own():
    for name, question in QUESTIONS:
        assert len(question.choices) == 4, (name, question.id)
        whys = [choice.why for choice in question.choices]
        assert len(set(whys)) == 4 and all(why[-1] in ".?" and len(why) > 25 for why in whys), (
            name,
            question.id,
        )


def test_a_choice_is_not_told_by_its_length():
    lengths = {(name, q.id): [len(choice.text) for choice in q.choices] for name, q in QUESTIONS}
    for where, of_one in lengths.items():
        of_one = sorted(of_one)
        assert of_one[-1] <= 1.25 * of_one[-2] and of_one[0] >= 0.6 * of_one[-1], (where, of_one)
    for extreme in (max, min):
        right = sum(of_one[0] == extreme(of_one) for of_one in lengths.values())
        assert right <= 0.4 * len(lengths), f"the {extreme.__name__} is right {right} times of {len(lengths)}"


def test_the_right_choice_is_at_each_place_about_as_often():
    places = Counter([c.place for c in q.shuffled(0)].index(0) for _, q in QUESTIONS)
    assert len(places) == 4 and min(places.values()) >= len(QUESTIONS) / 8, places


def test_the_order_is_the_seeds():
    question = QUESTIONS[0][1]
    assert question.shuffled(3) == question.shuffled(3)
    assert len({tuple(c.place for c in question.shuffled(seed)) for seed in range(20)}) > 5


GOOD = """
title = "A"
[[question]]
id = "q"
ask = "What?"
right = ["a", "because"]
wrong = [["b", "why b"], ["c", "why c"]]
"""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("title", "titel", "quiz 1 has titel, question"),
        ('right = ["a", "because"]', 'right = ["a"]', "question 'q': ['a'] is no [choice, why]"),
        ('["b", "why b"]', '["b", ""]', "question 'q': ['b', ''] is no [choice, why]"),
        (', ["c", "why c"]', "", "question 'q' has fewer than two wrong choices"),
        ('["c"', '["b"', "question 'q' has a choice twice"),
        ("wrong", "wrongs", "question 'q' has id, ask, right, wrongs"),
        ("[[question]]", "[[question]", "quiz 1: "),
    ],
)
def test_a_malformed_quiz_is_told_with_its_question(before, after, said):
    assert len(parse_quiz("1", GOOD).questions) == 1
    assert GOOD.count(before) >= 1
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_quiz("1", GOOD.replace(before, after))


def test_two_questions_of_one_id_are_told():
    with pytest.raises(ValueError, match="two questions of one id: q, q"):
        parse_quiz("1", GOOD + GOOD.replace('title = "A"', ""))


# ---- the widget -----------------------------------------------------------------------------------------------------


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setattr(learning_progress, "_workspace", None)
    return Workspace(tmp_path / "w", "smoke").out


def test_an_unknown_quiz_names_those_that_there_are():
    with pytest.raises(ValueError, match="there is no quiz '3'; there are 00, 01"):
        Quiz("3")


def test_answers_are_kept_once_and_are_there_again(workspace):
    quiz = Quiz("03")
    quiz.answers = {"stop-token": [2]}
    quiz.answers = {"stop-token": [2, 0], "first-loss": [0]}
    assert read_progress(workspace).quizzes["03"].answers == {"stop-token": [2, 0], "first-loss": [0]}
    again = Quiz("03", seed=5)
    assert again.answers == {"stop-token": [2, 0], "first-loss": [0]}
    assert repr(again) == "Quiz 03 · SFT: 2 of 5 answered right"
    again.answers = {}  # start again
    again.answers = {"stop-token": [0]}
    result = read_progress(workspace).quizzes["03"]
    assert result.answers["stop-token"] == [2, 0, 0] and result.at_first == {"first-loss"}


def test_what_is_no_answer_is_not_kept(workspace):
    quiz = Quiz("03")
    quiz.answers = {"no-such-question": [0], "stop-token": [7, "0", 1]}
    assert read_progress(workspace).quizzes["03"].answers == {"stop-token": [1]}


def test_without_a_kernel_the_page_says_how_to_open_it_and_has_every_sentence():
    page = Quiz("05").static_html()
    assert "open notebook 05 with <code>./lab jupyter</code>" in page and "Quiz(&quot;05&quot;)" in page
    assert page.count("<details>") == 20 and page.count("<p>Right: ") == 5
    assert "<code>profile</code>" in Quiz("00").static_html()


def test_it_is_shown_as_the_page_and_the_widget(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data))
    Quiz("final")._ipython_display_()
    page, widget = shown
    assert "lab-quiz-static" in page["text/html"] and "notebook 08" in page["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in widget
