"""Checked text fields of a raw record."""

from typing import Any

from data.report import Reason, Unusable

# Metadata is ignored on purpose: it gives the origin or the kind of a sample, from which no trainer learns.
METADATA = frozenset(
    "id prompt_id conversation_id question_id index idx category subcategory source dataset dataset_name split subset language lang "
    "task topic title url license type __index_level_0__".split()
) | {"Unnamed: 0"}  # pandas' index: in parquet, and in a CSV that was read and written again
TURN_METADATA = METADATA | {
    "label"
}  # NeMo-Aligner's attributes of an answer, for SteerLM; in a record, KTO's label


def text_field(record: dict[str, Any], key: str, *, may_be_blank: bool = False) -> str:
    """The text under `key`. Raises Unusable for a missing key, a value of another type, a blank text, or invalid Unicode."""
    if key not in record:
        present = ", ".join(sorted(record)) or "none"
        raise Unusable(Reason.MISSING_KEY, f"{key!r}; present: {present}")
    text = record[key]
    if not isinstance(text, str):
        raise Unusable(Reason.WRONG_TYPE, f"{key!r} is {type(text).__name__}, not text")
    if not may_be_blank and (not text or text.isspace()):
        raise Unusable(Reason.EMPTY_TEXT, f"{key!r} is blank")
    require_unicode(text, repr(key))
    return text


def require_unicode(text: str, place: str) -> None:
    """Raises Unusable for a text with invalid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # A lone surrogate passes JSON as \ud83d, and would crash the tokenizer much later.
        raise Unusable(Reason.BAD_UTF8, f"{place} has half a surrogate pair at {error.start + 1}") from error


def is_empty(value: Any) -> bool:
    """Whether a value carries no content: None, or an empty text, list or object."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def ignored_keys(
    record: dict[str, Any], read: frozenset[str], metadata: frozenset[str] = METADATA
) -> list[str]:
    """The keys of a record that are ignored on purpose, as notes of a report. read: the keys that a formatter reads.

    Raises Unusable for a key with content that is neither read nor metadata, because the output would lack the content.
    """
    unread = [key for key, value in record.items() if key not in read and not is_empty(value)]
    for key in unread:
        if key not in metadata:
            raise Unusable(
                Reason.UNREAD_KEY,
                f"{key!r}; the formatter reads {', '.join(sorted(read))}: move the content into a key of these, or "
                "remove the key",
            )
    return [f"the metadata {key!r} is not in the output" for key in unread]


def require_length(length: int, max_chars: int | None) -> None:
    """Raises Unusable when a sample of `length` characters is longer than `max_chars`."""
    if max_chars is not None and length > max_chars:
        raise Unusable(Reason.OVERLONG, f"{length:,} characters, limit {max_chars:,}")
