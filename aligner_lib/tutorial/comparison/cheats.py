"""The scores of cheating policies from the program that judges answers. A real policy has to score clearly higher."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache

from aligner_lib.tutorial.comparison.good_answers import PARTS, mean_parts
from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import share
from data.forms import instruction_in, without_instruction
from data.gold import judge, judge_all, topic_of

SENTENCE = "This is a fact that people always remember, and that is 1 simple thing."
"""A constant sentence for every prompt. Its form satisfies several instructions."""
TEMPLATE = "Many like {first} and {last}, yes {last} can be {first} too."
"""A sentence with gaps for the first and the last topic word of a question."""
COMMON_WORDS = (
    "it is a good thing that people do with the time and they like many of these for some more than others"
)
SHUFFLED = 9
"""How many of the common words a shuffled answer has."""


def cheats(turns: Sequence[str], candidates: Iterable[str] = ()) -> PolicyComparison:
    """The shares of obeying and of good answers for policies that answer prompts without understanding them.

    turns: the users' turns, each with an instruction of data/forms.py. candidates: answers from which the best constant answer
    is chosen. All answers count as ended.
    """
    policies = cheating_answers(turns) | fitted_answers(turns)
    if constant := best_constant(turns, candidates):
        policies["best constant"] = [constant] * len(turns)
    figures = {name: shares(turns, answers) for name, answers in policies.items()}
    caption = f"{len(turns)} prompts; 95 % intervals in brackets"
    if constant:
        caption += f"; the best constant: {constant!r}"
    return PolicyComparison(caption, figures)


def cheating_answers(turns: Sequence[str]) -> dict[str, list[str]]:
    """By the name of a cheat: the answer to each turn."""
    questions = [without_instruction(turn) for turn in turns]
    instructions = [turn.replace(question, "").strip() for turn, question in zip(turns, questions)]
    with_topic = [
        f"{(_topic_words(question) or [''])[-1]}: {instruction}"
        for question, instruction in zip(questions, instructions)
    ]
    topic_and_sentence = [f"{' '.join(_topic_words(question))}: {SENTENCE}" for question in questions]
    return {
        "the instruction": instructions,
        "the question": questions,
        "the whole prompt": list(turns),
        "the instruction and a topic word": with_topic,
        "the question and a sentence": [f"{question} {SENTENCE}" for question in questions],
        "the topic and a sentence": topic_and_sentence,
        "what was asked for, the topic and a sentence": [
            f"{_asked_for(turn)} {rest}".strip() for turn, rest in zip(turns, topic_and_sentence)
        ],
    }


def fitted_answers(turns: Sequence[str]) -> dict[str, list[str]]:
    """By the name of a cheat that was fitted to the judging program: the answer to each turn.

    These cheats show the program's limits. `judge_all` detects a template in the answers to several questions, and `judge` can't. No
    part of the judgement reads grammar, so neither detects shuffled words.
    """
    templates, shuffled = [], []
    for turn in turns:
        topic = [word.lower() for word in _topic_words(without_instruction(turn))] or [""]
        templates.append(f"{_asked_for(turn)} {TEMPLATE.format(first=topic[0], last=topic[-1])}".strip())
        random_order = random.Random(turn)
        plain = topic * 2 + random_order.sample(COMMON_WORDS.split(), SHUFFLED)
        random_order.shuffle(plain)
        shuffled.append(f"{_asked_for(turn)} {' '.join(plain)}.".strip())
    return {
        "what was asked for, and the topic in a template": templates,
        "what was asked for, and shuffled words": shuffled,
    }


def best_constant(turns: Sequence[str], candidates: Iterable[str]) -> str:
    """The candidate that is a good answer to the most turns; "" without candidates."""
    return max(dict.fromkeys(candidates), key=lambda answer: good_count(turns, answer), default="")


def good_count(turns: Sequence[str], answer: str) -> int:
    """The number of turns to which an answer is good."""
    topic = topic_of(answer)
    # only a turn with a topic word of the answer can be answered well; the filter makes a search over a million answers fast
    near = (turn for turn in turns if topic & _topic(turn))
    return sum(judge(turn, answer, True).good for turn in near)


@cache
def _topic(turn: str) -> frozenset[str]:
    return topic_of(without_instruction(turn))


def shares(turns: Sequence[str], answers: Sequence[str]) -> dict:
    """The shares of answers that are good, and for which each part of the judgement holds. All answers count as ended.

    `good`: each answer is judged together with the policy's other answers; `good_alone`: each answer is judged alone.
    """
    verdicts = judge_all(turns, answers, [True] * len(turns))
    alone = [judge(turn, answer, True) for turn, answer in zip(turns, answers)]
    good = {"good": verdicts, "good_alone": alone}
    return {
        name: share([float(parts.good) for parts in judged], list(turns)) for name, judged in good.items()
    } | mean_parts(verdicts, ("obeys", *PARTS))


def _asked_for(turn: str) -> str:
    """The words, number or title that an instruction demands, as a sentence; "" if the instruction demands none."""
    return "".join(f"{value}." for _, value in instruction_in(turn).gaps)


def _topic_words(question: str) -> list[str]:
    """The topic words of a question, in their order."""
    return [word.strip(".?!,") for word in question.split() if topic_of(word)]
