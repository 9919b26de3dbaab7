"""Questions with known answers, as OpenMathInstruct and GSM8K have them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from aligner_lib.rollouts.environments.base import Environment, Message, Step
from aligner_lib.rollouts.environments.prompt_files import read_split

QUESTION_KEYS = ("question", "problem")
ANSWER_KEYS = ("expected_answer", "answer")
NUMBER = re.compile(r"[-+]?\d{1,40}(?:\.\d{1,40})?")
FRACTION = re.compile(r"([-+]?)\\[dt]?frac\{(\d{1,40})\}\{(\d{1,40})\}|([-+]?\d{1,40})/(\d{1,40})")
IN_TEXT = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


@dataclass(frozen=True)
class Pair:
    """A question and its final answer."""

    prompt: str
    answer: str


class Answers(Environment):
    """Questions of a jsonl file, {"question" or "problem", "expected_answer" or "answer"}, and 1 for the right answer.

    prompts: FILE, of which `held_out` is the validation split's, or {train: FILE, validation: FILE}. `instruction` follows
    the question in its turn. The answer of a response is what `final_answer` finds in it, and right when `same_answer` as
    the file's; that may stand in `\\boxed{}` or behind `####`.
    """

    def __init__(self, split: str = "train", *, prompts: Any, held_out: float = 0.2, instruction: str = ""):
        super().__init__(split)
        self.pairs = read_split(prompts, split, held_out, _parse)
        self.size = len(self.pairs)
        self.instruction = instruction

    def reset(self, seed: int) -> list[Message]:
        self.pair = self.pairs[seed % self.size]
        parts = [self.pair.prompt, self.instruction]
        return [{"role": "user", "content": "\n\n".join(filter(None, parts))}]

    def step(self, response: str) -> Step:
        right = float(same_answer(final_answer(response), self.pair.answer))
        marked = float(_marked(response) is not None)
        return Step(right, metrics={"right": right, "marked": marked})


def final_answer(text: str) -> str:
    """What a text gives as its answer: the last `\\boxed{…}`, else what stands behind the last `####`, else behind the last
    "answer is", else the last number, else the whole text."""
    marked = _marked(text)
    if marked is not None:
        return marked
    numbers = IN_TEXT.findall(text)
    return numbers[-1] if numbers else text.strip()


def same_answer(one: str, other: str) -> bool:
    """Equal as numbers (1,000 and $1000.0, 1/2 and 0.5), or as texts without regard to case and white space."""
    numbers = number(one), number(other)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return _bare(one) == _bare(other) != ""


def number(text: str) -> Fraction | None:
    """The number that a text is, exactly; None where it is none, or has over forty digits."""
    bare = _bare(text).replace(",", "").replace("\\%", "").rstrip("%")
    if NUMBER.fullmatch(bare):
        return Fraction(bare)
    if found := FRACTION.fullmatch(bare):
        sign, above, below, plain_above, plain_below = found.groups()
        above, below = (f"{sign}{above}", below) if above else (plain_above, plain_below)
        return Fraction(int(above), int(below)) if int(below) else None
    return None


def _marked(text: str) -> str | None:
    """The answer that a text marks as one; None where there is no mark."""
    if (boxed := _boxed(text)) is not None:
        return boxed
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0].strip()
    said = re.findall(r"answer is:?\s*([^\n]+)", text, re.IGNORECASE)
    return said[-1].strip().rstrip(".") if said else None


def _boxed(text: str) -> str | None:
    """What the last `\\boxed{…}` that is closed holds, brackets within it included."""
    for found in reversed(list(re.finditer(r"\\boxed\s*\{", text))):
        depth = 1
        for at in range(found.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                return text[found.end() : at].strip()
    return None


def _bare(text: str) -> str:
    """An answer without what is around it: dollars, white space, a full stop, upper case."""
    return re.sub(r"\s+", "", text.replace("\\$", "").replace("$", "")).strip().rstrip(".").casefold()


def _parse(value: dict[str, Any]) -> Pair:
    question, answer = (_one_of(value, keys) for keys in (QUESTION_KEYS, ANSWER_KEYS))
    marked = _marked(answer)
    return Pair(question, answer.strip() if marked is None else marked)


def _one_of(value: dict[str, Any], keys: tuple[str, str]) -> str:
    for key in keys:
        if key in value:
            text = str(value[key]) if isinstance(value[key], int | float) else value[key]
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"{key!r} is no text, or empty")
            return text
    raise ValueError(f"it has neither {keys[0]!r} nor {keys[1]!r}")
