"""Instructions that a program can check: the wordings of each instruction, and the test that an answer obeys.

A wording may have gaps, such as "Use exactly {n} sentences.". `instruction_in` reads the wording and its gaps back from a
prompt. Therefore `obeys` needs only a prompt and an answer, and no other data has to be stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4}
DASHES = "-–—"
MARKS = DASHES + "*•"  # marks at the beginning of a list's lines


@dataclass(frozen=True)
class Form:
    """A form of an answer: the sentences that request the form, the values of their gaps, and a test of the answer."""

    wordings: tuple[str, ...]
    holds: Callable[..., bool]  # takes the answer, and the gaps by name
    gaps: Mapping[str, tuple[str, ...] | str] = ()
    """The values of each gap: several texts, or a regular expression."""


@dataclass(frozen=True)
class Instruction:
    """A form with its gaps filled."""

    form: str
    gaps: tuple[tuple[str, str], ...] = ()

    def holds(self, answer: str) -> bool:
        """Whether an answer obeys the instruction."""
        return bool(answer.strip()) and FORMS[self.form].holds(answer.strip(), **dict(self.gaps))

    def worded(self, wording: str) -> str:
        """A wording of the form, with its gaps filled."""
        return wording.format(**dict(self.gaps))


@lru_cache(maxsize=4096)  # a search for cheats looks up the same few prompts a million times
def instruction_in(prompt: str) -> Instruction | None:
    """The instruction in a prompt's last turn; None when the turn contains no known wording."""
    last = prompt.rpartition("User: ")[2]
    for pattern, form in _patterns():
        if match := pattern.search(last):
            return Instruction(form, tuple(sorted(match.groupdict().items())))
    return None


def obeys(prompt: str, answer: str) -> bool:
    """Whether an answer has the form that its prompt requests. Raises ValueError when the prompt requests no form."""
    instruction = instruction_in(prompt)
    if instruction is None:
        raise ValueError(f"the prompt contains no instruction of data/forms.py: {prompt!r}")
    return instruction.holds(answer)


@lru_cache(maxsize=4096)
def without_instruction(turn: str) -> str:
    """The question in a user's turn: the turn without its instruction."""
    for pattern, _ in _patterns():
        if pattern.search(turn):
            return pattern.sub("", turn, count=1).strip()
    return turn


@cache
def _patterns() -> tuple[tuple[re.Pattern, str], ...]:
    """Every wording as a regular expression, with its form. The longest come first, because a wording may be part of
    another."""
    patterns = []
    for name, form in FORMS.items():
        for wording in form.wordings:
            text = re.escape(wording)
            for gap, values in dict(form.gaps).items():
                if isinstance(values, str):
                    choice = values
                else:
                    choice = "|".join(map(re.escape, sorted(values, key=len, reverse=True)))
                text = text.replace(re.escape(f"{{{gap}}}"), f"(?P<{gap}>{choice})", 1)
            patterns.append((len(wording), re.compile(text), name))
    return tuple(
        (pattern, name) for _, pattern, name in sorted(patterns, key=lambda entry: entry[0], reverse=True)
    )


# ---- properties of a text that a program can check -------------------------------------------------------------------


def words(text: str) -> list[str]:
    """The words of a text: the pieces between white space that contain a letter or a digit."""
    return [word for word in text.split() if any(map(str.isalnum, word))]


def sentences(text: str) -> list[str]:
    """The sentences of a text: pieces that end with . ! or ? before white space or the end of the text. The last sentence may
    lack its final mark. The full stop of an abbreviation ends a sentence; a full stop within a number does not."""
    parts = re.split(r"""(?<=[.!?])["'”’)\]]*\s+""", text.strip())
    return [part for part in parts if words(part)]


def ended(text: str) -> bool:
    """Whether the last character of a text ends a sentence. Closing quotation marks and brackets are ignored."""
    return bool(re.search(r"""[.!?]["'”’)\]]*$""", text.strip()))


def listed(text: str, marks: str = MARKS) -> int:
    """The number of lines that begin with one of the marks, once, and continue with a word."""
    lines = [line.lstrip() for line in text.splitlines() if words(line)]
    return sum(line.startswith(tuple(marks)) and line[:1] != line[1:2] for line in lines)


def has_word(text: str, word: str) -> bool:
    """Whether a text contains a word, ignoring case."""
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def postscript(text: str) -> int:
    """The position after the letters P.S. of a postscript, which U.P.S. are not; the length of the text when there is no
    postscript."""
    match = re.search(r"\S\s*(?<!\w)(?<!\b[A-Z]\.)(?:P\.\s?)?P\.\s?S\.?:?\**\s+(?=[\w\"“*])", text)
    return match.end() if match else len(text)


def begins(text: str, word: str) -> bool:
    """Whether a text begins with a word, ignoring case."""
    return re.match(rf"\W*{re.escape(word)}\b", text, re.IGNORECASE) is not None


# ---- the forms -------------------------------------------------------------------------------------------------------


WORD = "[a-z]+"
QUOTED = r'[^"\n]+'

FORMS: dict[str, Form] = {
    "sentences": Form(
        (
            "Answer in exactly {n}.",
            "Use {n}, no more and no fewer.",
            "Your answer must have {n}.",
            "Write {n}.",
        ),
        lambda text, n: len(sentences(text)) == NUMBERS[n.split()[0]] and ended(text),
        {"n": ("one sentence", "two sentences", "three sentences")},
    ),
    "fewer_words": Form(
        (
            "Use fewer than {n} words.",
            "Answer in less than {n} words.",
            "Keep it under {n} words.",
            "Your answer must be shorter than {n} words.",
        ),
        lambda text, n: 1 <= len(words(text)) < int(n),
        {"n": ("12", "15", "18")},
    ),
    "more_words": Form(
        (
            "Use at least {n} words.",
            "Write {n} words or more.",
            "Give an answer of no fewer than {n} words.",
            "Your answer should be {n} words long or longer.",
        ),
        lambda text, n: len(words(text)) >= int(n),
        {"n": ("25", "30", "35")},
    ),
    "question": Form(
        (
            "End with a question.",
            "Your last sentence must be a question.",
            "Finish by asking me something.",
            "Close with a question of your own.",
        ),
        lambda text: text.endswith("?"),
    ),
    "first_word": Form(
        (
            'Begin with the word "{word}".',
            'Start your answer with "{word}".',
            'The first word must be "{word}".',
            '"{word}" should be your very first word.',
        ),
        lambda text, word: begins(text, word),
        {"word": "[A-Z][a-z]+"},
    ),
    "list": Form(
        (
            "Give a list of {n} points, each on a line that begins with a dash.",
            "Write {n} lines, each with a dash in front.",
            "Answer with {n} bullet points.",
            "Put it as a list of exactly {n} items, each with a dash.",
        ),
        lambda text, n: listed(text) == NUMBERS[n],
        {"n": ("two", "three")},
    ),
    "includes": Form(
        (
            'Use the word "{word}".',
            'Your answer must contain the word "{word}".',
            'Include the keyword "{word}".',
            'The word "{word}" has to appear in your answer.',
        ),
        lambda text, word: has_word(text, word),
        {"word": WORD},
    ),
    "number": Form(
        (
            "Include a number in digits.",
            "Use at least one number, written in digits.",
            "Mention a figure, such as 7.",
            "There must be a digit in your answer.",
        ),
        lambda text: any(map(str.isdigit, text)),
    ),
    "exclamation": Form(
        (
            "End with an exclamation mark.",
            "Finish with an exclamation mark.",
            "The last character must be an exclamation mark.",
            "Let your answer end in an exclamation mark.",
        ),
        lambda text: text.endswith("!"),
    ),
    "lower_case": Form(
        (
            "Use lower case only.",
            "Write everything in small letters.",
            "Use no capital letters.",
            "Your whole answer must be in lowercase letters.",
        ),
        lambda text: any(map(str.islower, text)) and not any(map(str.isupper, text)),
    ),
    "capitals": Form(
        (
            "Use capital letters only.",
            "Write everything in capital letters.",
            "Your entire answer must be in upper case.",
            "Use no lowercase letters.",
        ),
        lambda text: any(map(str.isupper, text)) and not any(map(str.islower, text)),
    ),
    "no_comma": Form(
        (
            "Do not use any commas.",
            "Write without commas.",
            "There must be no comma in your answer.",
            "Avoid commas altogether.",
        ),
        lambda text: "," not in text and len(words(text)) > 3,
    ),
    "quotes": Form(
        (
            "Wrap your whole answer in double quotation marks.",
            "Put the entire answer between double quotation marks.",
            "Your answer must begin and end with a double quotation mark.",
            "Write the answer as a quotation, in double quotation marks.",
        ),
        lambda text: len(text) > 2 and text[0] in '"“' and text[-1] in '"”',
    ),
    "last_words": Form(
        (
            'End with the words "{phrase}"',
            'Finish your answer with exactly this phrase: "{phrase}"',
            'The last sentence must be "{phrase}"',
            'Your answer should close with "{phrase}"',
        ),
        lambda text, phrase: text.rstrip('"”').endswith(phrase),
        {"phrase": QUOTED},
    ),
    "postscript": Form(
        (
            "At the end, add a postscript that begins with P.S.",
            "Add a postscript, starting with P.S.",
            "Close with a postscript after the letters P.S.",
            "Put a P.S. with one more remark at the end.",
        ),
        lambda text: postscript(text) < len(text),
    ),
    "title": Form(
        (
            "Give it a title in double angular brackets, such as <<title>>.",
            "Begin with a title, wrapped in double angular brackets like <<this>>.",
            "Your answer needs a title in double angular brackets, i.e. <<title>>.",
            "Put a title in << and >> above your answer.",
        ),
        lambda text: re.search(r"<<[^<>\n]*\w[^<>\n]*>>", text) is not None,
    ),
    "this_number": Form(
        (
            "Use the number {n}.",
            "Your answer must contain the number {n}.",
            "Mention the number {n}, written in digits.",
            "The number {n} has to appear in your answer.",
            "Put the number {n} somewhere in your answer.",
        ),
        lambda text, n: re.search(rf"(?<!\d)(?<!\d[.,]){n}(?![.,]?\d)", text) is not None,
        {"n": r"\d+"},
    ),
    "postscript_word": Form(
        (
            'Add a postscript with the word "{word}", starting with P.S.',
            'Close with a postscript after the letters P.S. that has the word "{word}" in it.',
            'At the end, add a P.S. that mentions the word "{word}".',
            'Put a P.S. with the word "{word}" at the end.',
        ),
        lambda text, word: has_word(text[postscript(text) :], word),
        {"word": WORD},
    ),
    "this_title": Form(
        (
            'Give it the title "{title}", in double angular brackets.',
            'Begin with the title "{title}", wrapped in double angular brackets.',
            'Your answer needs the title "{title}" between << and >>.',
            'Put the title "{title}" in << and >> above your answer.',
        ),
        lambda text, title: re.search(rf"<<\s*{re.escape(title)}\s*>>", text, re.IGNORECASE) is not None,
        {"title": QUOTED},
    ),
}  # fmt: skip
