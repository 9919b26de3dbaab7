"""Simple rules on pairs that can be checked by eye."""

import json

import pytest

from aligner_lib.tutorial.comparison.baselines import (
    NaiveBayes,
    TextPair,
    accuracy,
    best_rules,
    naive_bayes,
    text_pairs,
)

PAIRS = [
    TextPair("Why do cats purr?", "Cats purr gladly.", "No idea, go away."),
    TextPair("Why do dogs bark?", "Dogs bark gladly.", "No idea."),
]


def test_accuracy_counts_a_tie_half():
    assert accuracy(lambda prompt, answer: len(answer), PAIRS) == (0.5 + 1) / 2  # 17 and 17, 17 and 8 letters
    assert len(PAIRS[0].chosen) == len(PAIRS[0].rejected) == 17


def test_naive_bayes_by_hand():
    score = naive_bayes(PAIRS)
    # "gladly" stands in both chosen answers and in no rejected one: log (2 + 1) / (0 + 1)
    assert score("", "gladly") == pytest.approx(1.0986, abs=1e-4)
    assert score("", "idea gladly") == pytest.approx(0.0)
    assert score("", "unknown") == 0.0
    assert NaiveBayes({"a": 1e16, "b": 1.0, "c": -1e16})("", "a b c") == 1.0  # in any order of the words


def test_a_rule_is_turned_where_the_training_pairs_say_so():
    shorter = [TextPair("?", "a.", "a long one."), TextPair("?", "b.", "another long one.")]
    assert best_rules(shorter, shorter)["length of the answer"] == 1.0
    assert best_rules(shorter, [TextPair("?", "a long one.", "a.")])["length of the answer"] == 0.0
    assert best_rules(PAIRS, PAIRS) == {
        "naive Bayes on the answer's words": 1.0,
        "length of the answer": 0.75,
        "overlap with the question": 1.0,
        "the answer ends": 0.5,
    }


def test_pairs_of_a_formatted_file(tmp_path):
    start = "User: Hi.\n\nAssistant: Hello.\n\nUser: Why?\n\nAssistant:"
    file = tmp_path / "comparisons.jsonl"
    file.write_text("\n".join(json.dumps({"text": f"{start} {answer}"}) for answer in ("Because.", "No.")))
    assert text_pairs(file) == [TextPair(start, "Because.", "No.")]
