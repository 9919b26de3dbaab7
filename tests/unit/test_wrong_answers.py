"""Wrong answers made by program: `check` accepts none of a draw, and the page counts all of them."""

import os
import random
import re
from collections import Counter

import pytest

from benchmarks import wrong_answers
from benchmarks.wrong_answers import KINDS, RIGHT, draw, outcome, solutions

SEED = 0 if "CI" in os.environ else random.randrange(10**6)


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return solutions()


@pytest.fixture(scope="module")
def pool(sources) -> list:
    return [
        answer for name, source in sources.items() for answer in wrong_answers.wrong_answers(name, source)
    ]


def test_check_accepts_no_wrong_answer_of_a_draw(sources, pool):
    drawn = draw(1, SEED, pool)
    assert {answer.mistake for answer in drawn} == set(KINDS) - {"flag"}  # no solution has a flag
    accepted = [str(answer) for answer in drawn if outcome(answer, sources[answer.path]) == "accepted"]
    assert not accepted, f"seed {SEED}"


def test_answers_that_were_read_and_found_right_are_still_made_and_still_accepted(sources, pool):
    listed = [change for answers in RIGHT.values() for change in answers]
    right = {wrong_answers.change(answer): answer for answer in pool if wrong_answers.is_right(answer)}
    assert sorted(right) == sorted(listed) and len(set(listed)) == len(listed)
    for answer in random.Random(SEED).sample(list(right.values()), 10):
        assert outcome(answer, sources[answer.path]) == "right", f"{answer}, seed {SEED}"


def test_the_page_counts_today_s_answers_to_all_exercises(pool):
    page = wrong_answers.PAGE.read_text()
    counts = {name: int(count) for name, count in re.findall(r"(?m)^\| `(\w+)` \| (\d+) \|", page)}
    made = Counter(answer.path for answer in pool)
    assert {name: counts.get(name) for name in made} == made, "run python -m benchmarks.wrong_answers --page"
