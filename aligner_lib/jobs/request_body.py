"""A request's body as JSON, within bounds that keep one request from holding up all others.

Knows neither HTTP nor models. pydantic holds the interpreter's lock while it checks a request, for 17 s with a million
wrong messages, so the bounds are checked first.
"""

from __future__ import annotations

import json

from aligner_lib.jobs.openai_api import ApiError

MOST_BYTES = 8 << 20
MOST_DEPTH = 32  # of objects and lists within each other
MOST_VALUES = 1 << 14  # texts, numbers, objects and lists, but for lists of token ids
MOST_TOKENS = 1 << 18  # in lists of token ids


def too_large() -> ApiError:
    """What is said of a body beyond MOST_BYTES."""
    return ApiError(
        f"the body is larger than {MOST_BYTES} bytes: send less text, or several requests",
        413,
        code="request_too_large",
    )


def parse(body: bytes) -> object:
    """The JSON value of a body. Raises ApiError for one that is no JSON, is beyond a bound, or holds half a character."""
    try:
        value = json.loads(body)
    except RecursionError:
        raise _too_deep(None) from None
    except ValueError as error:
        raise ApiError(f"the body is no JSON: {error}") from None
    _check(value)
    return value


def _check(body: object) -> None:
    values, tokens = 0, 0
    fields = body.items() if isinstance(body, dict) else [(None, body)]
    # each with the request's field that it is in, and how deep; a stack in place of recursion, which has a bound itself
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
                if len(value) > MOST_VALUES:  # before any is put on the stack
                    raise ApiError(
                        f"{field or 'the body'} has {len(value)} parts, and {MOST_VALUES} may be", param=field
                    )
                parts = value if isinstance(value, list) else [*value.keys(), *value.values()]
                unchecked += [(field, part, depth + 1) for part in parts]
        if tokens > MOST_TOKENS:
            raise ApiError(
                f"{field} has more than {MOST_TOKENS} token ids: no context holds so many, or send several requests",
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
            f"character {error.start} of {'a text in ' + field if field else 'a name'} is {half!a}, half of a surrogate pair: "
            "it stands for no character, so leave it out or send its other half beside it",
            param=field,
        ) from None


def _too_deep(field: str | None) -> ApiError:
    return ApiError(
        f"objects and lists lie within each other more than {MOST_DEPTH} deep, which no request needs",
        param=field,
    )
