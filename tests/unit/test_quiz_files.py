"""The quizzes: their files, and the widget without a browser."""

import re
from collections import Counter
from pathlib import Path

import pytest

from aligner_lib.tutorial import Workspace
from aligner_lib.tutorial.quiz.quiz_file import load_quiz, parse_quiz, quiz_names
from aligner_lib.tutorial.report.progress_table import BUG_HUNT
from aligner_lib.tutorial.workspace import learning_progress
from aligner_lib.tutorial.workspace.learning_progress import read_progress
from widgets import Quiz

ROOT = Path(__file__).parents[2]
QUESTIONS = [(name, question) for name in quiz_names() for question in load_quiz(name).questions]


def test_every_notebook_has_five_questions_and_the_final_quiz_fifteen():
    paths = (ROOT / "notebooks" / "src").glob("[0-9]*.py")
    notebooks = {path.stem.partition("_")[0] for path in paths} - {BUG_HUNT}
    counts = {name: len(load_quiz(name).questions) for name in quiz_names()}
    assert counts == dict.fromkeys(notebooks, 5) | {"final": 15}


def test_every_choice_has_its_own_explanation():
    for name, question in QUESTIONS:
        whys = [choice.why for choice in question.choices]
        are_sentences = all(why[-1] in ".?" and len(why) > 25 for why in whys)
        assert len(whys) == len(set(whys)) == 4 and are_sentences, (name, question.id)


def test_the_length_of_a_choice_does_not_reveal_the_answer():
    lengths = {(name, q.id): [len(choice.text) for choice in q.choices] for name, q in QUESTIONS}
    for where, of_question in lengths.items():
        shortest, *_, second, longest = sorted(of_question)
        assert longest <= 1.25 * second and shortest >= 0.6 * longest, (where, of_question)
    for extreme in (max, min):
        right = sum(of_question[0] == extreme(of_question) for of_question in lengths.values())
        assert right <= 0.4 * len(lengths), f"the {extreme.__name__} is right {right} times of {len(lengths)}"


def test_choices_are_shuffled_by_the_seed_alone_to_each_place_about_equally_often():
    places = Counter([c.place for c in q.shuffled(0)].index(0) for _, q in QUESTIONS)
    assert len(places) == 4 and min(places.values()) >= len(QUESTIONS) / 8, places
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
    ("before", "after", "problem"),
    [
        ("title", "titel", "quiz 1 has titel, question"),
        ('right = ["a", "because"]', 'right = ["a"]', "question 'q': ['a'] is no [choice, why]"),
        ('["b", "why b"]', '["b", ""]', "question 'q': ['b', ''] is no [choice, why]"),
        (', ["c", "why c"]', "", "question 'q' has fewer than two wrong choices"),
        ('["c"', '["b"', "question 'q' has a choice twice"),
        ("[[question]]", "[[question]", "quiz 1: "),
        ("[[question]]", "[question]", "quiz 1: each question begins with [[question]]"),
        (
            'title = "A"',
            'title = "A"\nruns = "sft"',
            "quiz 1: runs = 'sft' is no list of texts, such as ['sft']",
        ),
        (GOOD, GOOD + GOOD.replace('title = "A"', ""), "two questions of one id: q, q"),
    ],
)
def test_an_error_in_a_quiz_file_names_the_question(before, after, problem):
    assert len(parse_quiz("1", GOOD).questions) == 1 and before in GOOD
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_quiz("1", GOOD.replace(before, after))


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setattr(learning_progress, "_workspace", None)
    return Workspace(tmp_path / "w", "smoke").out


def test_answers_are_saved_once_and_restored(workspace):
    quiz = Quiz("03")
    quiz.answers = {"stop-token": [2]}
    quiz.answers = {"stop-token": [2, 0], "first-loss": [0]}
    again = Quiz("03", seed=5)
    assert read_progress(workspace).quizzes["03"].answers == again.answers
    assert again.answers == {"stop-token": [2, 0], "first-loss": [0]}
    assert repr(again) == "Quiz 03 · SFT: 2 of 5 answered right"
    again.answers = {}  # start again
    again.answers = {"stop-token": [0], "no-such-question": [0], "first-loss": [7, "0"]}
    result = read_progress(workspace).quizzes["03"]  # without the invalid answers
    assert result.answers == {"stop-token": [2, 0, 0], "first-loss": [0]} and result.at_first == {
        "first-loss"
    }
    with pytest.raises(ValueError, match="there is no quiz '3'; there are 00, 01"):
        Quiz("3")


def test_a_quiz_is_displayed_as_widget_and_as_a_page_with_every_explanation(monkeypatch):
    page = Quiz("05").static_html()
    assert "open notebook 05 with <code>./lab jupyter</code>" in page and "Quiz(&quot;05&quot;)" in page
    assert page.count("<details>") == 20 and page.count("<p>Right: ") == 5
    assert "<code>profile</code>" in Quiz("00").static_html()
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data))
    Quiz("final")._ipython_display_()
    page, widget = shown
    assert "lab-quiz-static" in page["text/html"] and "notebook 08" in page["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in widget
