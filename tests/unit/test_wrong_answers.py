"""Wrong answers made by program: `check` accepts none of a draw, and the page counts all of them."""

import os
import random
import re
from collections import Counter

from benchmarks import wrong_answers
from benchmarks.wrong_answers import KINDS, RIGHT, draw, outcome, solutions

SOURCES = solutions()
POOL = [answer for name, source in SOURCES.items() for answer in wrong_answers.wrong_answers(name, source)]
SEED = 0 if "CI" in os.environ else random.randrange(10**6)


def test_check_accepts_no_wrong_answer_of_a_draw():
    drawn = draw(1, SEED, POOL)
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
