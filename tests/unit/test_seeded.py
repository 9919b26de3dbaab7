"""Seeded generators: every bit of a seed counts, and what manual_seed reads whole is drawn as torch draws it."""

import numpy as np
import pytest
import torch

from aligner_lib.megatron import seeded
from aligner_lib.megatron.seeded import seed_default_generators, seeded_generator


def draws(generator: torch.Generator | None = None) -> tuple[float, ...]:
    return tuple(torch.rand(3, dtype=torch.float64, generator=generator).tolist())


@pytest.mark.parametrize("seed", [0, 1234, 2**32 - 1])
def test_a_seed_of_32_bits_draws_what_torch_draws_also_by_default(seed):
    assert draws(seeded_generator(seed)) == draws(torch.Generator().manual_seed(seed))
    seed_default_generators(seed, 5)  # dropout draws from the default generator
    assert draws() == draws(seeded_generator(seed, 5))


@pytest.mark.parametrize("place", [(), (3, 1)])
def test_every_bit_of_a_seed_counts(place):
    seeds = [1234, *(1234 ^ (1 << bit) for bit in range(128))]
    assert len({draws(seeded_generator(seed, *place)) for seed in seeds}) == len(seeds)


def test_the_state_is_the_twister_whose_words_the_key_gives():
    """NumPy's Mersenne twister, set to the same words, draws the same numbers; torch takes 24 bits of each."""
    words = np.frombuffer(seeded._digest((1234, 5), 4 * seeded.WORDS), "<u4")
    numpy_twister = np.random.MT19937()
    numpy_twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": seeded.WORDS}}
    expected = torch.tensor([word % 2**24 / 2**24 for word in numpy_twister.random_raw(1000).tolist()])
    assert torch.equal(torch.rand(1000, generator=seeded_generator(1234, 5)), expected)
