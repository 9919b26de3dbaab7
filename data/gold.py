"""A program's judgement whether answers to the instructions of data/forms.py are good.

`obeys` alone can be cheated: a repetition of the instruction often has the requested form, and a single constant string obeys
half of the held-out prompts. A good answer obeys and also answers the question, so every part of `GoldParts` must hold.
`judge_all` compares a policy's answers with each other, and so detects an answer that the policy gives to every question.
`python -m benchmarks.cheats` shows the scores of cheats.
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
from data.forms import Instruction, ended, instruction_in, postscript, sentences, without_instruction, words

SAMPLES = Path(__file__).parent / "samples"

OWN_WORDS = 2
"""The least number of words that an answer adds to the user's words. Even the short answer "People landed on the Moon in 1969."
adds enough words."""
OWN_RUN = 3
"""A run of OWN_RUN words from the user's turn counts as copied."""
OPENING = 3
"""An answer that contains the first OPENING words of its question repeats the question."""
QUOTED_RUN = 4
"""An answer that repeats QUOTED_RUN words in a row of its instruction quotes the instruction. No answer needs such a long
repetition."""
REQUIRED = "_"
"""Stands for the words that a prompt requires, in the search for repeated words."""
TOPIC_WORDS = 2
"""Words of the question that an answer on its topic contains. With a single word, a long constant string would often be on
topic."""
DISTINCT_PAIRS = 0.6
"""Least share of different pairs of neighbouring words. An answer that repeats itself has a smaller share."""
KNOWN_WORDS = 0.5
"""Least share of words that the bundled samples contain. The answers of SmolLM2-135M have 0.92 (median)."""
STOCK_RUN = 4
"""A run of STOCK_RUN words is a stock phrase when answers to other questions also contain the run."""
LEAST_STEM = 3
"""The least letters of a topic's stem that is looked for within other words. Shorter stems occur in many words by chance."""
STOCK_QUESTIONS = 2
"""A phrase in the answers to STOCK_QUESTIONS other questions is a stock phrase."""

ENDINGS = (
    "That is all.",
    "I hope this helps.",
    "Thank you for asking.",
    "Now you know.",
    "Good luck with it.",
    "Take your time.",
    "It is worth a try.",
    "Have a good day.",
    "Ask me again soon.",
    "There is more to learn.",
    "Enjoy it.",
    "You can do this.",
    "That is my advice.",
    "Stay curious.",
    "Tell your friends.",
    "Keep it simple.",
    "Let me know how it goes.",
    "I am happy to explain more.",
    "Practice makes perfect.",
    "See you next time.",
    "This works every time.",
    "Good question.",
    "Have fun.",
    "Write it down.",
)
"""Sentences that suit the end of every answer. Prompts of the sample `drawn` request them; without a request they are a fault."""
CLOSING = re.compile(
    r"(?:\bi (?:do |really )?hope (?:this|that|it|these)|\blet me know(?: if| how| when| what| whether|$)|\bfeel free to|^(?:\w+ )?good luck"
    r"|^hope (?:this|that|it|these)|\b(?:thank you|thanks) for (?:asking|your|reading)|\bhappy to (?:help|explain)"
    r"|any (?:other |more |further )?questions|have a (?:good|nice|great) (?:day|time|evening))\b"
)
"""Such sentences in other words."""
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
"""Words that do not show the topic of a question."""


class GoldParts(NamedTuple):
    """The conditions for a good answer."""

    obeys: bool
    """The answer has the form that its prompt requests."""
    ended: bool
    """The policy ended the answer. The token limit did not cut the answer off."""
    own_words: bool
    """The answer has words besides the user's words, not counting a title, and repeats neither the question nor the
    instruction."""
    on_topic: bool
    """The answer has two of the question's topic words, or the only one."""
    varied: bool
    """The answer does not repeat itself."""
    readable: bool
    """Most of the answer's words are English words."""
    plain: bool
    """The answer has no title, no postscript and no closing remark ("I hope this helps.") unless its prompt requests one."""
    specific: bool
    """Some words of the answer are neither the user's words nor part of a stock phrase."""

    @property
    def good(self) -> bool:
        return all(self)


def judge(turn: str, answer: str, finished: bool, stock: Collection[tuple[str, ...]] = ()) -> GoldParts:
    """Judge an answer. Returns the parts of the judgement.

    turn: the user's last turn, a question and its instruction. finished: whether the answer ended with a stop token. stock: the
    `phrases` that the policy also uses for other questions. Raises ValueError for a turn without an
    instruction of data/forms.py.
    """
    instruction = instruction_in(turn)
    if instruction is None:
        raise ValueError(f"the turn contains no instruction of data/forms.py: {turn!r}")
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
        plain=is_plain(instruction, answer),
        specific=is_specific(turn, answer, stock),
    )


def judge_all(turns: Sequence[str], answers: Sequence[str], finished: Sequence[bool]) -> list[GoldParts]:
    """Judge all answers of a policy, with stock phrases from a comparison of the answers. The arguments are lists of the
    arguments of `judge`.

    A phrase is a stock phrase for an answer when answers to STOCK_QUESTIONS other topics also contain the phrase. A topic that
    shares a word with the question's topic does not count as another topic, because the same question may be worded in several
    ways.
    """
    topics = [topic_of(without_instruction(turn)) for turn in turns]
    phrases_of = [phrases(turn, answer) for turn, answer in zip(turns, answers, strict=True)]
    topics_of_phrase: dict[tuple[str, ...], set[frozenset[str]]] = defaultdict(set)
    for topic, own in zip(topics, phrases_of):
        for phrase in own:
            topics_of_phrase[phrase].add(topic)

    def is_stock(phrase: tuple[str, ...], topic: frozenset[str]) -> bool:
        others = sum(topic.isdisjoint(other) for other in topics_of_phrase[phrase])
        return others >= STOCK_QUESTIONS

    return [
        judge(turn, answer, end, {phrase for phrase in own if is_stock(phrase, topic)})
        for turn, answer, end, topic, own in zip(turns, answers, finished, topics, phrases_of, strict=True)
    ]


def fault_of(turn: str, answer: str) -> str:
    """The fault of a worse answer: `echo`, `repeated`, `off_topic`, `unasked`, `form` or `cut`, as in data/sample_text/own_pairs.py."""
    parts = judge(turn, answer, finished=True)
    if not parts.own_words:
        return "echo"
    if not parts.varied:
        return "repeated"
    if not parts.on_topic:
        return "off_topic"
    if not parts.plain:
        return "unasked"
    return "form" if ended(answer) and not parts.obeys else "cut"


def phrases(turn: str, answer: str) -> list[tuple[str, ...]]:
    """The runs of STOCK_RUN words of an answer in lower case: as they are, and again with REQUIRED in place of required words.

    Required are the words of the user's turn, and all words that contain a stem of its topic. Without the second reading, a
    template filled with these words would be another phrase under every question.
    """
    return [run for reading in _readings(turn, answer) for run in _runs(reading)]


def is_specific(turn: str, answer: str, stock: Collection[tuple[str, ...]]) -> bool:
    """Whether an answer has a word that is neither in the user's turn nor part of a stock phrase."""
    plain, of_user = WORD.findall(answer.lower()), set(WORD.findall(turn.lower()))
    in_stock = {
        at + offset
        for reading in _readings(turn, answer)
        for at, run in enumerate(_runs(reading))
        if run in stock
        for offset in range(STOCK_RUN)
    }
    return any(at not in in_stock and word not in of_user for at, word in enumerate(plain))


def _readings(turn: str, answer: str) -> tuple[list[str], list[str]]:
    plain, of_user = WORD.findall(answer.lower()), set(WORD.findall(turn.lower()))
    stems = [stem for stem in topic_of(turn) if len(stem) >= LEAST_STEM]
    required = {word for word in {*plain} if word in of_user or any(stem in word for stem in stems)}
    return plain, [REQUIRED if word in required else word for word in plain]


def _runs(plain: list[str]) -> list[tuple[str, ...]]:
    return [tuple(plain[at : at + STOCK_RUN]) for at in range(len(plain) - STOCK_RUN + 1)]


def has_own_words(turn: str, answer: str) -> bool:
    """Whether an answer has at least OWN_WORDS words outside the runs of OWN_RUN words copied from the user's turn."""
    copied = copied_words(turn, answer, OWN_RUN)
    return len(copied) - sum(copied) >= OWN_WORDS


def asks_again(question: str, answer: str) -> bool:
    """Whether an answer contains the first words of its question. A shorter question, such as "Tea?", is only a topic."""
    opening = WORD.findall(question.lower())[:OPENING]
    return (
        len(opening) == OPENING and f" {' '.join(opening)} " in f" {' '.join(WORD.findall(answer.lower()))} "
    )


def quotes(instruction: str, answer: str, required: Sequence[str] = ()) -> bool:
    """Whether an answer repeats QUOTED_RUN words in a row of an instruction. A required value counts as a single word.

    required: the words, phrases, numbers and titles that the instruction requires. If the values were removed instead, the rest
    of "Mention the number 54." would be too short for a run. If a title counted as several words, the required title alone
    would be a run.
    """
    for value in filter(None, required):
        asked_for = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)", re.IGNORECASE)
        instruction, answer = asked_for.sub(REQUIRED, instruction), asked_for.sub(REQUIRED, answer)
    return any(copied_words(instruction, answer, QUOTED_RUN))


def is_on_topic(question: str, answer: str) -> bool:
    """Whether an answer has enough of its question's topic words."""
    topic = topic_of(question)
    return len(topic & topic_of(answer)) >= min(TOPIC_WORDS, len(topic))


def is_plain(instruction: Instruction, answer: str) -> bool:
    """Whether an answer has no title, no postscript and no closing remark, unless the instruction requests them."""
    form, phrase = instruction.form, dict(instruction.gaps).get("phrase", "")
    with_postscript = form in ("postscript", "postscript_word")
    titled = "<<" in answer and form not in ("title", "this_title")
    after = postscript(answer)
    if titled or (after < len(answer) and not with_postscript):
        return False
    body = answer[:after] if with_postscript else answer.rstrip('"”').removesuffix(phrase)
    return not any(map(is_closing, sentences(body)))


def is_closing(sentence: str) -> bool:
    """Whether a sentence could close any answer, such as "I hope this helps."."""
    plain = " ".join(WORD.findall(sentence.lower()))
    return plain in _endings() or CLOSING.search(plain) is not None


def topic_of(text: str) -> frozenset[str]:
    """The stems of a text's topic words."""
    return frozenset(map(_stem, _plain_words(text))) - _common_stems()


def distinct_pairs(text: str) -> float:
    """The share of different pairs of neighbouring words, from 0 to 1; 1 for fewer than two words."""
    plain = [word.lower() for word in words(text)]
    pairs = list(pairwise(plain))
    return len(set(pairs)) / len(pairs) if pairs else 1.0


def known_words(text: str) -> float:
    """The share of a text's words that occur in the bundled samples, from 0 to 1; 0 for a text without words."""
    plain = _plain_words(text)
    return sum(word in _vocabulary() for word in plain) / len(plain) if plain else 0.0


def _plain_words(text: str) -> list[str]:
    return LETTERS.findall(text.lower().replace("’", "'"))


def _stem(word: str) -> str:
    """A word without an ending that distinguishes its forms."""
    for ending in ("'s", "ing", "ies", "ied", "es", "ed", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word


@cache
def _common_stems() -> frozenset[str]:
    return frozenset(map(_stem, COMMON))


@cache
def _endings() -> frozenset[str]:
    return frozenset(" ".join(WORD.findall(ending.lower())) for ending in ENDINGS)


@cache
def _vocabulary() -> frozenset[str]:
    """The words of the bundled samples. The pairs `drawn` and the judged answers are excluded, because policies wrote them, with
    mistakes."""
    vocabulary: set[str] = set()
    for file in sorted(set(SAMPLES.glob("*.jsonl")) - {*SAMPLES.glob("drawn-*"), *SAMPLES.glob("judged-*")}):
        for line in file.read_text(encoding="utf-8").splitlines():
            for value in json.loads(line).values():
                if isinstance(value, str):
                    vocabulary.update(_plain_words(value))
    return frozenset(vocabulary)
