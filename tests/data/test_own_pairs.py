"""Prompts that ask for something drawn for them, and pairs of a policy's own answers: what is worse in each, and why."""

import json
import random
from collections import Counter

import pytest

from aligner_lib.tutorial.comparison.cheats import best_constant, cheating_answers, shares
from benchmarks.cheats import BOUND
from data.forms import has_word, instruction_in
from data.gold import judge
from data.hh import parse_pair
from data.sample_text import drawn
from data.sample_text.own_pairs import (
    NOISE,
    SHARES,
    PolicyAnswer,
    fault_of,
    is_turned,
    own_pairs,
    prompts_of,
    raw_records,
    without_item,
    write_pairs,
)
from data.sample_text.topics import load_topics
from data.sources import SAMPLES

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
        assert set(forms) == set(drawn.ASKED) and max(forms.values()) <= 1.02 * min(forms.values())


def test_a_word_that_is_asked_for_is_of_the_topic_and_not_in_its_question():
    for topic in load_topics():
        words = drawn.asked_words(topic)
        assert len(words) >= 3, topic.clause
        assert not [
            word for word in words if has_word(topic.question, word) or not has_word(topic.text, word)
        ]


READS_ITS_PROMPT = "what was asked for, the topic and a sentence"


def test_every_instruction_is_a_request():
    """Where a number "has to appear in your answer", policies wrote that it does."""
    assert {form: len(drawn.requests(form)) for form in drawn.ASKED} == {
        "first_word": 2,
        "includes": 2,
        "last_words": 2,
        "postscript_word": 4,
        "this_number": 3,
    }
    turns = [*prompts_of("train"), *prompts_of("test"), *(record["instruction"] for record in sft())]
    assert not [
        turn for turn in turns if "has to appear in" in turn or " must " in turn or " should close " in turn
    ]


@pytest.mark.parametrize("name", sorted(cheating_answers([TURN]).keys() - {READS_ITS_PROMPT}))
def test_no_policy_that_does_not_read_its_prompt_is_good(name):
    turns = prompts_of("test")
    assert shares(turns, cheating_answers(turns)[name])["good"].value == 0


def test_what_was_asked_for_before_a_constant_sentence_wins_three_prompts_of_five_alone_and_none_beside_the_others():
    """Three forms of five ask for nothing else."""
    turns = prompts_of("test")
    figures = shares(turns, cheating_answers(turns)[READS_ITS_PROMPT])
    assert figures["good_alone"].value == pytest.approx(0.6, abs=0.01)
    assert figures["good"].value == 0


def test_no_constant_is_good_for_many_prompts():
    turns, candidates = prompts_of("test"), [record["response"] for record in sft()[::8]]
    assert shares(turns, [best_constant(turns, candidates)] * len(turns))["good_alone"].value <= BOUND / 2


# ---- written answers -------------------------------------------------------------------------------------------------


def sft() -> list[dict]:
    return [json.loads(line) for line in (SAMPLES / "drawn-sft.jsonl").read_text().splitlines()]


def test_written_answers_obey_and_nearly_all_are_good():
    asked = [record for record in sft() if record["category"] == "instruction_following"]
    verdicts = [judge(record["instruction"], record["response"], True) for record in asked]
    assert len(asked) == 5 * 140 and all(verdict.obeys for verdict in verdicts)
    assert sum(verdict.good for verdict in verdicts) >= 0.9 * len(verdicts)


# ---- pairs -----------------------------------------------------------------------------------------------------------


def test_the_better_answer_is_good_and_the_worse_one_is_not():
    for pair in pairs():
        assert judge(pair.turn, pair.chosen, True).good
        assert pair.fault == "cut" or not judge(pair.turn, pair.rejected, True).good, pair


def test_every_fault_occurs_and_a_program_sees_it():
    found = {pair.fault: fault_of(pair.turn, pair.rejected) for pair in pairs() if pair.turn == TURN}
    assert found.keys() == SHARES.keys()
    seen_as_themselves = ("form", "echo", "off_topic", "repeated", "cut", "unasked")
    assert all(found[fault] == fault for fault in seen_as_themselves), found
    assert found["constant"] == "off_topic" and found["item"] == found["missing"] == "form"


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
    "finished, text", [(True, HONEST), (False, GOOD)], ids=["of another form", "cut by the limit"]
)
def test_where_the_policy_has_no_good_answer_a_written_one_is_the_better(finished, text):
    few = own_pairs({TURN: [PolicyAnswer(text, finished)]}, {TURN: WRITTEN}, random.Random(0), 60)
    assert {pair.chosen for pair in few} == {WRITTEN}
    assert {pair.fault for pair in few} >= {"echo", "cut", "repeated", "constant"}


def test_a_prompt_without_any_good_answer_gets_no_pair():
    assert own_pairs({TURN: [PolicyAnswer(HONEST, True)]}, {TURN: HONEST}, random.Random(0), 60) == []


def test_an_instruction_is_repeated_in_place_of_what_it_asks_for():
    """A reward model that never saw this pays for the words of the instruction."""
    repeated = {pair.rejected for pair in pairs() if pair.turn == TURN and pair.fault == "echo"}
    assert f'{HONEST} Use the word "damp".' in repeated


def test_a_better_answer_is_worse_with_its_instruction_behind_it():
    """Where only answers without what was asked for ended so, PPO's policies put the instruction behind their best answers."""
    echoes = {(pair.chosen, pair.rejected) for pair in pairs() if pair.turn == TURN}
    assert (GOOD, f'{GOOD} Use the word "damp".') in echoes


def test_noise_turns_so_many_pairs_round():
    some = pairs()
    good = [record["chosen"].endswith(GOOD) for record in raw_records(some, random.Random(1), 0.25)]
    of_turn = [pair.chosen == GOOD for pair in some]
    assert 0.6 < sum(good) / sum(of_turn) < 0.9


def test_the_file_is_in_hh_s_raw_format_with_one_pair_for_each_held_out_prompt(tmp_path):
    path = write_pairs(ANSWERS, "test", tmp_path)
    read = [parse_pair(json.loads(line)) for line in path.read_text().splitlines()]
    assert path.name == "drawn-test.jsonl"
    assert sorted(pair.chosen.prompt for pair in read) == sorted(
        f"User: {turn}\n\nAssistant:" for turn in ANSWERS
    )


# ---- the bundled pairs -----------------------------------------------------------------------------------------------


def bundled(split: str) -> list[tuple[str, str, str]]:
    records = [json.loads(line) for line in (SAMPLES / f"drawn-{split}.jsonl").read_text().splitlines()]
    cut = [
        [record[side].rpartition("\n\nAssistant: ") for side in ("chosen", "rejected")] for record in records
    ]
    return [(chosen[0].rpartition("Human: ")[2], chosen[2], rejected[2]) for chosen, rejected in cut]


def test_bundled_pairs_ask_the_prompts_of_their_split():
    for split in ("train", "test"):
        assert {turn for turn, *_ in bundled(split)} <= set(prompts_of(split))
    held_out = bundled("test")
    assert len({turn for turn, *_ in held_out}) == len(held_out) >= 300


def test_no_held_out_label_is_turned_and_a_tenth_of_the_others_is():
    held_out, training = ([is_turned(*pair) for pair in bundled(split)] for split in ("test", "train"))
    assert not any(held_out)
    assert abs(sum(training) / len(training) - NOISE) < 0.05


def test_what_a_prompt_asks_for_is_no_fault():
    """Of each form, more of the better answers than of the worse ones do as they are asked."""
    for form in drawn.ASKED:
        asked = [pair for pair in bundled("train") if instruction_in(pair[0]).form == form]
        better, worse = (
            sum(judge(turn, sides[side], True).obeys for turn, *sides in asked) / len(asked)
            for side in (0, 1)
        )
        assert better > 0.9 and worse < 0.65, form


def test_bundled_faults_are_mixed():
    faults = Counter(fault_of(turn, rejected) for turn, _, rejected in bundled("test"))
    assert min(faults[fault] for fault in ("form", "echo", "cut", "off_topic", "repeated")) >= 5
