"""Parser of the notebooks' quizzes. The file `NN.toml` next to this module has the questions of notebook NN:

    title = "SFT"               # of the notebook
    runs = ["sft"]              # the runs that a learner needs to complete the notebook

    [[question]]
    id = "stop-token"           # the key of stored answers: never change an id, even if the text changes
    ask = "What …?"
    right = ["the right choice", "the reason"]
    wrong = [["a wrong choice", "the reason"], …]

Words between backticks are displayed as code.
"""

from __future__ import annotations

import random
import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
FINAL = "final"


@dataclass(frozen=True)
class QuizChoice:
    """An answer choice of a question."""

    place: int
    """The position in the file. Position 0 is the right choice."""
    text: str
    why: str
    """The explanation for learners who choose the answer."""


@dataclass(frozen=True)
class QuizQuestion:
    """A question with its choices in the order of the file: the right choice comes first."""

    id: str
    ask: str
    choices: tuple[QuizChoice, ...]

    def shuffled(self, seed: int) -> list[QuizChoice]:
        """The choices in a random order that depends only on the question and the seed."""
        order = list(self.choices)
        random.Random(f"{self.id} {seed}").shuffle(order)
        return order


@dataclass(frozen=True)
class QuizFile:
    """The questions of a notebook. name: the notebook's number, such as "03" or "04b", or `final`."""

    name: str
    title: str
    runs: tuple[str, ...]
    questions: tuple[QuizQuestion, ...]


def quiz_names() -> list[str]:
    """The names of all quizzes: the notebooks' numbers in order, followed by `final`."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_quiz(name: str) -> QuizFile:
    """Load a quiz by name. Raises ValueError for an unknown name, with a list of all names."""
    if name not in quiz_names():
        raise ValueError(f"there is no quiz {name!r}; there are {', '.join(quiz_names())}")
    return parse_quiz(name, (FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def parse_quiz(name: str, text: str) -> QuizFile:
    """Parse the TOML text of a quiz. Raises ValueError for a malformed text, with the quiz and the question."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"quiz {name}: {error}") from None
    _expect(content.keys() <= {"title", "runs", "question"}, f"quiz {name} has {', '.join(content)}")
    _expect(_is_text(content.get("title")), f"quiz {name} has no title")
    runs, records = content.get("runs", []), content.get("question", [])
    _expect(_is_list_of(str, runs), f"quiz {name}: runs = {runs!r} is no list of texts, such as ['sft']")
    _expect(_is_list_of(dict, records), f"quiz {name}: each question begins with [[question]]")
    questions = tuple(_question(record, f"quiz {name}") for record in records)
    _expect(questions, f"quiz {name} has no questions")
    ids = [question.id for question in questions]
    _expect(len(set(ids)) == len(ids), f"quiz {name} has two questions of one id: {', '.join(ids)}")
    return QuizFile(name, content["title"], tuple(runs), questions)


def _question(record: dict, where: str) -> QuizQuestion:
    where = f"{where}, question {record.get('id')!r}"
    _expect(record.keys() == {"id", "ask", "right", "wrong"}, f"{where} has {', '.join(record)}")
    _expect(_is_text(record["id"]) and _is_text(record["ask"]), f"{where} needs texts as id and ask")
    pairs = [record["right"], *record["wrong"]]
    for pair in pairs:
        good = isinstance(pair, list) and len(pair) == 2 and all(map(_is_text, pair))
        _expect(good, f"{where}: {pair!r} is no [choice, why]")
    _expect(len(pairs) >= 3, f"{where} has fewer than two wrong choices")
    _expect(len({choice for choice, _ in pairs}) == len(pairs), f"{where} has a choice twice")
    choices = tuple(QuizChoice(place, choice, why) for place, (choice, why) in enumerate(pairs))
    return QuizQuestion(record["id"], record["ask"], choices)


def _is_list_of(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _expect(condition: object, what: str) -> None:
    if not condition:
        raise ValueError(what)
