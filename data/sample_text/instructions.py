"""The Dolly sample: instruction records in the raw Dolly format."""

import random
from collections.abc import Iterator

from data.sample_text import brainstorming, classification, extraction
from data.sample_text.asking import phrasings
from data.sample_text.creative import PIECES
from data.sample_text.replies import OPENINGS
from data.sample_text.topics import Topic

CLOSED_QUESTIONS = 100
SUMMARIES = 40
CLASSIFICATIONS = 56
EXTRACTIONS = 48
# A few answers are friendly, because PPO can only strengthen behaviour that the SFT model sometimes shows.
FRIENDLY_SHARE = 0.12

SUMMARY_ASKS = (
    "Sum up this text in a sentence or two.",
    "What is the main point of this text?",
    "Give a short summary of the text.",
)


def instruction_records(
    topics: list[Topic], rng: random.Random, friendly_share: float = FRIENDLY_SHARE
) -> list[dict[str, str]]:
    """All instruction records, shuffled. No instruction appears twice with the same context."""
    records = [
        *_open_questions(topics, rng, friendly_share),
        *_closed_questions(rng.sample(topics, CLOSED_QUESTIONS)),
        *_summaries(rng.sample(topics, SUMMARIES), rng),
        *_brainstorming(rng),
        *_classification(rng),
        *_extraction(rng),
        *(_record("creative_writing", ask, text) for ask, text in PIECES),
    ]
    rng.shuffle(records)
    return records


def _record(category: str, instruction: str, response: str, context: str = "") -> dict[str, str]:
    return {"instruction": instruction, "context": context, "response": response, "category": category}


def _open_questions(
    topics: list[Topic], rng: random.Random, friendly_share: float
) -> Iterator[dict[str, str]]:
    for topic in topics:
        category = "open_qa" if topic.task is None else "general_qa"
        short, long = rng.sample(phrasings(topic), 2)
        for ask, answer in ((short, topic.answer), (long, f"{topic.answer} {topic.reply}")):
            opening = f"{rng.choice(OPENINGS)} " if rng.random() < friendly_share else ""
            yield _record(category, ask, opening + answer)


def _closed_questions(topics: list[Topic]) -> Iterator[dict[str, str]]:
    for topic in topics:
        yield _record("closed_qa", topic.next_question, topic.reply, topic.text)


def _summaries(topics: list[Topic], rng: random.Random) -> Iterator[dict[str, str]]:
    for topic in topics:
        summary = f"The text explains {topic.clause}. {topic.answer}"
        if topic.task is not None:  # the answer already says "To …"
            summary = f"The text explains {topic.clause}: {topic.answer.removeprefix(f'To {topic.task}, ')}"
        yield _record("summarization", rng.choice(SUMMARY_ASKS), summary, topic.text)


def _brainstorming(rng: random.Random) -> Iterator[dict[str, str]]:
    for theme, ideas in brainstorming.IDEAS.items():
        mixed = rng.sample(ideas, 6)
        for ask, (first, second, third) in zip(
            rng.sample(brainstorming.ASKS, 2), (mixed[:3], mixed[3:]), strict=True
        ):
            answer = f"Three ideas for {theme} are {first}, {second}, and {third}."
            yield _record("brainstorming", ask.format(theme=theme), answer)


def _classification(rng: random.Random) -> Iterator[dict[str, str]]:
    seen = set()
    while len(seen) < CLASSIFICATIONS:
        table = rng.choice(classification.TABLES)
        members = [(rng.choice(members), name) for name, members in table.classes.items()]
        picked = tuple(rng.sample(members, 3))
        if frozenset(picked) in seen:
            continue
        seen.add(frozenset(picked))
        items = ", ".join(member for member, _ in picked)
        first, second, third = (f"{member} is {name}" for member, name in picked)
        answer = f"{first[0].upper()}{first[1:]}, {second}, and {third}."
        ask = table.ask.replace("? {items}", f"? {items[0].upper()}{items[1:]}").format(items=items)
        yield _record("classification", ask, answer)


def _extraction(rng: random.Random) -> Iterator[dict[str, str]]:
    seen = set()
    while len(seen) < EXTRACTIONS:
        notice = rng.choice(extraction.NOTICES)
        question, answer = rng.choice(notice.questions)
        gaps = {
            "day": rng.choice(extraction.DAYS),
            "hour": rng.choice(extraction.HOURS),
            "number": rng.choice(extraction.NUMBERS),
            "month": rng.choice(extraction.MONTHS),
        }
        context = notice.context.format(**gaps)
        if (question, context) in seen:
            continue
        seen.add((question, context))
        yield _record("information_extraction", question, answer.format(**gaps), context)
