"""The key of a server, in an environment variable."""

from __future__ import annotations

import os
import re

from aligner_lib.errors import UserError


def server_key(variable: str) -> str:
    """The key in an environment variable, without the line break that ends a key from a file; empty without the variable.

    Raises UserError, which does not contain the key, for a key that no header can hold.
    """
    key = os.environ.get(variable, "").strip()
    if not re.fullmatch(r"[ -~\xa0-\xff]*", key):
        raise UserError(
            f"the key in the environment variable {variable} has a line break or another character that no request can send: "
            "set the variable to the key alone"
        )
    return key
