"""Is an answer good? A program's judgement of answers to the instructions of data/forms.py.

`obeys` alone is fooled: the repeated instruction often has the form that it asks for, and one constant string obeys half of the
held-out prompts. An answer is good when it obeys and is an answer as well: every part of `GoldParts` holds. What a policy says to
every question is seen beside its other answers alone: `judge_all`. `python -m benchmarks.cheats` shows what cheats get.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from data.copying import WORD, copied_words
from data.forms import instruction_in, postscript, without_instruction, words

SAMPLES = Path(__file__).parent / "samples"

OWN_WORDS = 2
"""An answer has at least so many words that are not the user's, as "People landed on the Moon in 1969." has."""
OWN_RUN = 3
"""So many words in a row of the user's turn are the user's."""
OPENING = 3
"""An answer with so many first words of the question asks the question again."""
QUOTED_RUN = 4
"""An answer does not need to repeat so many words in a row of its instruction."""
REQUIRED = "_"
"""Stands for what an instruction asks for, in the search for repeated words."""
TOPIC_WORDS = 2
"""Words of the question in an answer on its topic. With one word, a long constant string would often be on the topic."""
DISTINCT_PAIRS = 0.6
"""Least share of different pairs of neighbouring words; an answer that repeats itself has less."""
KNOWN_WORDS = 0.5
"""Least share of words that the bundled samples contain. The answers of SmolLM2-135M have 0.92 (median)."""
STOCK_RUN = 4
"""So many words in a row are a stock phrase when answers to other questions have them, too."""
STOCK_QUESTIONS = 2
"""A phrase in the answers to so many other questions is a stock phrase."""

TITLE = re.compile(r"<<[^<>\n]*>>")
LETTERS = re.compile(r"[a-z]+(?:'[a-z]+)?")
COMMON = frozenset(
    """a about advice after all also am an and any anyone are as ask at be been before being best by call can could curious daughter did do does
    doing each else ever every everyone explain find first for forgotten friend from get give go going good had has have he help her him his
    how i if in interested into is it its just keep know last learn let like little long look made make many may me mean means might
    more most much must my need needs never new no not now of off often on once one only or other others our out over own people
    person please put question quick quiz read really right said same say see she should show simple since so some someone something sure
    speak take talk tell than that the their them then there these they thing things think this those time to today too try under
    understand until up us use used using very want wants was way we well were what when where which while who whole whom whose why
    will with wonder wondering word words would write you your yourself""".split()
)
"""Words that do not tell what a question is about."""


class GoldParts(NamedTuple):
    """What must hold of a good answer."""

    obeys: bool
    """It has the form that its prompt asks for."""
    ended: bool
    """The policy ended it; the limit of tokens did not."""
    own_words: bool
    """It has words that are not the user's, outside of a title, and repeats neither the question nor the instruction."""
    on_topic: bool
    """It has two words in it that tell what the question is about, or the only one."""
    varied: bool
    """It does not repeat itself."""
    readable: bool
    """Most of its words are English words."""
    plain: bool
    """It has no title and no postscript that its prompt does not ask for."""
    specific: bool
    """It says something that the policy does not say to other questions as well."""

    @property
    def good(self) -> bool:
        return all(self)


def judge(turn: str, answer: str, finished: bool, stock: Collection[tuple[str, ...]] = ()) -> GoldParts:
    """The parts of a judgement.

    turn: the user's last turn, a question and its instruction. finished: whether the answer ended with a stop token. stock: the
    phrases of STOCK_RUN words that the policy also uses for other questions.
    Raises ValueError for a turn without an instruction of data/forms.py.
    """
    instruction = instruction_in(turn)
    if instruction is None:
        raise ValueError(f"no instruction of data/forms.py is in this turn: {turn!r}")
    question = without_instruction(turn)
    return GoldParts(
        obeys=instruction.holds(answer),
        ended=finished,
        own_words=has_own_words(turn, TITLE.sub(" / ", answer))
        and not asks_again(question, answer)
        and not quotes(turn.replace(question, ""), answer, [value for _, value in instruction.gaps]),
        on_topic=is_on_topic(question, answer),
        varied=distinct_pairs(answer) >= DISTINCT_PAIRS,
        readable=known_words(answer) >= KNOWN_WORDS,
        plain=is_plain(instruction.form, answer),
        specific=is_specific(turn, answer, stock),
    )


def judge_all(turns: Sequence[str], answers: Sequence[str], finished: Sequence[bool]) -> list[GoldParts]:
    """The judgement of each of a policy's answers beside all of them; arguments as those of `judge`.

    A phrase counts as stock for an answer when answers to STOCK_QUESTIONS other topics have it, too. A topic that shares a word with
    the question's is no other topic: the same question may be put in several ways.
    """
    topics = [topic_of(without_instruction(turn)) for turn in turns]
    topics_of_phrase: dict[tuple[str, ...], set[frozenset[str]]] = defaultdict(set)
    for topic, answer in zip(topics, answers, strict=True):
        for phrase in phrases(answer):
            topics_of_phrase[phrase].add(topic)

    def is_stock(phrase: tuple[str, ...], topic: frozenset[str]) -> bool:
        others = sum(topic.isdisjoint(other) for other in topics_of_phrase[phrase])
        return others >= STOCK_QUESTIONS

    return [
        judge(turn, answer, end, {phrase for phrase in phrases(answer) if is_stock(phrase, topic)})
        for turn, answer, end, topic in zip(turns, answers, finished, topics, strict=True)
    ]


def phrases(text: str) -> set[tuple[str, ...]]:
    """All runs of STOCK_RUN words of a text, in small letters."""
    plain = WORD.findall(text.lower())
    return {tuple(plain[at : at + STOCK_RUN]) for at in range(len(plain) - STOCK_RUN + 1)}


def is_specific(turn: str, answer: str, stock: Collection[tuple[str, ...]]) -> bool:
    """Whether an answer has a word that is neither the user's nor part of a stock phrase."""
    plain, of_user = WORD.findall(answer.lower()), set(WORD.findall(turn.lower()))
    in_stock = {
        at + offset
        for at in range(len(plain) - STOCK_RUN + 1)
        if tuple(plain[at : at + STOCK_RUN]) in stock
        for offset in range(STOCK_RUN)
    }
    return any(at not in in_stock and word not in of_user for at, word in enumerate(plain))


def has_own_words(turn: str, answer: str) -> bool:
    """Whether at least OWN_WORDS of an answer's words are not part of OWN_RUN words in a row of the user's."""
    copied = copied_words(turn, answer, OWN_RUN)
    return len(copied) - sum(copied) >= OWN_WORDS


def asks_again(question: str, answer: str) -> bool:
    """Whether an answer has the first words of its question in it."""
    opening = " ".join(WORD.findall(question.lower())[:OPENING])
    return f" {opening} " in f" {' '.join(WORD.findall(answer.lower()))} "


def quotes(instruction: str, answer: str, required: Sequence[str] = ()) -> bool:
    """Whether an answer repeats four words in a row of an instruction. What it has to say counts as one of them.

    required: the words, phrases, numbers and titles that the instruction asks for. Without them, "Mention the number 54." would be
    two runs that are too short. A title that is asked for is one word, so it is no run by itself.
    """
    for value in filter(None, required):
        asked_for = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)", re.IGNORECASE)
        instruction, answer = asked_for.sub(REQUIRED, instruction), asked_for.sub(REQUIRED, answer)
    return any(copied_words(instruction, answer, QUOTED_RUN))


def is_on_topic(question: str, answer: str) -> bool:
    """Whether an answer has enough of the words that tell what its question is about."""
    topic = topic_of(question)
    return len(topic & topic_of(answer)) >= min(TOPIC_WORDS, len(topic))


def is_plain(form: str, answer: str) -> bool:
    """Whether an answer has no title and no postscript, unless its form is one."""
    titled, with_postscript = "<<" in answer, postscript(answer) < len(answer)
    return (not titled or form in ("title", "this_title")) and (
        not with_postscript or form in ("postscript", "postscript_word")
    )


def topic_of(text: str) -> frozenset[str]:
    """The stems of the words that tell what a text is about."""
    return frozenset(map(_stem, _plain_words(text))) - _common_stems()


def distinct_pairs(text: str) -> float:
    """The share of different pairs of neighbouring words, from 0 to 1; 1 for fewer than two words."""
    plain = [word.lower() for word in words(text)]
    pairs = list(pairwise(plain))
    return len(set(pairs)) / len(pairs) if pairs else 1.0


def known_words(text: str) -> float:
    """The share of a text's words that stand in the bundled samples, from 0 to 1; 0 for none."""
    plain = _plain_words(text)
    return sum(word in _vocabulary() for word in plain) / len(plain) if plain else 0.0


def _plain_words(text: str) -> list[str]:
    return LETTERS.findall(text.lower().replace("’", "'"))


def _stem(word: str) -> str:
    """A word without the endings that its other forms differ in."""
    for ending in ("'s", "ing", "ies", "ied", "es", "ed", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word


@cache
def _common_stems() -> frozenset[str]:
    return frozenset(map(_stem, COMMON))


@cache
def _vocabulary() -> frozenset[str]:
    """The words of the bundled samples that people wrote: the pairs `drawn` are a policy's, with its mistakes."""
    vocabulary: set[str] = set()
    for file in sorted(set(SAMPLES.glob("*.jsonl")) - set(SAMPLES.glob("drawn-*"))):
        for line in file.read_text(encoding="utf-8").splitlines():
            for value in json.loads(line).values():
                if isinstance(value, str):
                    vocabulary.update(_plain_words(value))
    return frozenset(vocabulary)
