"""Seeds of single responses. With these seeds, the samples do not depend on batch, layout or restarts."""

from __future__ import annotations

import hashlib


def response_seed(seed: int, step: int, number: int, turn: int = 0) -> int:
    """The seed of response `number` of a step, below 2⁶³ and equal on every machine. turn: the number of the turn in the
    episode."""
    key = f"{seed}/{step}/{number}" + (f"/{turn}" if turn else "")
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
