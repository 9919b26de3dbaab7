"""Problems of arithmetic in words. The stories of the validation split do not occur in training, and neither do their numbers."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import NamedTuple

from aligner_lib.rollouts.environments.calculator import calculate, shown

STORIES = {
    "train": {
        "plus": (
            "Tom has {a} marbles and finds {b} more. How many marbles does he have now?",
            "A library buys {a} books in May and {b} books in June. How many books does it buy in total?",
            "A train carries {a} people, and {b} people get on. How many people are on the train?",
            "A baker sells {a} rolls before noon and {b} rolls after noon. How many rolls is that together?",
        ),
        "minus": (
            "A shop has {a} apples and sells {b} of them. How many apples are left?",
            "Mia had {a} coins and gave away {b}. How many coins does she still have?",
            "A tank holds {a} litres, and {b} litres leak out. How many litres remain?",
            "A hall has {a} seats, and {b} seats are taken. How many seats are free?",
        ),
        "times": (
            "There are {a} boxes with {b} eggs in each. How many eggs are there?",
            "A field has {a} rows of {b} trees. How many trees does it have?",
            "A machine makes {b} parts an hour. How many parts does it make in {a} hours?",
            "Each of {a} pupils reads {b} pages. How many pages do they read together?",
        ),
    },
    "validation": {
        "plus": (
            "A farm has {a} hens and buys {b} hens. How many hens does the farm have then?",
            "Ann walks {a} steps, then {b} steps more. How many steps does she walk in all?",
        ),
        "minus": (
            "A book has {a} pages, and Leo has read {b}. How many pages are left to read?",
            "A tree had {a} leaves and lost {b}. How many leaves are still on it?",
        ),
        "times": (
            "There are {a} buses with {b} children in each. How many children travel?",
            "A wall has {a} rows of {b} bricks. How many bricks does the wall have?",
        ),
    },
}
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
SIZES = {"train": 480, "validation": 96}


class Story(NamedTuple):
    """A problem in words."""

    prompt: str
    answer: str
    operation: str
    """plus, minus or times: as often as each other."""
    expression: str
    """The expression whose value is the answer."""


def stories(split: str) -> list[Story]:
    """The problems of a split, always the same. Numbers have three digits, and one factor of a product has two.

    The numbers of the splits differ: the sum of both numbers is even in training and odd in validation.
    """
    random, operations = Random(f"stories/{split}"), tuple(SIGNS)
    return [_story(random, split, operations[number % len(operations)]) for number in range(SIZES[split])]


def _story(random: Random, split: str, operation: str) -> Story:
    a, b = _numbers(random, split, operation)
    expression = f"{a} {SIGNS[operation]} {b}"
    prompt = random.choice(STORIES[split][operation]).format(a=a, b=b)
    return Story(prompt, shown(calculate(expression)), operation, expression)


def _numbers(random: Random, split: str, operation: str) -> tuple[int, int]:
    """Two numbers, of which the first is the larger one for a difference."""
    lowest, highest = (12, 99) if operation == "times" else (100, 999)
    while True:
        a, b = random.randint(lowest, highest), random.randint(100, 999)
        if operation == "minus":
            a, b = max(a, b), min(a, b)
        if a != b and (a + b) % 2 == (split == "validation"):
            return a, b


def write_stories(folder: Path) -> dict[str, str]:
    """Write stories_train.jsonl and stories_validation.jsonl, and return the files by split."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {split: folder / f"stories_{split}.jsonl" for split in SIZES}
    for split, file in files.items():
        file.write_text("".join(json.dumps(story._asdict()) + "\n" for story in stories(split)))
    return {split: str(file) for split, file in files.items()}
