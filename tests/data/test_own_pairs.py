"""Prompts that ask for something drawn for them, and pairs of a policy's own answers: what is worse in each, and why."""

import json
import random
from collections import Counter
from functools import cache

import pytest

from aligner_lib.tutorial.comparison.cheats import best_constant, cheating_answers, shares
from benchmarks.cheats import BOUND
from benchmarks.cheats import pairs as pairs_of_sample
from data.drawn_forms import ASKED
from data.forms import has_word, instruction_in
from data.gold import fault_of, judge
from data.hh import parse_pair
from data.sample_text import drawn
from data.sample_text.own_pairs import (
    NOISE,
    SHARES,
    PolicyAnswer,
    is_turned,
    own_pairs,
    raw_records,
    without_item,
    write_pairs,
)
from data.sample_text.own_pairs import prompts_of as all_prompts_of
from data.sample_text.topics import load_topics
from data.sources import SAMPLES

prompts_of = cache(all_prompts_of)
TURN = 'How do I sow carrots? Use the word "damp".'
OTHER = 'Why do cats purr? Use the word "content".'
GOOD = "To sow carrots, scatter the seeds thinly in the row. Keep the soil damp."
WRITTEN = "Sow carrots thinly and cover them with damp soil."
HONEST = "To sow carrots, scatter the seeds thinly in loose soil."
ANSWERS = {
    TURN: [PolicyAnswer(GOOD, True), PolicyAnswer(HONEST, True)],
    OTHER: [PolicyAnswer("Cats purr when they feel content, or to calm themselves.", True)],
}


def pairs(count: int = 200) -> list:
    return own_pairs(ANSWERS, {TURN: WRITTEN, OTHER: HONEST}, random.Random(0), count)


# ---- prompts ---------------------------------------------------------------------------------------------------------


def test_prompts_of_train_and_test_have_topics_of_their_own_and_each_form():
    train, test = prompts_of("train"), prompts_of("test")
    assert len(set(train)) == len(train) and len(set(test)) == len(test) == 329
    assert not set(train) & set(test)
    for turns in (train, test):
        forms = Counter(instruction_in(turn).form for turn in turns)
        assert set(forms) == set(ASKED) and max(forms.values()) <= 1.02 * min(forms.values())


def test_a_word_that_is_asked_for_is_of_the_topic_and_not_in_its_question():
    for topic in load_topics():
        words = drawn.asked_words(topic)
        assert len(words) >= 3, topic.clause
        assert not any(has_word(topic.question, word) or not has_word(topic.text, word) for word in words)


def test_every_instruction_is_a_request():
    """Where a number "has to appear in your answer", policies wrote that it does."""
    turns = [*prompts_of("train"), *prompts_of("test"), *(record["instruction"] for record in sft())]
    demands = (" must ", "has to appear in", " should close ")
    assert not [turn for turn in turns if any(demand in turn for demand in demands)]


def test_no_policy_that_does_not_read_its_prompt_is_good():
    """What was asked for before a constant sentence is good alone for three forms of five, which ask for nothing else."""
    turns = prompts_of("test")
    for name, answers in cheating_answers(turns).items():
        figures = shares(turns, answers)
        assert figures["good"].value == 0, name
        if name == "what was asked for, the topic and a sentence":
            assert figures["good_alone"].value == pytest.approx(0.6, abs=0.01)


def test_no_constant_is_good_for_many_prompts():
    turns, candidates = prompts_of("test"), [record["response"] for record in sft()[::8]]
    assert shares(turns, [best_constant(turns, candidates)] * len(turns))["good_alone"].value <= BOUND / 2


# ---- written answers -------------------------------------------------------------------------------------------------


def sft() -> list[dict]:
    return [json.loads(line) for line in (SAMPLES / "drawn-sft.jsonl").read_text().splitlines()]


def test_written_answers_obey_and_nearly_all_are_good():
    records = [record for record in sft() if record["category"] == "instruction_following"]
    verdicts = [judge(record["instruction"], record["response"], True) for record in records]
    assert len(records) == 5 * 140 and all(verdict.obeys for verdict in verdicts)
    assert sum(verdict.good for verdict in verdicts) >= 0.9 * len(verdicts)


# ---- pairs -----------------------------------------------------------------------------------------------------------


def test_the_better_answer_is_good_and_the_worse_one_is_not():
    for pair in pairs():
        assert judge(pair.turn, pair.chosen, True).good
        assert pair.fault == "cut" or not judge(pair.turn, pair.rejected, True).good, pair


def test_every_fault_occurs_and_a_program_sees_it():
    seen = {pair.fault: fault_of(pair.turn, pair.rejected) for pair in pairs() if pair.turn == TURN}
    assert seen.keys() == SHARES.keys()
    others = {"constant": "off_topic", "item": "form", "missing": "form"}
    assert seen == {fault: others.get(fault, fault) for fault in seen}


@pytest.mark.parametrize(
    ("form", "item", "text", "rest"),
    [
        ("first_word", "Well", "Well, sow thinly.", "Sow thinly."),
        ("last_words", "Good luck.", "Sow thinly. Good luck.", "Sow thinly."),
        ("postscript_word", "damp", "Sow thinly. P.S. Keep it damp.", "Sow thinly."),
        ("this_number", "7", "Sow thinly. Wait 7 days. Wait 17 more.", "Sow thinly. Wait 17 more."),
        ("includes", "damp", "Keep it damp.", ""),
    ],
)
def test_what_was_asked_for_can_be_left_out(form, item, text, rest):
    assert without_item(text, form, item) == rest


@pytest.mark.parametrize(
    ("finished", "text"), [(True, HONEST), (False, GOOD)], ids=["of another form", "cut by the limit"]
)
def test_where_the_policy_has_no_good_answer_a_good_written_one_is_the_better(finished, text):
    few = own_pairs({TURN: [PolicyAnswer(text, finished)]}, {TURN: WRITTEN}, random.Random(0), 60)
    assert {pair.chosen for pair in few} == {WRITTEN}
    assert {pair.fault for pair in few} >= {"echo", "cut", "repeated", "constant"}
    assert own_pairs({TURN: [PolicyAnswer(text, finished)]}, {TURN: HONEST}, random.Random(0), 60) == []


def test_an_instruction_is_repeated_in_place_of_what_it_asks_for_and_behind_a_better_answer():
    """A reward model that never saw the first pays for the words of the instruction; without the second, PPO's policies put the
    instruction behind their best answers."""
    of_turn = [pair for pair in pairs() if pair.turn == TURN]
    echo = 'Use the word "damp".'
    assert f"{HONEST} {echo}" in {pair.rejected for pair in of_turn if pair.fault == "echo"}
    assert (GOOD, f"{GOOD} {echo}") in {(pair.chosen, pair.rejected) for pair in of_turn}


def test_noise_turns_so_many_pairs_round():
    as_drawn = pairs()
    good = [record["chosen"].endswith(GOOD) for record in raw_records(as_drawn, random.Random(1), 0.25)]
    assert 0.6 < sum(good) / sum(pair.chosen == GOOD for pair in as_drawn) < 0.9


def test_the_file_is_in_hh_s_raw_format_with_one_pair_for_each_held_out_prompt(tmp_path):
    path = write_pairs(ANSWERS, "test", tmp_path)
    prompts = [parse_pair(json.loads(line)).chosen.prompt for line in path.read_text().splitlines()]
    assert path.name == "drawn-test.jsonl"
    assert sorted(prompts) == sorted(f"User: {turn}\n\nAssistant:" for turn in ANSWERS)


# ---- the bundled pairs -----------------------------------------------------------------------------------------------


def bundled(split: str) -> list[tuple[str, str, str]]:
    return pairs_of_sample(split, "drawn")


def test_bundled_pairs_ask_the_prompts_of_their_split():
    for split in ("train", "test"):
        assert {turn for turn, *_ in bundled(split)} <= set(prompts_of(split))
    held_out = bundled("test")
    assert len({turn for turn, *_ in held_out}) == len(held_out) >= 300


def test_no_held_out_label_is_turned_and_a_tenth_of_the_others_is():
    held_out, training = ([is_turned(*pair) for pair in bundled(split)] for split in ("test", "train"))
    assert not any(held_out)
    assert abs(sum(training) / len(training) - NOISE) < 0.05
