"""Random numbers that depend on all bits of a seed, and on their place in the run."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

WORDS = 624  # 32-bit words in the state of the Mersenne twister, torch's generator on a CPU


def seeded_generator(*key: int) -> torch.Generator:
    """A CPU generator whose numbers depend on every bit of every number of the key.

    key: a seed of any size, then the numbers that distinguish the draws of a run (a layer, a step). A single number below 2³²
    gives the same generator as `torch.Generator.manual_seed`. For larger numbers, manual_seed reads only the lowest 32 bits.
    """
    generator = torch.Generator()
    if len(key) == 1 and 0 <= key[0] < 2**32:
        return generator.manual_seed(key[0])
    # layout: 8 bytes for the seed, 8 and 8 for the position, 8 for each word, 40 for normal numbers
    state = generator.manual_seed(0).get_state()
    state.view(torch.int64)[3 : 3 + WORDS] = _words(key)
    generator.set_state(state)
    return generator


def seed_default_generators(*key: int) -> None:
    """Seed torch's default generators on the CPU and on GPUs, from which dropout draws. key: see `seeded_generator`."""
    if torch.cuda.is_available():
        torch.cuda.manual_seed(int.from_bytes(_digest(key, 8), "little"))  # on a GPU, all 64 bits count
    torch.default_generator.set_state(seeded_generator(*key).get_state())


def _words(key: tuple[int, ...]) -> torch.Tensor:
    """The twister's state: int64 [WORDS], each number below 2³²."""
    return torch.from_numpy(np.frombuffer(_digest(key, 4 * WORDS), "<u4").astype(np.int64))


def _digest(key: tuple[int, ...], size: int) -> bytes:
    return hashlib.shake_256("/".join(map(str, key)).encode()).digest(size)
