"""Seeds of single responses, so that what is drawn depends on no batch, layout or restart."""

from __future__ import annotations

import hashlib


def response_seed(seed: int, step: int, number: int) -> int:
    """The seed of response `number` of a step, below 2⁶³; the same on every machine."""
    digest = hashlib.blake2b(f"{seed}/{step}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
