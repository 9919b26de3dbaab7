"""Checked text fields of a raw record."""

from typing import Any

from data.report import Reason, Unusable


def text_field(record: dict[str, Any], key: str, *, may_be_blank: bool = False) -> str:
    """The text under `key`. Raises Unusable when it is missing, no text, blank, or invalid Unicode."""
    if key not in record:
        present = ", ".join(sorted(record)) or "none"
        raise Unusable(Reason.MISSING_KEY, f"{key!r}; present: {present}")
    text = record[key]
    if not isinstance(text, str):
        raise Unusable(Reason.WRONG_TYPE, f"{key!r} is {type(text).__name__}, not text")
    if not may_be_blank and (not text or text.isspace()):
        raise Unusable(Reason.EMPTY_TEXT, f"{key!r} is blank")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # A lone surrogate passes JSON as \ud83d, and would crash the tokenizer much later.
        raise Unusable(Reason.BAD_UTF8, f"{key!r} has half a surrogate pair at {error.start + 1}") from error
    return text


def require_length(length: int, max_chars: int | None) -> None:
    """Raises Unusable when a sample of `length` characters is longer than `max_chars`."""
    if max_chars is not None and length > max_chars:
        raise Unusable(Reason.OVERLONG, f"{length:,} characters, limit {max_chars:,}")
