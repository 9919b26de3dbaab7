"""Questions with an instruction for a program to check, and answers that obey or disobey the instruction.

Every answer consists of the topic's own true sentences. Most rejected answers obey another instruction, and the same functions
write them and the chosen answers. Therefore neither a single word nor the length of an answer shows which answer is better.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from data.forms import FORMS, Instruction, instruction_in, words
from data.sample_text.asking import phrasings
from data.sample_text.instructions import instruction_records
from data.sample_text.topics import Topic

ASKED = sorted(FORMS.keys() - {"this_number", "postscript_word", "this_title"})
TEST_TOPICS = 22  # whole topics are held out
FORMS_A_TOPIC = 12  # forms for each topic, and so pairs and prompts for each topic
NOISE = 0.15  # share of the training pairs whose label is flipped; the labels of the test file are a program's verdicts
OTHER_FORM, NEAR_MISS = 0.6, 0.15  # shares of the rejected answers; the rest are plain answers
CANDIDATES = 4  # the rejected answer is the candidate whose length is nearest to the chosen answer's length
INSTRUCTION_FIRST = 0.15
SFT_FORMS_A_TOPIC = 6  # answers that obey, for SFT
SFT_OTHERS = 280  # additional records without an instruction
LONGEST = 56  # words of an answer

OPENERS = ("Well", "Sure", "Honestly", "First", "Yes", "Clearly", "Briefly")
INCLUDED = (
    "because",
    "important",
    "example",
    "people",
    "usually",
    "remember",
    "simple",
    "today",
    "fact",
    "always",
)
ENDINGS = ("That is all.", "I hope this helps.", "Thank you for asking.", "Now you know.", "Good luck with it.")  # fmt: skip
DRAWN_FROM = {"first_word": OPENERS, "includes": INCLUDED, "last_words": ENDINGS}

WITH_WORD = {
    "because": ("{a} {b} People ask because it is useful to know.", "{a} It is worth knowing because {c}"),
    "important": ("It is important to know this. {a}", "{a} That is the important part."),
    "example": ("{a} {b} That is one example.", "Here is an example of what to know. {a}"),
    "people": ("Many people ask this. {a}", "{a} Most people find that helpful."),
    "usually": ("{a} That is how it usually is.", "This is usually the answer. {a}"),
    "remember": ("{a} Remember this too. {b}", "Here is something to remember. {a}"),
    "simple": ("The answer is simple. {a}", "{a} It is as simple as that."),
    "today": ("{a} You have learnt something today.", "Here is what we know today. {a} {b}"),
    "fact": ("{a} That is a fact.", "Here is a useful fact. {a}"),
    "always": ("{a} It is always good to know.", "It has always been a good question. {a}"),
}
WITH_NUMBER = (
    "Here are 2 things to know. {a} {b}",
    "{a} That is 1 of 3 things to know.",
    "In 1 sentence: {a}",
    "{a} You can say it in 10 seconds.",
)
QUESTIONS = (
    "{next}", "Shall I tell you more?", "Did you know that?", "Does that help you?", "What else would you like to know?",
)  # fmt: skip
REMARKS = ("Ask me again whenever you like.", "There is more to say.", "I like this question.")
ENDED = ("Isn't that interesting!", "That is good to know!")


class Compared(NamedTuple):
    """A pair: the prompt, an answer that obeys, and an answer that does not."""

    prompt: str
    chosen: str
    rejected: str


def splits(topics: list[Topic], rng: random.Random) -> dict[str, list[Topic]]:
    """Whole topics for training and test."""
    mixed = rng.sample(topics, len(topics))
    return {"test": mixed[:TEST_TOPICS], "train": mixed[TEST_TOPICS:]}


def preference_records(topics: list[Topic], rng: random.Random, noise: float = 0.0) -> list[dict[str, str]]:
    """Pairs in HH's raw format, with distinct prompts. noise: share of the pairs with a flipped label."""
    records = []
    for topic in topics:
        questions = rng.sample(phrasings(topic), 8)
        for number, form in enumerate(rng.sample(ASKED, FORMS_A_TOPIC)):
            pair = _pair(topic, questions[number % len(questions)], form, rng)
            records.append(raw_pair(*pair, turned=rng.random() < noise))
    rng.shuffle(records)
    return records


def raw_pair(prompt: str, chosen: str, rejected: str, turned: bool) -> dict[str, str]:
    """A pair in HH's raw format. turned: flip the label."""
    history = f"\n\nHuman: {prompt}\n\nAssistant: "
    sides = [history + chosen, history + rejected]
    return dict(zip(("chosen", "rejected"), reversed(sides) if turned else sides, strict=True))


def sft_records(
    topics: list[Topic],
    rng: random.Random,
    obeying: Callable[[Topic, random.Random], Iterator[tuple[str, str]]] | None = None,
) -> list[dict[str, str]]:
    """Records in Dolly's raw format, shuffled: questions with an instruction and an obeying answer, and records without an
    instruction, so that the model continues to answer prompts without an instruction.

    obeying: yields prompts and answers on a topic; None: prompts and answers of all ASKED forms.
    """
    obedient = [
        {"instruction": prompt, "context": "", "response": answer, "category": "instruction_following"}
        for topic in topics
        for prompt, answer in (obeying or _obeying)(topic, rng)
    ]
    others = [record for record in instruction_records(topics, rng, friendly_share=0)]
    records = obedient + rng.sample(others, SFT_OTHERS)
    rng.shuffle(records)
    return records


def _obeying(topic: Topic, rng: random.Random) -> Iterator[tuple[str, str]]:
    questions = rng.sample(phrasings(topic), 8)
    for number, form in enumerate(rng.sample(ASKED, SFT_FORMS_A_TOPIC)):
        instruction = _instruction(form, rng)
        prompt = prompt_of(questions[number], instruction, rng)
        yield prompt, written(topic, instruction, rng)


def _pair(topic: Topic, question: str, form: str, rng: random.Random) -> Compared:
    instruction = _instruction(form, rng)
    prompt = prompt_of(question, instruction, rng)
    chosen = written(topic, instruction, rng)
    kind = rng.random()
    others = [_missing(topic, instruction, kind, rng) for _ in range(CANDIDATES)]
    rejected = min(others, key=lambda text: abs(len(text) - len(chosen)))
    return Compared(prompt, chosen, rejected)


def _instruction(form: str, rng: random.Random) -> Instruction:
    gaps = {name: rng.choice(DRAWN_FROM.get(form, values)) for name, values in dict(FORMS[form].gaps).items()}
    return Instruction(form, tuple(sorted(gaps.items())))


def prompt_of(
    question: str, instruction: Instruction, rng: random.Random, wordings: Sequence[str] | None = None
) -> str:
    """A user's turn. wordings: the wordings to choose from; None: all wordings of the form."""
    wording = instruction.worded(rng.choice(wordings or FORMS[instruction.form].wordings))
    text = f"{wording} {question}" if rng.random() < INSTRUCTION_FIRST else f"{question} {wording}"
    assert instruction_in(text) == instruction, text
    return text


def _missing(topic: Topic, instruction: Instruction, kind: float, rng: random.Random) -> str:
    """An answer that does not obey: an answer to another instruction, to the same form with other gaps, or to no
    instruction."""
    for _ in range(200):
        if kind < OTHER_FORM:
            text = written(topic, _instruction(rng.choice(ASKED), rng), rng)
        elif kind < OTHER_FORM + NEAR_MISS and dict(FORMS[instruction.form].gaps):
            text = written(topic, _instruction(instruction.form, rng), rng)
        else:
            text = plain(topic, rng)
        if not instruction.holds(text):
            return text
    return _missing(topic, instruction, 0.0, rng)  # every plain answer on this topic obeys


def plain(topic: Topic, rng: random.Random) -> str:
    """One to three sentences on the topic, as an answer without any instruction."""
    return " ".join(sentences_of(topic, rng)[: rng.choice((1, 1, 2, 2, 3))])


def written(topic: Topic, instruction: Instruction, rng: random.Random) -> str:
    """An answer that obeys the instruction."""
    gaps = dict(instruction.gaps)
    for _ in range(200):
        text = WRITERS[instruction.form](topic, rng, **gaps)
        if instruction.holds(text) and len(words(text)) <= LONGEST:
            return text
    raise AssertionError(f"no answer on {topic.clause!r} obeys {instruction}")


# ---- writers of answers that obey ------------------------------------------------------------------------------------


def sentences_of(topic: Topic, rng: random.Random) -> list[str]:
    """The topic's three sentences. The answer to the question is mostly the first sentence."""
    rest = rng.sample([topic.reply, topic.more], 2)
    return [topic.answer, *rest] if rng.random() < 0.8 else [rest[0], topic.answer, rest[1]]


def some_of(topic: Topic, rng: random.Random, *counts: int) -> str:
    return " ".join(sentences_of(topic, rng)[: rng.choice(counts)])


def lower_first(sentence: str) -> str:
    first, _, rest = sentence.partition(" ")
    common = first in (
        "A",
        "An",
        "The",
        "To",
        "It",
        "In",
        "Most",
        "Many",
        "Some",
        "There",
        "They",
        "You",
        "If",
        "For",
    )
    return f"{first.lower()} {rest}" if common else sentence


def _filled(template: str, topic: Topic, rng: random.Random) -> str:
    first, second, third = sentences_of(topic, rng)
    return template.format(a=first, b=second, c=lower_first(third), next=topic.next_question)


def _title(topic: Topic) -> str:
    name = " ".join(words(topic.clause)[:5])
    return f"<<{name[0].upper()}{name[1:]}>>"


def _sentence_count(topic: Topic, rng: random.Random, n: str) -> str:
    return " ".join(sentences_of(topic, rng)[: ("one", "two", "three").index(n.split()[0]) + 1])


def _short(topic: Topic, rng: random.Random, n: str) -> str:
    fitting = [text for text in sentences_of(topic, rng) if len(words(text)) < int(n)]
    if fitting:
        return fitting[0]
    start = " ".join(topic.answer.rstrip(".").split()[: int(n) - 1 - rng.randrange(3)])
    return f"{start.rstrip(',;:')}."


def _long(topic: Topic, rng: random.Random, n: str) -> str:
    text = " ".join(sentences_of(topic, rng)[: rng.choice((2, 3))])
    return text if len(words(text)) >= int(n) else f"{text} {rng.choice(REMARKS)}"


def _first_word(topic: Topic, rng: random.Random, word: str) -> str:
    text = some_of(topic, rng, 1, 2)
    mark = rng.choice((",", ":")) if word != "Yes" else ","
    return f"{word}{mark} {lower_first(text)}"


def _listed(topic: Topic, rng: random.Random, n: str) -> str:
    count = ("one", "two", "three").index(n) + 1
    return "\n".join(f"- {text}" for text in sentences_of(topic, rng)[:count])


def _no_comma(topic: Topic, rng: random.Random) -> str:
    return some_of(topic, rng, 1, 2, 3).replace(",", "")


WRITERS: dict[str, Callable[..., str]] = {
    "sentences": _sentence_count,
    "fewer_words": _short,
    "more_words": _long,
    "question": lambda topic, rng: (
        f"{some_of(topic, rng, 1, 2)} {_filled(rng.choice(QUESTIONS), topic, rng)}"
    ),
    "first_word": _first_word,
    "list": _listed,
    "includes": lambda topic, rng, word: _filled(rng.choice(WITH_WORD[word]), topic, rng),
    "number": lambda topic, rng: _filled(rng.choice(WITH_NUMBER), topic, rng),
    "exclamation": lambda topic, rng: rng.choice(
        (f"{some_of(topic, rng, 1, 2)[:-1]}!", f"{some_of(topic, rng, 1, 2)} {rng.choice(ENDED)}")
    ),
    "lower_case": lambda topic, rng: some_of(topic, rng, 1, 2, 2, 3).lower(),
    "capitals": lambda topic, rng: some_of(topic, rng, 1, 1, 2).upper(),
    "no_comma": _no_comma,
    "quotes": lambda topic, rng: f'"{some_of(topic, rng, 1, 2, 2)}"',
    "last_words": lambda topic, rng, phrase: f"{some_of(topic, rng, 1, 2)} {phrase}",
    "postscript": lambda topic, rng: " P.S. ".join(sentences_of(topic, rng)[:2]),
    "title": lambda topic, rng: f"{_title(topic)}\n{some_of(topic, rng, 1, 2)}",
}
