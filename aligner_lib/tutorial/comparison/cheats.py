"""What policies that cheat get from the program that judges: the figures that a real gain has to stand beside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from statistics import fmean

from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import share
from data.forms import instruction_in, without_instruction
from data.gold import GoldParts, judge, judge_all, topic_of

SENTENCE = "This is a fact that people always remember, and that is 1 simple thing."
"""The same sentence for every prompt: it has the form that several instructions ask for."""


def cheats(turns: Sequence[str], candidates: Iterable[str] = ()) -> PolicyComparison:
    """The shares of obeying and of good answers of policies that answer every prompt without understanding it.

    turns: the users' turns, each with an instruction of data/forms.py. candidates: answers of which the best constant one is
    searched. All answers count as ended.
    """
    policies = cheating_answers(turns)
    if constant := best_constant(turns, candidates):
        policies["best constant"] = [constant] * len(turns)
    figures = {name: shares(turns, answers) for name, answers in policies.items()}
    caption = f"{len(turns)} prompts; 95 % intervals in brackets"
    if constant:
        caption += f"; the best constant: {constant!r}"
    return PolicyComparison(caption, figures)


def cheating_answers(turns: Sequence[str]) -> dict[str, list[str]]:
    """By the name of a cheat, its answer to each turn."""
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


def best_constant(turns: Sequence[str], candidates: Iterable[str]) -> str:
    """The candidate that is a good answer to the most turns, "" where there is no candidate."""
    return max(dict.fromkeys(candidates), key=lambda answer: good_count(turns, answer), default="")


def good_count(turns: Sequence[str], answer: str) -> int:
    """To how many turns one answer is good."""
    topic = topic_of(answer)
    near = (turn for turn in turns if topic & _topic(turn))  # a search judges a million answers
    return sum(judge(turn, answer, True).good for turn in near)


@cache
def _topic(turn: str) -> frozenset[str]:
    return topic_of(without_instruction(turn))


def shares(turns: Sequence[str], answers: Sequence[str]) -> dict:
    """The shares of good answers, beside one another and each alone, and of each part of the judgement; all answers ended."""
    verdicts = judge_all(turns, answers, [True] * len(turns))
    alone = [judge(turn, answer, True) for turn, answer in zip(turns, answers)]
    parts = {
        name: fmean(float(getattr(verdict, name)) for verdict in verdicts)
        for name in GoldParts._fields
        if name != "ended"
    }
    good = {"good": verdicts, "good_alone": alone}
    return {
        name: share([float(parts.good) for parts in judged], list(turns)) for name, judged in good.items()
    } | parts


def _asked_for(turn: str) -> str:
    """The words, number or title that an instruction asks for, as a sentence; "" where it asks for none."""
    return "".join(f"{value}." for _, value in instruction_in(turn).gaps)


def _topic_words(question: str) -> list[str]:
    """The words of a question that tell what it is about, in their order."""
    return [word.strip(".?!,") for word in question.split() if topic_of(word)]
