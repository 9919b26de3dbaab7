"""Answers in JSON of a schema, with the library llguidance (the extra `json`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.jobs.openai_api import ApiError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# White space as `json.dumps` writes it. Where any white space may stand, a small model writes little else.
WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# A schema may not ask the library to ignore a part.
STRICT = {"lenient": False, "coerce_one_of": False}
MARKS = '{}[]":,'  # of JSON


class JsonConstraint:
    """Limits an answer to the tokens of a JSON text of a schema, and at the end of the text to the stop tokens."""

    def __init__(self, matcher: LLMatcher, stop_ids: tuple[int, ...]):
        self._matcher, self._stop_ids = matcher, stop_ids

    @property
    def problem(self) -> str:
        """The reason why the library gave up on the answer; empty without a problem."""
        return self._matcher.get_error().partition("\n")[0] if self._matcher.is_error() else ""

    def copy(self) -> JsonConstraint:
        """A constraint at the same place, for another answer."""
        return JsonConstraint(self._matcher.deep_copy(), self._stop_ids)

    def allowed(self, size: int) -> Tensor:
        """Whether each token may come next, bool [size]. After a problem, only stop tokens may, to end the answer."""
        mask = self._matcher.compute_bitmask()
        allowed = torch.zeros(size, dtype=torch.bool)
        if self._matcher.is_error():
            allowed[list(self._stop_ids)] = True
            return allowed
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little", count=size)
        allowed[: len(bits)] = torch.from_numpy(bits).bool()
        return allowed

    def take(self, token: int) -> None:
        """Read the answer's next token."""
        if not self._matcher.is_error():
            self._matcher.consume_token(token)


def json_tokenizer(tokenizer: Tokenizer) -> LLTokenizer:
    """The tokenizer in the library's form. Raises ApiError without the library, and for a tokenizer that can't write JSON."""
    try:
        from llguidance import LLTokenizer
    except ImportError:
        raise ApiError(
            "response_format needs the package llguidance, which this server lacks: `pip install -e '.[json]'`, and start "
            "the server again",
            param="response_format",
            code="unsupported",
        ) from None
    try:
        _check_marks(tokenizer)
        return LLTokenizer(tokenizer.json, eos_token=list(tokenizer.stop_ids))
    except ValueError as error:
        raise ApiError(
            f"llguidance does not read this model's tokenizer ({error}): leave response_format out",
            param="response_format",
            code="unsupported",
        ) from None


def _check_marks(tokenizer: Tokenizer) -> None:
    """Raises ValueError when the vocabulary lacks a mark of JSON: the library would fail only during generation."""
    for mark in MARKS:
        if mark not in tokenizer.decode(*tokenizer.encode_parts([mark]), special_tokens=True):
            raise ValueError(f"its vocabulary has no {mark}")


def json_constraint(tokenizer: LLTokenizer, schema: dict[str, Any]) -> JsonConstraint:
    """The constraint of a schema. Raises ApiError with the part of the schema that the library cannot keep."""
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=WRITTEN | STRICT)
    _, problems = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer)
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    if matcher.is_error():
        problems = problems or [matcher.get_error()]
    if problems:
        reason = problems[0].partition("\n")[0]
        raise ApiError(
            f"the JSON schema cannot be kept ({reason}): leave that part out of the schema, and check it in the answer",
            param="response_format",
            code="unsupported",
        )
    return JsonConstraint(matcher, tuple(tokenizer.eos_tokens))
