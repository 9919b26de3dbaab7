"""Seeds of single responses: the samples do not depend on batch, layout or restart."""

from __future__ import annotations

import hashlib


def response_seed(seed: int, step: int, number: int, turn: int = 0) -> int:
    """The seed of response `number` of a step, below 2⁶³; the same on every machine. turn: number in the episode."""
    key = f"{seed}/{step}/{number}" + (f"/{turn}" if turn else "")
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
