"""The HH sample: pairs of a friendly, direct answer and a curt, evasive or off-topic answer."""

import random
from collections.abc import Callable
from typing import NamedTuple

from data.sample_text import replies
from data.sample_text.asking import GREETINGS, SITUATIONS, THANKS, phrasings
from data.sample_text.topics import Topic

TEST_TOPICS = 20  # whole topics are held out, so that the test measures generalisation to new topics
TRAIN_PAIRS = 700
TEST_PAIRS = 110
TWO_TURN_SHARE = 0.2
OPENING_SHARE = 0.8
CLOSING_SHARE = 0.35


class Question(NamedTuple):
    """A conversation up to its last question, with the question's topic and answer."""

    history: str  # everything up to the last answer, in the raw HH format
    topic: Topic
    answer: str


def preference_splits(topics: list[Topic], rng: random.Random) -> dict[str, list[dict[str, str]]]:
    """Preference records for train and test. No topic, and therefore no prompt, is in both."""
    shuffled = rng.sample(topics, len(topics))
    test, train = shuffled[:TEST_TOPICS], shuffled[TEST_TOPICS:]
    return {
        "train": _pairs(train, TRAIN_PAIRS, rng),
        "test": _pairs(test, TEST_PAIRS, rng),
    }


def _pairs(topics: list[Topic], count: int, rng: random.Random) -> list[dict[str, str]]:
    """`count` pairs with distinct prompts, spread evenly over the topics."""
    # Each topic has its own order of phrasings, and each phrasing is used at most once per round over the topics.
    orders = {topic: rng.sample(phrasings(topic), 8) for topic in topics}
    records = []
    for number in range(count):
        topic = topics[number % len(topics)]
        phrasing = orders[topic][number // len(topics)]
        question = _question(topic, phrasing, rng)
        others = [other for other in topics if other.area != topic.area]
        chosen = _friendly(question.answer, rng)
        rejected = _unfriendly(question, rng.choice(others), rng)
        records.append({"chosen": question.history + chosen, "rejected": question.history + rejected})
    rng.shuffle(records)
    return records


def _question(topic: Topic, phrasing: str, rng: random.Random) -> Question:
    before = rng.choice((rng.choice(GREETINGS), rng.choice(SITUATIONS[topic.area]), ""))
    history = f"\n\nHuman: {f'{before} {phrasing}'.strip()}\n\nAssistant: "
    if rng.random() >= TWO_TURN_SHARE:
        return Question(history, topic, topic.answer)
    then = f"{rng.choice(THANKS)} {topic.next_question}"
    return Question(f"{history}{topic.answer}\n\nHuman: {then}\n\nAssistant: ", topic, topic.reply)


def _friendly(answer: str, rng: random.Random) -> str:
    opening = rng.choice(replies.OPENINGS) if rng.random() < OPENING_SHARE else ""
    closing = rng.choice(replies.CLOSINGS) if rng.random() < CLOSING_SHARE else ""
    return f"{opening} {answer} {closing}".strip()


def _unfriendly(question: Question, other: Topic, rng: random.Random) -> str:
    kinds: dict[Callable[[Question, Topic, random.Random], str], int] = {
        _curt: 27,
        _evasive: 14,
        _dismissive: 14,
        _rambling: 31,
        _off_topic: 14,
    }
    (write,) = rng.choices(list(kinds), list(kinds.values()))
    return write(question, other, rng)


def _curt(question: Question, other: Topic, rng: random.Random) -> str:
    return " ".join(rng.sample(replies.CURT, rng.choice((1, 2, 2, 3))))


def _evasive(question: Question, other: Topic, rng: random.Random) -> str:
    return " ".join(rng.sample(replies.EVASIVE, rng.choice((1, 2))))


def _dismissive(question: Question, other: Topic, rng: random.Random) -> str:
    return f"{rng.choice(replies.DISMISSIVE).format(clause=question.topic.clause)} {rng.choice(replies.CURT)}"


def _rambling(question: Question, other: Topic, rng: random.Random) -> str:
    ramble = " ".join(rng.choice(replies.RAMBLES)[: rng.choice((3, 4))])
    return ramble.format(
        colour=rng.choice(replies.COLOURS), day=rng.choice(replies.DAYS), number=rng.choice(replies.NUMBERS)
    )


def _off_topic(question: Question, other: Topic, rng: random.Random) -> str:
    """A true answer to another question. One in six answers comes without an announcement."""
    change = rng.choice(replies.CHANGES_OF_SUBJECT) if rng.random() > 1 / 6 else ""
    return f"{change} {other.answer}".strip()
