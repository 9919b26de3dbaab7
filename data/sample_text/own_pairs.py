"""Pairs of a policy's own answers, judged by a program: the training data of the tutorial's reward model.

The program (data/gold.py) finds the better answer of a pair good. The better answer is the policy's, or a written answer where
the policy has no good answer. The worse answer is mostly another answer of the policy to the same prompt. The other worse
answers have the faults that a policy learns from a weak reward model: the answer repeats its prompt, ends in the middle, belongs
to another question, repeats itself, has a wrong word or number, or has an addition that its prompt does not ask for.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from data.atomic_files import atomic_text_files
from data.drawn_forms import TITLES
from data.forms import Instruction, ended, has_word, instruction_in, sentences, without_instruction
from data.gold import ENDINGS, judge, topic_of
from data.sample_text import drawn, verifiable
from data.sample_text.make_samples import SEED
from data.sample_text.topics import Topic, load_topics
from data.sources import SAMPLES

NOISE = 0.1  # the share of training pairs with exchanged answers
SHARES = {
    "form": 0.17,
    "missing": 0.17,
    "item": 0.12,
    "echo": 0.2,
    "unasked": 0.09,
    "cut": 0.08,
    "off_topic": 0.09,
    "repeated": 0.04,
    "constant": 0.04,
}
"""The probability of each fault of the worse answer. form: an answer of the policy without the requested form; missing: the better
answer without the requested words; item: a wrong word or number; echo: a copy of the prompt, or of a part; unasked: a title, a
postscript or a closing remark without a request; cut: the beginning of the better answer; off_topic: an answer to another question; repeated: the
better answer with repeated sentences; constant: a sentence without content."""
TRIES = 8  # draws of a fault per pair, because not every prompt has an answer with every fault
SHORTEST_CUT = 5  # shorter answers, in words, are not cut
CONSTANTS = (
    "That is a good question, and many people ask it.",
    "It is worth knowing, and it is simple once you know it.",
    "There are many ways to see this, and all of them help.",
)


class PolicyAnswer(NamedTuple):
    """An answer of the policy."""

    text: str
    finished: bool
    """Whether the policy ended the answer before the token limit."""


class Pair(NamedTuple):
    """A prompt's better and worse answer. fault: a key of SHARES."""

    turn: str
    chosen: str
    rejected: str
    fault: str


def own_pairs(
    answers: Mapping[str, Sequence[PolicyAnswer]], written: Mapping[str, str], rng: random.Random, count: int
) -> list[Pair]:
    """At most `count` pairs for each prompt. answers: the policy's answers by the user's turn; written: a written answer by turn.

    Where no answer of the policy is good, the written answer is the better answer, so that the reward model sees every form. An
    honest answer without the requested form is never the better answer of an echo: the reward model would learn that the requested
    word is a fault. A prompt without a good answer has no pair.
    """
    good: dict[str, list[str]] = {}
    for turn, given in answers.items():
        of_policy = [answer.text for answer in given if _is_good(turn, answer)]
        good[turn] = of_policy or [text for text in (written[turn],) if judge(turn, text, True).good]
    elsewhere = [(turn, text) for turn, texts in good.items() for text in texts]
    pairs: list[Pair] = []
    for turn, given in ((turn, given) for turn, given in answers.items() if good[turn]):
        worse = _worse(turn, given, good[turn], elsewhere, rng)
        made: dict[Pair, None] = {}
        for fault in rng.choices([*SHARES], [*SHARES.values()], k=TRIES * count):
            chosen = rng.choice(good[turn])
            rejected = _with_fault(turn, chosen, fault, rng) or (worse[fault].pop() if worse[fault] else "")
            if rejected not in ("", chosen) and (fault == "cut" or not judge(turn, rejected, True).good):
                made[Pair(turn, chosen, rejected, fault)] = None
            if len(made) == count:
                break
        pairs += made
    return pairs


def raw_records(pairs: Iterable[Pair], rng: random.Random, noise: float) -> list[dict[str, str]]:
    """Pairs in HH's raw format, shuffled. noise: the probability of exchanged answers."""
    records = [
        verifiable.raw_pair(pair.turn, pair.chosen, pair.rejected, turned=rng.random() < noise)
        for pair in pairs
    ]
    rng.shuffle(records)
    return records


def prompts_of(split: str) -> dict[str, Topic]:
    """The users' turns of a split (`train` or `test`) with their topics, shuffled with the project's seed."""
    rng = random.Random(f"{SEED} drawn {split}")
    return drawn.prompts(verifiable.splits(load_topics(), random.Random(f"{SEED} forms"))[split], rng)


def write_pairs(answers: Mapping[str, Sequence[PolicyAnswer]], split: str, folder: Path = SAMPLES) -> Path:
    """Write drawn-{split}.jsonl and return its path. answers: the policy's answers by the user's turn.

    A training prompt has at most two pairs, each with exchanged answers with probability NOISE. A held-out prompt has at most a
    single pair, without noise.
    """
    rng = random.Random(f"{SEED} drawn pairs {split}")
    written = {
        turn: drawn.written(topic, turn, instruction_in(turn), random.Random(f"{SEED} {turn}"))
        for turn, topic in prompts_of(split).items()
    }
    count, noise = (2, NOISE) if split == "train" else (1, 0.0)
    path = folder / f"drawn-{split}.jsonl"
    with atomic_text_files(path) as (stream,):
        for record in raw_records(own_pairs(answers, written, rng, count), rng, noise):
            stream.write(json.dumps(record) + "\n")
    return path


def is_turned(turn: str, chosen: str, rejected: str) -> bool:
    """Whether a pair's answers are exchanged, by the program: the chosen answer is not good, or the rejected answer is good."""
    return judge(turn, rejected, ended(rejected)).good or not judge(turn, chosen, True).good


def _with_fault(turn: str, chosen: str, fault: str, rng: random.Random) -> str:
    """The better answer with an added fault. "" for faults that need other answers, and for four tenths of the echoes."""
    if fault == "echo" and (drawn_share := rng.random()) < 0.6:
        # In earlier pairs only bad answers contained the instruction, so the reward model paid for good answers with an echo.
        return f"{chosen} {_request(turn)}" if drawn_share < 0.35 else _with_echo_inside(turn, chosen, rng)
    parts = chosen.split(" ")
    if fault == "cut" and len(parts) >= SHORTEST_CUT:
        return " ".join(parts[: max(2, round(len(parts) * rng.uniform(0.3, 0.85)))]).rstrip(".!?,;:")
    if fault == "repeated":
        return " ".join([chosen, *[rng.choice(sentences(chosen))] * rng.choice((2, 3))])
    return ""


def _worse(
    turn: str,
    given: Sequence[PolicyAnswer],
    good: Sequence[str],
    elsewhere: list[tuple[str, str]],
    rng: random.Random,
) -> dict[str, list[str]]:
    """Worse answers to a prompt by fault, shuffled. good: good answers to the prompt; elsewhere: pairs of a user's turn and a good
    answer, of all prompts."""
    instruction, question = instruction_in(turn), without_instruction(turn)
    request, ((_, item),) = _request(turn), instruction.gaps
    verdicts = [(answer.text, judge(turn, *answer)) for answer in given]
    topic = rng.choice(sorted(topic_of(question)) or [""])
    some = rng.choice(given).text
    same_form = [
        (text, instruction_in(other).gaps[0][1])
        for other, text in elsewhere
        if instruction_in(other).form == instruction.form
        and not topic_of(without_instruction(other)) & topic_of(question)
    ]
    some_of_form = rng.sample(same_form, min(3, len(same_form)))
    worse = {
        "form": [text for text, parts in verdicts if not parts.obeys and parts.own_words],
        "missing": [without_item(text, instruction.form, item) for text in good],
        "item": [
            _with_item(text, item, other) for text in good for _, other in some_of_form if other != item
        ],
        "echo": [
            *(text for text, parts in verdicts if not parts.own_words),
            *(_half_echo(text, request, item) for text, parts in verdicts if parts.own_words and parts.ended),
            *(request, question, turn, f"{topic}: {request}", f"{item}."),
            *(f"{request} {some}", f"{question} {some}"),
        ],
        "unasked": [
            *(text for text, parts in verdicts if not parts.plain),
            *(
                decorated
                for text in good
                for decorated in (
                    f"<<{topic.capitalize()}>>\n{text}",
                    f"<<{rng.choice(TITLES)}>>\n{text}",
                    f"{text} P.S. {rng.choice(sentences(rng.choice(good)))}",
                    *(_with_closing(text, instruction, closing) for closing in rng.sample(ENDINGS, 3)),
                )
            ),
        ],
        "off_topic": [_with_item(text, other, item) for text, other in some_of_form],
        "constant": [
            text
            for constant in CONSTANTS
            for text in (
                _obeying(instruction.form, constant, item),
                f"{item}. {' '.join(sorted(topic_of(question)))}: {constant}",
            )
        ],
    }
    return {fault: rng.sample(worse.get(fault, []), len(worse.get(fault, []))) for fault in SHARES}


def _is_good(turn: str, answer: PolicyAnswer) -> bool:
    return judge(turn, *answer).good and ended(answer.text)


def _request(turn: str) -> str:
    """The instruction in the words of the user's turn."""
    return turn.replace(without_instruction(turn), "").strip()


def _with_item(text: str, item: str, other: str) -> str:
    """The text with `other` in place of the requested word, number or phrase `item`."""
    return text.replace(item, other) if item in text else text.replace(item.capitalize(), other.capitalize())


def without_item(text: str, form: str, item: str) -> str:
    """The text without the requested words or postscript; "" if nothing else is left."""
    if form == "postscript_word":
        return text[: text.find("P.S.")].strip() if "P.S." in text else ""
    if form == "first_word":
        rest = re.sub(rf"^\W*{item}\W*", "", text, flags=re.IGNORECASE)
        return rest[:1].upper() + rest[1:]
    if form == "last_words":
        return text.rstrip('"”').removesuffix(item).strip()
    return " ".join(part for part in sentences(text) if not has_word(part, item))


def _half_echo(text: str, request: str, item: str) -> str:
    """The text without the sentences that have the requested item, and with the instruction at its end."""
    return " ".join([*(part for part in sentences(text) if item.lower() not in part.lower()), request])


def _with_echo_inside(turn: str, text: str, rng: random.Random) -> str:
    """The answer with the instruction inside its first sentence: "To keep a cat cool, use the number 8." """
    first, *others = sentences(text)
    parts = first.split(" ")
    opening = " ".join(parts[: rng.randint(2, max(2, len(parts) // 2))]).rstrip(".!?,;:")
    request = _request(turn)
    echo = f"{opening}{rng.choice((',', ' and'))} {request[:1].lower()}{request[1:]}"
    return " ".join([echo, *others[: rng.randint(0, 1)]])


def _with_closing(text: str, instruction: Instruction, closing: str) -> str:
    """The text with a closing remark at its end, or in front of the requested last words."""
    if instruction.form != "last_words":
        return f"{text} {closing}"
    phrase = instruction.gaps[0][1]
    return " ".join([text.rstrip('"”').removesuffix(phrase).strip(), closing, phrase])


def _obeying(form: str, text: str, item: str) -> str:
    """A sentence without content, in the requested form."""
    return {
        "first_word": f"{item}, {text[0].lower()}{text[1:]}",
        "includes": f"{text} The word is {item}.",
        "last_words": f"{text} {item}",
        "postscript_word": f"{text} P.S. Think of {item}.",
        "this_number": f"{text} I said it {item} times.",
    }[form]
