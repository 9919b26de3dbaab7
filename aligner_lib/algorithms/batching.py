"""Which samples form each global batch, how ranks share them, and micro batches grouped by length."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from functools import lru_cache


def sample_order(size: int, epoch: int, seed: int, shuffle: bool = True) -> list[int]:
    """The order of a data set's samples in one epoch: the indices 0 … size − 1.

    The order depends on size, seed and epoch alone, so a run can resume at any step without saved sampler state.
    """
    order = list(range(size))
    if shuffle:
        random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def global_batch(size: int, step: int, batch_size: int, seed: int, shuffle: bool = True) -> list[int]:
    """The indices of the samples in a training step's global batch (the first step is 0).

    size: samples in the data set; batch_size: samples in a global batch. A global batch may cross the end of an epoch and
    continue in the next epoch.
    """
    picked = []
    for position in range(step * batch_size, (step + 1) * batch_size):
        epoch, place = divmod(position, size)
        if not picked or place == 0:
            order = kept_order(size, epoch, seed, shuffle)
        picked.append(order[place])
    return picked


@lru_cache(maxsize=16)  # a job may draw from several environments
def kept_order(size: int, epoch: int, seed: int, shuffle: bool = True) -> array:
    """`sample_order`, kept from step to step: a million samples take half a second to shuffle."""
    return array("q", sample_order(size, epoch, seed, shuffle))


def share_of_rank(items: Sequence, rank: int, ranks: int) -> list:
    """This data-parallel rank's part of a global batch: items[rank], items[rank + ranks], and so on.

    ranks: number of data-parallel ranks.
    """
    return list(items[rank::ranks])


def length_grouped(lengths: Sequence[int], micro_batch_size: int) -> list[list[int]]:
    """Micro batches of samples of similar length, so that padding costs little computation.

    lengths: tokens in each sample. Returns lists of at most micro_batch_size indices into lengths. The longest samples come
    first, so a run that needs too much memory fails in its first micro batch.
    """
    by_length = longest_first(lengths)
    return [by_length[i : i + micro_batch_size] for i in range(0, len(by_length), micro_batch_size)]


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Indices into lengths, the longest first."""
    return sorted(range(len(lengths)), key=lambda i: -lengths[i])


ALIKE = 0.7
"""The shortest sample of a packed micro batch has at least this share of the longest sample's tokens."""


def packed(lengths: Sequence[int], tokens: Sequence[int], budget: int) -> list[list[int]]:
    """Micro batches of samples of similar length, each filled up to `budget` tokens.

    lengths: tokens in each sample's longest row; tokens: tokens in all rows of each sample. Returns lists of indices into
    lengths, the longest samples first. A sample with more tokens than the budget gets a micro batch of its own. A sample much
    shorter than the longest sample of its micro batch opens a new micro batch, because attention pads to the longest.
    """
    groups: list[list[int]] = []
    room = 0
    for i in longest_first(lengths):
        if not groups or tokens[i] > room or lengths[i] < ALIKE * lengths[groups[-1][0]]:
            groups.append([])
            room = budget
        groups[-1].append(i)
        room -= tokens[i]
    return groups
