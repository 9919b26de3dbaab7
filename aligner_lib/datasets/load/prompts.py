"""Prompts for rollouts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from aligner_lib.datasets.chat_template import OWN, encode_prompt
from aligner_lib.datasets.json_lines import text_of
from aligner_lib.datasets.load.lines import load_lines
from aligner_lib.datasets.load.turns import text_or_turns
from aligner_lib.datasets.record_keys import prompt_form
from aligner_lib.datasets.samples import LoadReport, PromptSample
from aligner_lib.datasets.tokenizer import Tokenizer


def load_prompts(
    files: Iterable[Path], tokenizer: Tokenizer, max_length: int
) -> tuple[list[PromptSample], LoadReport]:
    """Prompts, and a report of the dropped prompts. A prompt is a {"text"} line, or a {"prompt"} line with a text or turns.

    max_length: tokens in a prompt; the rest of encoder_seq_length is for the response. Raises FileNotFoundError for a missing
    file, ValueError when no prompt is usable.
    """

    def make(record: dict) -> PromptSample | str:
        prompt = (
            text_or_turns(record, "prompt", as_turns=True) if "prompt" in record else text_of(record, "text")
        )
        if isinstance(prompt, str) and not prompt.strip():
            return "empty text"
        ids = encode_prompt(tokenizer, prompt)
        as_it_is = isinstance(prompt, str) and tokenizer.template != OWN
        return prompt_sample(
            ids, prompt if as_it_is else tokenizer.decode(ids, special_tokens=True), max_length
        )

    return load_lines(files, make, prompt_form)


def prompt_sample(ids: list[int], text: str, max_length: int) -> PromptSample | str:
    """The sample of a prompt, or the reason to drop the prompt."""
    if len(ids) > max_length:
        return f"longer than {max_length} tokens (encoder_seq_length less the response's max_length)"
    return PromptSample(ids, text)
