"""Wrong answers made by program: `check` accepts none of a draw, and each kind of mistake changes one expression."""

import os
import random
import re
from collections import Counter

import pytest

from benchmarks import wrong_answers
from benchmarks.mutations import mutants_of, planted
from benchmarks.wrong_answers import KINDS, MISTAKES, RIGHT, draw, of_names, outcome, solutions

SOURCES = solutions()
POOL = [answer for name, source in SOURCES.items() for answer in wrong_answers.wrong_answers(name, source)]
SEED = 0 if "CI" in os.environ else random.randrange(10**6)


@pytest.mark.parametrize(
    ("mistake", "source", "answer"),
    [
        ("dimension", "x.mean(dim=1)", "(x.mean(dim=0))"),
        ("left out", "a + b.exp()", "(b.exp())"),
        ("left out", "a + b.exp()", "a + (b)"),
        ("other method", "x.argmax(1)", "(x.argmin)(1)"),
        ("other method", "a | b", "(a & b)"),
        ("limit", "x.clamp(1 - e, 1 + e)", "(x.clamp(max=1 + e))"),
        ("limit", "d = p - q", "d = ((p - q).clamp(-10, 10))"),
        ("constant", "0.5 * x", "(1.0) * x"),
        ("statement", "loss.backward()\nstep()", "loss.backward()\npass"),
        ("other name", "def f(a, b): return a", "def f(a, b): return b"),
        ("detached", "def f(a, b): return a * b", "def f(a, b): return a.detach() * b"),
    ],
)
def test_each_mistake_changes_one_expression(mistake, source, answer):
    made = [*mutants_of("m.py", source, MISTAKES)]
    if source.startswith("def"):
        made += of_names(source, with_gradient=("a",))
    assert (mistake, answer) in {(mutant.mistake, planted(source, mutant)) for mutant in made}


def test_check_accepts_no_wrong_answer_of_a_draw():
    drawn = draw(2, SEED, POOL)
    assert {answer.mistake for answer in drawn} == set(KINDS) - {"flag"}  # no solution has a flag
    accepted = [str(answer) for answer in drawn if outcome(answer, SOURCES[answer.path]) == "accepted"]
    assert not accepted, f"seed {SEED}"


def test_answers_that_were_read_and_found_right_are_still_made_and_still_accepted():
    listed = [change for answers in RIGHT.values() for change in answers]
    right = {wrong_answers.change(answer): answer for answer in POOL if wrong_answers.is_right(answer)}
    assert sorted(right) == sorted(listed) and len(set(listed)) == len(listed)
    for answer in random.Random(SEED).sample(list(right.values()), 10):
        assert outcome(answer, SOURCES[answer.path]) == "right", f"{answer}, seed {SEED}"


def test_the_page_counts_today_s_answers_to_all_exercises():
    page = wrong_answers.PAGE.read_text()
    counts = {name: int(count) for name, count in re.findall(r"(?m)^\| `(\w+)` \| (\d+) \|", page)}
    made = Counter(answer.path for answer in POOL)
    assert {name: counts.get(name) for name in made} == made, "run python -m benchmarks.wrong_answers --page"
