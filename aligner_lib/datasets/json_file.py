"""The JSON files of a model folder. An error message names the file, the place of the mistake in the file, and the cure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aligner_lib.errors import UserError

CURE = "correct the file, or import the model again"


class DamagedFileError(UserError, ValueError):
    """A file of a model that cannot be read."""


def read_object(path: Path, cure: str = CURE) -> dict:
    """The JSON object in a file. cure: the last part of the message.

    Raises DamagedFileError for any other content, FileNotFoundError for a missing file.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not JSON ({error}): {cure}") from None
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path} is not a JSON object: {cure}")
    return value


@contextmanager
def key_errors_in(path: Path) -> Iterator[None]:
    """Raise DamagedFileError, with the file, for a missing or unknown key and for a value of a wrong type."""
    try:
        yield
    except KeyError as error:
        raise DamagedFileError(f"{path} has no {error}: {CURE}") from None
    except (TypeError, AttributeError) as error:
        reason = re.sub(r"^[\w.]+\(\) ", "", str(error))  # without the name of Python's function
        raise DamagedFileError(f"{path}: {reason}: {CURE}") from None
