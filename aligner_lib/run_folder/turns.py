"""Splits a prompt into turns by its chat template. The widgets and the static tables use these turns."""

from __future__ import annotations

import re

_ROLE = "system|user|assistant|tool|human|gpt"
_TURN_MARKS = [  # the beginning of a turn, with its role
    re.compile(pattern)
    for pattern in (
        rf"<\|im_start\|>((?i:{_ROLE}))\n",  # ChatML
        rf"<\|start_header_id\|>((?i:{_ROLE}))<\|end_header_id\|>\n*",  # Llama 3
        r"<start_of_turn>((?i:user|model))\n",  # Gemma
        r"<extra_id_[01]>(System|User|Assistant)\n",  # NeMo
        r"(?:^|\n\n)(System|User|Assistant|Human): ?",  # the plain template
        r"(?:^|\n)(system|user|assistant)\n",  # ChatML whose marks were left out as special tokens
    )
]
_MARKS = r"(?:\s|<\|im_end\|>|<\|eot_id\|>|<end_of_turn>|<\|begin_of_text\|>|<bos>|<s>|</s>)+"
# within a turn they are the user's text; (?<!\s): one try for each stretch of spaces
_AROUND_TURN = re.compile(rf"^{_MARKS}|(?<!\s){_MARKS}\Z")
_NAMES = {"human": "user", "gpt": "assistant", "model": "assistant"}


def turns_of(prompt: str) -> list[dict[str, str]]:
    """Return [{role, text}] for a prompt. An empty assistant turn at the end of the prompt is left out.

    A prompt without a known template is a single turn with the role "".
    """
    for mark in _TURN_MARKS:
        marks = list(mark.finditer(prompt))
        if not marks or _plain(prompt[: marks[0].start()]):
            continue
        ends = [match.start() for match in marks[1:]] + [len(prompt)]
        turns = [
            {"role": _role(match[1]), "text": _plain(prompt[match.end() : end])}
            for match, end in zip(marks, ends, strict=True)
        ]
        if turns[-1] == {"role": "assistant", "text": ""}:
            turns.pop()
        if turns:
            return turns
    return [{"role": "", "text": prompt.strip()}]


def _role(name: str) -> str:
    return _NAMES.get(name.lower(), name.lower())


def _plain(text: str) -> str:
    return _AROUND_TURN.sub("", text)
