"""Splits a prompt into turns by its chat template. The widgets and the static tables use these turns."""

from __future__ import annotations

import re

_ROLE = "system|user|assistant|tool|human|gpt"
_TEMPLATES = [  # the beginning of a turn with its role, and the mark at the turn's end
    (re.compile(beginning), end)
    for beginning, end in (
        (rf"<\|im_start\|>((?i:{_ROLE}))\n", "<|im_end|>"),  # ChatML
        (rf"<\|start_header_id\|>((?i:{_ROLE}))<\|end_header_id\|>\n*", "<|eot_id|>"),  # Llama 3
        (r"<start_of_turn>((?i:user|model))\n", "<end_of_turn>"),  # Gemma
        (r"<extra_id_[01]>(System|User|Assistant)\n", ""),  # NeMo
        (r"(?:^|\n\n)(System|User|Assistant|Human): ?", ""),  # the plain template
        (r"(?:^|\n)(system|user|assistant)\n", ""),  # ChatML whose marks were left out as special tokens
    )
]
_BEFORE_TURNS = re.compile(r"(?:\s|<\|begin_of_text\|>|<bos>|</?s>)*")
"""The marks that a tokenizer sets before the first turn. In a turn, such a mark is the user's text."""
_NAMES = {"human": "user", "gpt": "assistant", "model": "assistant"}


def turns_of(prompt: str) -> list[dict[str, str]]:
    """Return [{role, text}] for a prompt. An empty assistant turn at the end of the prompt is left out.

    A prompt without a known template is a single turn with the role "".
    """
    for beginning, end_mark in _TEMPLATES:
        matches = list(beginning.finditer(prompt))
        if not matches or not _BEFORE_TURNS.fullmatch(prompt, 0, matches[0].start()):
            continue
        ends = [match.start() for match in matches[1:]] + [len(prompt)]
        turns = [
            {
                "role": _role(match[1]),
                "text": prompt[match.end() : end].strip().removesuffix(end_mark).strip(),
            }
            for match, end in zip(matches, ends, strict=True)
        ]
        if turns[-1] == {"role": "assistant", "text": ""}:
            turns.pop()
        if turns:
            return turns
    return [{"role": "", "text": prompt.strip()}]


def last_turn(prompt: str) -> str:
    """The text of a prompt's last turn, which is the user's."""
    return turns_of(prompt)[-1]["text"]


def _role(name: str) -> str:
    return _NAMES.get(name.lower(), name.lower())
