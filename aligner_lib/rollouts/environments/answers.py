"""Questions with known answers, in the format of OpenMathInstruct and GSM8K."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from aligner_lib.datasets.json_lines import text_of
from aligner_lib.rollouts.environments.base import Environment, Message, Step
from aligner_lib.rollouts.environments.prompt_files import read_split

QUESTION_KEYS = ("question", "problem")
ANSWER_KEYS = ("expected_answer", "answer")
NUMBER = re.compile(r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:e[-+]?\d{1,2})?")
FRACTION = re.compile(
    r"([-+]?)(?:\\[dt]?frac(?:\{([-+]?\d{1,40})\}\{(\d{1,40})\}|(\d)(\d))|(?:(\d{1,40})\s+)?(\d{1,40})/(\d{1,40}))"
)
IN_TEXT = re.compile(
    r"""
    (?:(?<![^\W_])(?<!\))[-+−])?[$€£¥]?(?:  # a minus after a digit, a letter or a bracket is a hyphen or an operator
        \\[dt]?frac(?:\{[-+]?\d+\}\{\d+\}|\d\d)
        | \d+\ \d+/\d+  # 3 1/2
        | (?:\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,2}(?!\w)|/\d+)?
        | \.\d+
    )""",
    re.VERBOSE,
)
THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{2,3})*,\d{3}(?!,?\d)")
CURRENCIES = re.compile(r"\\?\$|[€£¥]")
# a unit after the number in \boxed{}: LaTeX, or a single word that does not change the number
UNIT = re.compile(
    r"""
    \\(?:text|mathrm)\s*\{[^{}]*\}(?:\^\d|\^\{-?\d\})?
    | \\[ ,;!] | \^\\circ | \^\{\\circ\}
    | (?<!\s)\s+(?!(?i:dozens?|score|tens|hundreds?|thousands?|lakhs?|crores?|\w+illions?|hal(?:f|ves)|quarters?|thirds?|fourths?
        |fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?|thousandths?|squared|cubed|factorial|negative|plus|minus
        |times)\b)(?:[^\W\d_]{3,}|[mckd]m|[km]g|ml|kW|Hz|ft|in|lb|oz|hr|[mghls])  # 5 x and 5 ab are products
        (?:/[^\W\d_]+)?(?:\^\d|\^\{-?\d\})?\.?\s*$""",
    re.VERBOSE,
)
LATEX_FUNCTION = re.compile(r"\\(?!text|[dt]?frac(?:\{[-+]?\d+\}|\d\d)|boxed)[a-z]+|\\[dt]?frac\{[^}]*\\")
# Beside the last number of a marked line. Two asterisks may be emphasis, so only those between two operands are an operator.
OPERATOR_BEFORE = re.compile(
    r"(?:[\^/×·+√]|[\d)]\s*(?:[-−–x]|\*{1,2})|(?<![^\W_])[a-z]\*|\b(?:negative|minus))\s*$|\d:$",
    re.IGNORECASE,
)
OPERATOR_AFTER = re.compile(r"\s*(?:[\^×·]|(?:[/+]|\*{1,2})\s*[\d(])|[xyzπ]\b", re.IGNORECASE)
LATEX_TEXT = re.compile(r"\\(?:text|textbf|mathrm)\s*\{([^{}]*)\}")
BRACKET = re.compile(r"(?:\\boxed\s*)?\{|\}")
LETTER = re.compile(r"\((\w)\)")  # of a choice


@dataclass(frozen=True)
class QuestionAnswer:
    """A question and its final answer."""

    prompt: str
    answer: str


class Answers(Environment):
    """Questions of a jsonl file, {"question" or "problem", "expected_answer" or "answer"}. The reward of a right answer is 1.

    prompts: FILE, of which the share `held_out` is for validation, or {train: FILE, validation: FILE}. `instruction` follows
    the question in the user's turn. `is_right` compares a response with the file's answer, which `\\boxed{}` or `####` may
    mark.
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
        right = float(is_right(response, self.pair.answer))
        marked = float(_marked(_after_reasoning(response)) is not None)
        return Step(right, metrics={"right": right, "marked": marked})


def is_right(response: str, answer: str) -> bool:
    """Whether the final answer of a response is right.

    When the right answer is a number, words, units and emphasis around the numbers are ignored. The last number of the marked
    line counts, unless it is a part of an expression, such as 2^5 or "minus 5"; when the marked line has no number, the last
    number of the whole response counts. The flexible extract of EleutherAI's lm-evaluation-harness also takes the last number. In
    `\\boxed{}`, only a unit and a left side ("x =") may surround the number. Reasoning before `</think>` is left out.
    """
    response = _after_reasoning(response)
    if number(answer) is None and number(bare := _without_unit(answer)) is not None:
        answer = bare
    final = final_answer(response)
    if same_answer(final, answer) or same_answer(_marked_line(response) or "", answer):
        return True
    if number(answer) is None or number(final) is not None:
        return False
    if (boxed := _boxed(response)) is not None:
        return same_answer(_without_unit(boxed), answer)
    value = _without_unit(final)
    if LATEX_FUNCTION.search(value):  # the last number is only a part of the answer
        return False
    if numbers := [*IN_TEXT.finditer(value)]:
        before, shown, after = value[: numbers[-1].start()], numbers[-1][0], value[numbers[-1].end() :]
        is_part = OPERATOR_BEFORE.search(before) or OPERATOR_AFTER.match(after)
        return not is_part and same_answer(shown, answer)
    return same_answer(last_number(response) or "", answer)


def final_answer(text: str) -> str:
    """The final answer of a text: the last `\\boxed{…}`, else the rest of the line after the last `####`, else the words after
    the last "answer is", else the last number, else the whole text."""
    marked = _marked(text)
    if marked is not None:
        return marked
    return last_number(text) or text.strip()


def same_answer(answer: str, other: str) -> bool:
    """Whether two answers are equal as numbers (1,000 and $1000.0, 1/2 and 0.5), or equal as texts except for case and white
    space."""
    numbers = number(answer), number(other)
    if numbers != (None, None):
        return numbers[0] == numbers[1]
    return _bare(answer) == _bare(other) != ""


def number(text: str) -> Fraction | None:
    """The exact number in a text; None for a text that is not a number or has over forty digits."""
    bare = text.replace("−", "-").replace("{,}", ",").replace(",\\!", ",")
    bare = CURRENCIES.sub("", bare).replace("\\%", "").strip("*` \n\t")
    bare = THOUSANDS.sub(lambda match: match[0].replace(",", ""), bare)  # 2,3 is not 23
    bare = bare.rstrip("%.,").casefold()
    bare = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", bare)  # 4 2 is not 42
    if NUMBER.fullmatch(bare):
        return Fraction(bare)
    if match := FRACTION.fullmatch(bare):
        sign, *parts, whole, above, below = match.groups()
        above, below = [*filter(None, parts)] or (above, below)
        if int(below):
            size = int(whole or 0) + Fraction(int(above), int(below))
            return -size if sign == "-" else size
    return None


def last_number(text: str) -> str | None:
    """The last number in a text, as the text writes the number."""
    numbers = IN_TEXT.findall(text)
    return numbers[-1] if numbers else None


def _after_reasoning(response: str) -> str:
    return response.rpartition("</think>")[2]


def _without_unit(text: str) -> str:
    """An answer without the unit behind a number, and without a left side (`x =`)."""
    return UNIT.sub("", text).rpartition("=")[2].strip()


def _marked(text: str) -> str | None:
    """The answer that a text marks as its answer, up to the end of a sentence; None for a text without a mark."""
    if _boxed(text) is not None or "####" in text:
        return _marked_line(text)
    line = _marked_line(text)
    return None if line is None else re.split(r"[.!?](?:\s|$)", line, maxsplit=1)[0]


def _marked_line(text: str) -> str | None:
    """The text in the last closed `\\boxed{…}`, else the rest of a marked line; None for a text without a mark."""
    if (boxed := _boxed(text)) is not None:
        return boxed
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0].strip()
    answers = re.findall(r"answer is\b(?!\s+not\b):?\s*([^\n]+)", text, re.IGNORECASE)
    return answers[-1].strip() if answers else None


def _boxed(text: str) -> str | None:
    """The content of the closed `\\boxed{…}` that begins last, inner brackets included."""
    opened, closed = [], []
    for bracket in BRACKET.finditer(text):
        if bracket[0] != "}":
            opened.append(bracket)
        elif opened and (begin := opened.pop())[0] != "{":
            closed.append((begin.end(), bracket.start()))
    return text[slice(*max(closed))].strip() if closed else None


def _bare(text: str) -> str:
    """An answer without dollar signs, white space, emphasis, LaTeX's \\text and a full stop, in lower case."""
    text = LATEX_TEXT.sub(r"\1", text.replace("\\$", "").replace("$", ""))
    bare = re.sub(r"\s+", "", text).strip("*`").rstrip(".").casefold()
    return LETTER.sub(r"\1", bare) if LETTER.fullmatch(bare) else bare


def _parse(value: dict[str, Any]) -> QuestionAnswer:
    question, answer = (_one_of(value, keys) for keys in (QUESTION_KEYS, ANSWER_KEYS))
    marked = _marked(answer)
    return QuestionAnswer(question, answer.strip() if marked is None else marked)


def _one_of(value: dict[str, Any], keys: tuple[str, str]) -> str:
    for key in keys:
        if key in value:
            if isinstance(value[key], int | float):
                return str(value[key])
            if not (text := text_of(value, key)).strip():
                raise ValueError(f"{key!r} is empty")
            return text
    raise ValueError(f"the record has neither {keys[0]!r} nor {keys[1]!r}")
