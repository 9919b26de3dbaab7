"""Random numbers that depend on all bits of a seed, and on the place in the run that they are drawn for."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

WORDS = 624  # of 32 bits, the state of the Mersenne twister that torch draws from on a CPU


def seeded_generator(*key: int) -> torch.Generator:
    """A generator on the CPU whose numbers depend on every bit of every number of the key.

    key: a seed of any size, then what tells apart the draws of a run (a layer, a step). A single number below 2³² gives
    what `torch.Generator.manual_seed` gives; of more than that, manual_seed reads the lowest 32 bits alone.
    """
    generator = torch.Generator()
    if len(key) == 1 and 0 <= key[0] < 2**32:
        return generator.manual_seed(key[0])
    state = generator.manual_seed(
        0
    ).get_state()  # 8 bytes seed, 8 and 8 position, 8 of each word, 40 of normals
    state.view(torch.int64)[3 : 3 + WORDS] = _words(key)
    generator.set_state(state)
    return generator


def seed_default_generators(*key: int) -> None:
    """As `seeded_generator`, of the generators that torch's dropout draws from, on the CPU and on GPUs."""
    if torch.cuda.is_available():
        torch.cuda.manual_seed(int.from_bytes(_digest(key, 8), "little"))  # there, all of 64 bits count
    torch.default_generator.set_state(seeded_generator(*key).get_state())


def _words(key: tuple[int, ...]) -> torch.Tensor:
    """The twister's state: int64 [WORDS], each below 2³²."""
    return torch.from_numpy(np.frombuffer(_digest(key, 4 * WORDS), "<u4").astype(np.int64))


def _digest(key: tuple[int, ...], size: int) -> bytes:
    return hashlib.shake_256("/".join(map(str, key)).encode()).digest(size)
