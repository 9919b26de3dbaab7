"""What notebook 14 trains on, and the programs that it compares a policy with."""

import re
from collections import Counter

import pytest

from aligner_lib.rollouts.environments.registry import make
from aligner_lib.tutorial.tool_use.scripted import (
    always,
    always_calls,
    call,
    combines_numbers,
    most_frequent,
    played,
)
from aligner_lib.tutorial.tool_use.stories import SIZES, stories, write_stories

SUMS = {"digits": 1, "operations": "+", "examples": 0}


def test_stories_have_right_answers_and_the_splits_share_neither_texts_nor_numbers():
    texts, numbers = {}, {}
    for split in SIZES:
        drawn = stories(split)
        assert drawn == stories(split) and len(drawn) == SIZES[split]
        assert set(Counter(story.operation for story in drawn).values()) == {SIZES[split] // 3}
        for story in drawn:
            numbers_in_text = sorted(re.findall(r"\d+", story.prompt))
            a, sign, b = story.expression.split(" ")
            values = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}
            assert (
                story.answer == str(values[sign]) and numbers_in_text == sorted([a, b]) and values[sign] > 0
            )
        texts[split] = {re.sub(r"\d+", "#", story.prompt) for story in drawn}
        numbers[split] = {frozenset(re.findall(r"\d+", story.prompt)) for story in drawn}
    assert not texts["train"] & texts["validation"] and not numbers["train"] & numbers["validation"]


@pytest.mark.parametrize(
    ("policy", "right", "calls"),
    [
        (combines_numbers("+"), lambda a, b: True, 1),
        (combines_numbers("*"), lambda a, b: a + b == a * b, 1),
        (always_calls("3 + 4"), lambda a, b: a + b == 7, 1),
        (always("It is 7."), lambda a, b: a + b == 7, 0),
        (lambda question, results: call("1 / 0"), lambda a, b: False, 3),  # calls to the end of the turns
    ],
)
def test_a_scripted_policy_earns_what_arithmetic_says(policy, right, calls):
    environment = make("tool_calculator", "train", **SUMS)
    numbers = [tuple(map(int, problem.split(" + "))) for problem in environment.problems]
    score = played(environment, policy, len(numbers))
    assert score.reward == pytest.approx(sum(right(a, b) for a, b in numbers) / len(numbers))
    assert score.calls == calls


def test_a_file_with_tools_judges_stories_by_operation(tmp_path):
    file = tmp_path / "tools.py"
    file.write_text(
        "from aligner_lib.rollouts.environments.tool_calculator import calculator\nTOOLS = [calculator]\n"
        "def reward(prompt, response, answer, operation, **others): return {'reward': response == answer, operation: 1}\n"
    )
    environment = make(str(file), "validation", prompts=write_stories(tmp_path / "stories"))
    size = SIZES["validation"]
    scores = [played(environment, combines_numbers(sign), size).reward for sign in "+-"]
    # a difference in a story never stands with its smaller number first, so a program of one sign is right in its third
    assert scores == [pytest.approx(1 / 3), pytest.approx(1 / 3)]
    assert played(environment, always(most_frequent(["7", "7", "8"])), size).reward == 0
