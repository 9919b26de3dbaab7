"""Parses the body of a request as JSON, within limits. Without limits, a single request could block all others.

This module depends neither on HTTP nor on models. pydantic holds the interpreter's lock while it checks a request. A million
wrong messages take 17 s, so the limits are checked first.
"""

from __future__ import annotations

import json

from aligner_lib.jobs.openai_api import ApiError

MOST_BYTES = 8 << 20
MOST_DEPTH = 32  # levels of nested objects and lists
MOST_VALUES = 1 << 14  # texts, numbers, objects and lists, except in lists of token ids
MOST_TOKENS = 1 << 18  # in all lists of token ids


def too_large() -> ApiError:
    """The error for a body of more than MOST_BYTES."""
    return ApiError(
        f"the body is larger than {MOST_BYTES} bytes: send less text, or several requests",
        413,
        code="request_too_large",
    )


def parse(body: bytes) -> object:
    """Parse a body as JSON. Raises ApiError for a body that is not JSON, exceeds a limit, or has half a surrogate pair."""
    try:
        value = json.loads(body)
    except RecursionError:
        raise _too_deep(None) from None
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from None
    _check(value)
    return value


def _check(body: object) -> None:
    values, tokens = 0, 0
    fields = body.items() if isinstance(body, dict) else [(None, body)]
    # Each entry is a value with its field and depth. A stack replaces recursion, because Python limits the depth of recursion.
    unchecked = [item for name, value in fields for item in ((None, name, 1), (name, value, 1))]
    while unchecked:
        field, value, depth = unchecked.pop()
        values += 1
        if values > MOST_VALUES:
            raise ApiError(f"the body has more than {MOST_VALUES} values: send several requests", param=field)
        if isinstance(value, str):
            _check_characters(value, field)
        elif isinstance(value, dict | list):
            if depth > MOST_DEPTH:
                raise _too_deep(field)
            if isinstance(value, list) and _are_token_ids(value):
                tokens += len(value)
            else:
                if len(value) > MOST_VALUES:  # checked before the parts go onto the stack
                    raise ApiError(
                        f"{field or 'the body'} has {len(value)} parts, but only {MOST_VALUES} are allowed",
                        param=field,
                    )
                parts = value if isinstance(value, list) else [*value.keys(), *value.values()]
                unchecked += [(field, part, depth + 1) for part in parts]
        if tokens > MOST_TOKENS:
            raise ApiError(
                f"{field} has more than {MOST_TOKENS} token ids: more than any context can hold; send several requests",
                param=field,
            )


def _are_token_ids(values: list) -> bool:
    return bool(values) and all(type(value) is int for value in values)


def _check_characters(text: str, field: str | None) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise ApiError(
            f"character {error.start} of {'a text in ' + field if field else 'a name'} is {half!a}, half of a "
            "surrogate pair, which is not a character: leave the half out, or send the other half directly after",
            param=field,
        ) from None


def _too_deep(field: str | None) -> ApiError:
    return ApiError(
        f"objects and lists are nested more than {MOST_DEPTH} deep, which no request needs",
        param=field,
    )
