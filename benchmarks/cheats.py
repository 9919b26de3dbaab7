"""`python -m benchmarks.cheats`: the scores of cheating policies from the program that judges the bundled forms.

The cheats are: the repeated instruction, the question, the whole prompt, the instruction with a topic word, a constant sentence
after the question, after the topic, or after the requested details and the topic, a template filled with the topic, shuffled
words, shuffled good answers, the best answer of the training pairs for every prompt, and a searched constant. The search adds
sentences to the constant as long as the constant wins more prompts. Duration: five minutes.

    --sample forms    forms, or drawn: prompts with an instruction drawn for each prompt
    --words 60        the longest constant; the laptop profile's answers end at about 40 words
    --sentences 1000  how many candidates the search adds: the sentences that win most prompts alone
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

from aligner_lib.tutorial.comparison.cheats import (
    best_constant,
    cheating_answers,
    fitted_answers,
    good_count,
    shares,
)
from benchmarks.options import documented_parser
from data.forms import sentences, words

SAMPLES = Path(__file__).parents[1] / "data" / "samples"
BOUND = 0.05


def pairs(split: str, sample: str = "forms") -> list[tuple[str, str, str]]:
    """Turn, chosen and rejected answer of each bundled pair."""
    records = map(json.loads, (SAMPLES / f"{sample}-{split}.jsonl").read_text(encoding="utf-8").splitlines())
    cut = [
        [record[side].rpartition("\n\nAssistant: ") for side in ("chosen", "rejected")] for record in records
    ]
    return [(chosen[0].rpartition("Human: ")[2], chosen[2], rejected[2]) for chosen, rejected in cut]


def searched_constant(turns: list[str], answers: list[str], most_words: int, count: int) -> str:
    """A constant answer, composed greedily of sentences from other answers."""
    wins = cache(lambda answer: good_count(turns, answer))
    pool = sorted({part for answer in answers for part in sentences(answer)}, key=wins, reverse=True)[:count]
    best = ""
    for start in pool[:3]:
        constant = start
        while True:
            longer = [text for part in pool for text in (f"{constant} {part}", f"{part} {constant}")]
            further = max((text for text in longer if len(words(text)) <= most_words), key=wins, default="")
            if not further or wins(further) <= wins(constant):
                break
            constant = further
        best = max(best, constant, key=wins)
    return best


def main(arguments: list[str] | None = None) -> None:
    parser = documented_parser("cheats", __doc__)
    parser.add_argument("--sample", choices=("forms", "drawn"), default="forms")
    parser.add_argument("--words", type=int, default=60)
    parser.add_argument("--sentences", type=int, default=1000)
    options = parser.parse_args(arguments)
    test, train = pairs("test", options.sample), pairs("train", options.sample)
    turns = [turn for turn, _, _ in test]
    candidates = [answer for _, *both in train for answer in both]
    shuffled = [chosen for _, chosen, _ in test]
    random.Random(0).shuffle(shuffled)
    policies = {
        **cheating_answers(turns),
        **fitted_answers(turns),
        "shuffled good answers": shuffled,
        "best constant": [best_constant(turns, candidates)] * len(turns),
        "searched constant": [searched_constant(turns, candidates, options.words, options.sentences)]
        * len(turns),
        "chosen answers": [chosen for _, chosen, _ in test],
        "rejected answers": [rejected for *_, rejected in test],
    }
    for name, answers in policies.items():
        figures = shares(turns, answers)
        good, alone = figures.pop("good").value, figures.pop("good_alone").value
        parts = "  ".join(f"{part} {value:.3f}" for part, value in figures.items())
        over = "" if good <= BOUND or name.startswith("chosen") else f"  above {BOUND}"
        print(f"{name:44} good {good:.3f}  alone {alone:.3f}  {parts}{over}")
    for name in ("best constant", "searched constant"):
        print(f"{name}: {policies[name][0]!r}")


if __name__ == "__main__":
    main()
