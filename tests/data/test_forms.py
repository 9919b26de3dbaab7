"""Instructions that a program checks: read back from any prompt, obeyed by hand-made answers and missed by others."""

import json
from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.forms import FORMS, Instruction, instruction_in, obeys, words
from data.hh import parse_pair
from data.sample_text import verifiable
from data.sample_text.topics import load_topics
from data.sources import SAMPLES

# An answer that obeys, and one that only looks so.
BY_HAND = {
    ("sentences", "two sentences"): ("Cats purr. Dogs bark.", "Cats purr. Dogs bark"),
    ("fewer_words", "12"): ("Cats purr when they feel well.", "Cats purr mostly when they feel content but also when they are hurt."),
    ("more_words", "25"): (" ".join(["word"] * 25), " ".join(["word"] * 24)),
    ("question",): ("Cats purr. Do you like cats?", "Do you like cats? They purr."),
    ("first_word", "Well"): ("well, cats purr.", "Wellness is good."),
    ("list", "two"): ("**Pets**\n- Cats purr.\n- Dogs bark.", "- Cats purr.\n-\n- Dogs bark.\n- Cows moo."),
    ("includes", "fact"): ("That is a FACT.", "Factories are large."),
    ("number",): ("There are 2 cats.", "There are two cats."),
    ("exclamation",): ("Cats purr!", "Cats purr! They do."),
    ("lower_case",): ("cats purr.", "cats purr in Rome."),
    ("capitals",): ("CATS PURR IN 3 WAYS.", "CATS PURR. Yes."),
    ("no_comma",): ("Cats purr and dogs bark.", "Cats purr, dogs bark."),
    ("quotes",): ('"Cats purr."', '"Cats" purr.'),
    ("last_words", "That is all."): ("Cats purr. That is all.", "That is all. Cats purr."),
    ("postscript",): ("Cats purr.\n**P.S.** “So do kittens.”", "Cats travel by U.P.S. trucks."),
    ("title",): ("<<Cats>>\nThey purr.", "<< >> Cats purr."),
    ("this_number", "7"): ("Cats purr 7 times.", "Cats purr 17 times, or 7.5 times."),
    ("postscript_word", "kittens"): ("Cats purr. P.S. So do kittens.", "Kittens purr. P.S. So do cats."),
    ("this_title", "In short"): ("<<In short>>\nCats purr.", "<<Cats>>\nIn short, they purr."),
}  # fmt: skip


def instruction(key: tuple[str, ...]) -> Instruction:
    form, *values = key
    return Instruction(form, tuple(zip(dict(FORMS[form].gaps), values, strict=True)))


@pytest.mark.parametrize("key", BY_HAND, ids="-".join)
def test_an_answer_holds_its_instruction(key):
    good, bad = BY_HAND[key]
    assert instruction(key).holds(good) and not instruction(key).holds(bad)
    assert not instruction(key).holds("  ")
    assert {form for form, *_ in BY_HAND} == set(FORMS), "every form is tried"


@st.composite
def instructions(draw) -> Instruction:
    form = draw(st.sampled_from(sorted(FORMS)))
    gaps = {
        name: draw(st.from_regex(gap, fullmatch=True) if isinstance(gap, str) else st.sampled_from(gap))
        for name, gap in dict(FORMS[form].gaps).items()
    }
    return Instruction(form, tuple(sorted(gaps.items())))


@given(instructions(), st.sampled_from(load_topics()), st.booleans(), st.data())
def test_an_instruction_is_read_back_from_its_prompt(instruction, topic, is_first, data):
    wording = instruction.worded(data.draw(st.sampled_from(FORMS[instruction.form].wordings)))
    text = f"{wording} {topic.question}" if is_first else f"{topic.question} {wording}"
    earlier_turns = "User: Hi! Use no capital letters.\n\nAssistant: hello.\n\n" if is_first else ""
    assert instruction_in(f"{earlier_turns}User: {text}\n\nAssistant:") == instruction


def test_a_prompt_without_an_instruction_is_refused():
    assert instruction_in("User: Why do cats purr?\n\nAssistant:") is None
    with pytest.raises(ValueError, match=r"the prompt contains no instruction of data/forms\.py"):
        obeys("User: Why do cats purr?\n\nAssistant:", "Because.")


# ---- the bundled pairs -----------------------------------------------------------------------------------------------


@cache
def pairs(split: str) -> list:
    lines = (SAMPLES / f"forms-{split}.jsonl").read_text().splitlines()
    return [parse_pair(json.loads(line)) for line in lines]


def gold(pair) -> tuple[bool, ...]:
    return tuple(obeys(side.prompt, side.response) for side in (pair.chosen, pair.rejected))


def test_exactly_one_answer_obeys_and_the_test_labels_say_which():
    assert {gold(pair) for pair in pairs("test")} == {(True, False)}
    train = [gold(pair) for pair in pairs("train")]
    assert set(train) == {(True, False), (False, True)}
    turned = sum(chosen == (False, True) for chosen in train) / len(train)
    assert abs(turned - verifiable.NOISE) < 0.03


def test_splits_are_disjoint():
    train, test = pairs("train"), pairs("test")
    prompts = [{pair.chosen.prompt for pair in split} for split in (train, test)]
    assert [*map(len, prompts)] == [len(train), len(test)] and not prompts[0] & prompts[1]
    answers = [{side.response for pair in split for side in pair} for split in (train, test)]
    assert not answers[0] & answers[1]


def test_what_is_better_cannot_be_seen_from_the_answer_alone():
    """Every form's answers are chosen about as often as they are rejected."""
    train = pairs("train")
    longer = sum(len(words(pair.chosen.response)) > len(words(pair.rejected.response)) for pair in train)
    assert 0.35 < longer / len(train) < 0.6
    marks = {"ends in ?": lambda text: text.endswith("?"), "in quotes": lambda text: text[0] == '"',
             "a list": lambda text: text.startswith("- "), "a title": lambda text: text.startswith("<<"),
             "capitals": str.isupper, "small letters": str.islower}  # fmt: skip
    for name, has in marks.items():
        counts = Counter(side for pair in train for side, answer in enumerate(pair) if has(answer.response))
        assert 0.4 < counts[0] / sum(counts.values()) < 0.75, (name, counts)
