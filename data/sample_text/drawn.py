"""Questions with an instruction drawn for the prompt, and answers that obey the instruction: a word of the topic, a number,
first words and last words. No constant answer obeys all instructions, so a policy has to read its prompt."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence

from data.drawn_forms import ASKED, NUMBERS, OPENERS, requests
from data.forms import Instruction, has_word, words
from data.gold import ENDINGS, judge, topic_of
from data.sample_text.asking import phrasings
from data.sample_text.topics import Topic
from data.sample_text.verifiable import (
    LONGEST,
    lower_first,
    prompt_of,
    sentences_of,
    some_of,
)

EACH_FORM = 3  # prompts of each form for a topic
LEAST_LETTERS = 4  # of a required word
WITH_NUMBER = (
    "{a} You can say it in {n} seconds.",
    "{a} That is fact number {n} on my list.",
    "{a} I have told this to {n} people.",
    "Here is tip number {n}. {a}",
    "On page {n} of my notes it says this: {a}",
    "{a} {b} It took me {n} minutes to learn this.",
)


def prompts(topics: list[Topic], rng: random.Random) -> dict[str, Topic]:
    """Users' turns with their topics, shuffled: each form three times for each topic."""
    turns: dict[str, Topic] = {}
    for topic in topics:
        questions = rng.sample(phrasings(topic), 8)
        for number, form in enumerate(rng.sample(ASKED * EACH_FORM, EACH_FORM * len(ASKED))):
            turns[_prompt(questions[number % len(questions)], _instruction(form, topic, rng), rng)] = topic
    return dict(rng.sample([*turns.items()], len(turns)))


def obeying(topic: Topic, rng: random.Random) -> Iterator[tuple[str, str]]:
    """A prompt and an obeying answer, for each form."""
    questions = rng.sample(phrasings(topic), 8)
    for question, form in zip(questions, rng.sample(ASKED, len(ASKED))):
        instruction = _instruction(form, topic, rng)
        prompt = _prompt(question, instruction, rng)
        yield prompt, written(topic, prompt, instruction, rng)


def _prompt(question: str, instruction: Instruction, rng: random.Random) -> str:
    return prompt_of(question, instruction, rng, requests(instruction.form))


def _instruction(form: str, topic: Topic, rng: random.Random) -> Instruction:
    ((gap, values),) = choices(topic)[form].items()
    return Instruction(form, ((gap, rng.choice(values)),))


def choices(topic: Topic) -> dict[str, dict[str, Sequence[str]]]:
    """The values of each form's gap. Words come from the topic's own sentences, and are not in its question."""
    own = sorted(asked_words(topic))
    return {
        "first_word": {"word": OPENERS},
        "includes": {"word": own},
        "last_words": {"phrase": ENDINGS},
        "postscript_word": {"word": own},
        "this_number": {"n": [str(number) for number in NUMBERS]},
    }


def asked_words(topic: Topic) -> set[str]:
    """Words from exactly one of a topic's sentences, suitable for an answer and missing in the question."""
    words_of_question = topic_of(f"{topic.question} {topic.clause}")
    return {
        word
        for word in re.findall(r"(?<![\w'-])[a-z]+(?![\w'-])", topic.text)
        if len(word) >= LEAST_LETTERS and topic_of(word) and not topic_of(word) & words_of_question
        if sum(has_word(text, word) for text in (topic.answer, topic.reply, topic.more)) == 1
    }


def written(topic: Topic, prompt: str, instruction: Instruction, rng: random.Random) -> str:
    """An answer with a good judgement of data/gold.py, if the topic's sentences have enough of the question's words. Otherwise
    an answer that only obeys."""
    texts = (WRITERS[instruction.form](topic, rng, **dict(instruction.gaps)) for _ in range(1000))
    obeying = (text for text in texts if instruction.holds(text) and len(words(text)) <= LONGEST)
    first, *others = itertools.islice(obeying, 20)
    return next((text for text in [first, *others] if judge(prompt, text, finished=True).good), first)


def _with_word(topic: Topic, rng: random.Random, word: str) -> str:
    """One to three of the topic's sentences, including a sentence with the word."""
    sentences = sentences_of(topic, rng)
    while not has_word(text := " ".join(sentences[: rng.choice((1, 1, 2, 3))]), word):
        rng.shuffle(sentences)
    return text


def _first_word(topic: Topic, rng: random.Random, word: str) -> str:
    return f"{word}{rng.choice((',', ':'))} {lower_first(some_of(topic, rng, 1, 2))}"


def _with_number(topic: Topic, rng: random.Random, n: str) -> str:
    first, second, _ = sentences_of(topic, rng)
    return rng.choice(WITH_NUMBER).format(a=first, b=second, n=n)


def _postscript(topic: Topic, rng: random.Random, word: str) -> str:
    last = next(text for text in sentences_of(topic, rng) if has_word(text, word))
    first = rng.choice([text for text in sentences_of(topic, rng) if text != last])
    return f"{first} P.S. {last}"


WRITERS: dict[str, Callable[..., str]] = {
    "first_word": _first_word,
    "includes": _with_word,
    "last_words": lambda topic, rng, phrase: f"{some_of(topic, rng, 1, 2)} {phrase}",
    "postscript_word": _postscript,
    "this_number": _with_number,
}
