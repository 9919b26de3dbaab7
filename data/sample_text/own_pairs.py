"""Pairs of a policy's own answers, judged by a program: what the reward model of the forms is trained on.

The better answer of a pair is good by the word of data/gold.py: the policy's, or a written one where the policy has no good
answer. The worse one is mostly another answer of the policy to the same prompt. The others have the faults that a policy finds
when it is rewarded: it repeats its prompt, stops in the middle, answers another question, repeats itself, has another word
or number than the one that was asked for, or a title, which is never asked for.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from data.atomic_files import atomic_text_files
from data.forms import ended, has_word, instruction_in, sentences, without_instruction
from data.gold import judge, topic_of
from data.sample_text import drawn, verifiable
from data.sample_text.make_samples import SEED
from data.sample_text.topics import Topic, load_topics
from data.sources import SAMPLES

NOISE = 0.1  # share of the training pairs whose label is turned
SHARES = {
    "form": 0.19,
    "missing": 0.18,
    "item": 0.12,
    "echo": 0.2,
    "unasked": 0.06,
    "cut": 0.08,
    "off_topic": 0.09,
    "repeated": 0.04,
    "constant": 0.04,
}
"""How often each fault of the worse answer is drawn: another form, the better answer without what the prompt asks for, another word
or number than the one that the prompt asks for, an echo of the prompt, a title or a postscript that the prompt does not ask for, a cut answer, one to another question, one
that repeats itself, one that says nothing."""
TRIES = 8  # for each pair: not every prompt has an answer with every fault
SHORTEST_CUT = 5  # words of an answer that is cut
CONSTANTS = (
    "That is a good question, and many people ask it.",
    "It is worth knowing, and it is simple once you know it.",
    "There are many ways to see this, and all of them help.",
)


class PolicyAnswer(NamedTuple):
    """An answer of the policy."""

    text: str
    finished: bool
    """The policy ended it; the limit of tokens did not."""


class Pair(NamedTuple):
    """A prompt's better and worse answer, and the fault of the worse one, a key of SHARES."""

    turn: str
    chosen: str
    rejected: str
    fault: str


def own_pairs(
    answers: Mapping[str, Sequence[PolicyAnswer]], written: Mapping[str, str], rng: random.Random, count: int
) -> list[Pair]:
    """At most `count` pairs for each prompt. answers: the policy's, by the user's turn; written: another answer to each turn.

    A policy that never does what a prompt asks for still has to learn it from pairs: there the written answer is the better one.
    An honest answer without the form would not do beside an echo of the prompt: a reward model would learn that the word, number
    or phrase that was asked for is a fault. A prompt without any good answer gets no pair.
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
    """Pairs in HH's raw format, shuffled. noise: the share of pairs that are turned round."""
    records = [
        verifiable.raw_pair(pair.turn, pair.chosen, pair.rejected, turned=rng.random() < noise)
        for pair in pairs
    ]
    rng.shuffle(records)
    return records


def prompts_of(split: str) -> dict[str, Topic]:
    """The users' turns that the policy answers, with their topics, those of `train` or of `test`, in an order of their own."""
    rng = random.Random(f"{SEED} drawn {split}")
    return drawn.prompts(verifiable.splits(load_topics(), random.Random(f"{SEED} forms"))[split], rng)


def write_pairs(answers: Mapping[str, Sequence[PolicyAnswer]], split: str, folder: Path = SAMPLES) -> Path:
    """Write drawn-{split}.jsonl and return its path. answers: the policy's, by the user's turn.

    A training prompt gets up to two pairs, of which a tenth is turned round; a held-out prompt gets one that is not.
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


def fault_of(turn: str, rejected: str) -> str:
    """The fault of a pair's worse answer, as far as a program sees it: a key of SHARES but `missing`, `item` and `constant`."""
    parts = judge(turn, rejected, finished=True)
    if not parts.own_words:
        return "echo"
    if not parts.varied:
        return "repeated"
    if not parts.on_topic:
        return "off_topic"
    if not parts.plain:
        return "unasked"
    return "form" if ended(rejected) and not parts.obeys else "cut"


def is_turned(turn: str, chosen: str, rejected: str) -> bool:
    """Whether a program would exchange the answers of a pair: the better one of a pair is good, and the worse one is not."""
    return judge(turn, rejected, ended(rejected)).good or not judge(turn, chosen, True).good


def _with_fault(turn: str, chosen: str, fault: str, rng: random.Random) -> str:
    """An answer with a fault that any answer can be given; "" for the others, and for half of the echoes."""
    if fault == "echo" and rng.random() < 0.5:
        return f"{chosen} {_asked(turn)}"  # where only bad answers end so, a policy's good ones do
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
    """Worse answers to a prompt, by their fault. good: good answers to it; elsewhere: good ones to all prompts, each with its
    user's turn."""
    instruction, question = instruction_in(turn), without_instruction(turn)
    asked, ((_, item),) = _asked(turn), instruction.gaps
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
            *(_half_echo(text, asked, item) for text, parts in verdicts if parts.own_words and parts.ended),
            *(asked, question, turn, f"{topic}: {asked}", f"{item}."),
            *(f"{asked} {some}", f"{question} {some}"),
        ],
        "unasked": [
            *(text for text, parts in verdicts if not parts.plain),
            *(
                decorated
                for text in good
                for decorated in (
                    f"<<{topic.capitalize()}>>\n{text}",
                    f"<<{rng.choice(drawn.TITLES)}>>\n{text}",
                    f"{text} P.S. {rng.choice(sentences(rng.choice(good)))}",
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


def _asked(turn: str) -> str:
    """The instruction as a user's turn words it."""
    return turn.replace(without_instruction(turn), "").strip()


def _with_item(text: str, item: str, other: str) -> str:
    """A text that has another word, number or phrase in place of the one that it was asked for."""
    return text.replace(item, other) if item in text else text.replace(item.capitalize(), other.capitalize())


def without_item(text: str, form: str, item: str) -> str:
    """A text without the words or the postscript that it was asked for; "" where nothing else is left."""
    if form == "postscript_word":
        return text[: text.find("P.S.")].strip() if "P.S." in text else ""
    if form == "first_word":
        rest = re.sub(rf"^\W*{item}\W*", "", text, flags=re.IGNORECASE)
        return rest[:1].upper() + rest[1:]
    if form == "last_words":
        return text.rstrip('"”').removesuffix(item).strip()
    return " ".join(part for part in sentences(text) if not has_word(part, item))


def _half_echo(text: str, asked: str, item: str) -> str:
    """An answer that repeats its instruction where it should have done what this asks for."""
    return " ".join([*(part for part in sentences(text) if item.lower() not in part.lower()), asked])


def _obeying(form: str, text: str, item: str) -> str:
    """A text that says nothing, in the form that was asked for."""
    return {
        "first_word": f"{item}, {text[0].lower()}{text[1:]}",
        "includes": f"{text} The word is {item}.",
        "last_words": f"{text} {item}",
        "postscript_word": f"{text} P.S. Think of {item}.",
        "this_number": f"{text} I said it {item} times.",
    }[form]
