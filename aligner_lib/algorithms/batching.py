"""Who computes what when: the order of samples, their split over ranks, and micro batches of like length."""

from __future__ import annotations

import random
from collections.abc import Sequence


def sample_order(size: int, epoch: int, seed: int, shuffle: bool = True) -> list[int]:
    """The order of a data set's samples in an epoch: a function of seed and epoch alone, so that any run can resume."""
    order = list(range(size))
    if shuffle:
        random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def global_batch(size: int, step: int, batch_size: int, seed: int, shuffle: bool = True) -> list[int]:
    """The samples of the global batch of a step (the first is 0). It may reach over the end of an epoch, into the next."""
    picked = []
    for position in range(step * batch_size, (step + 1) * batch_size):
        epoch, place = divmod(position, size)
        if not picked or place == 0:
            order = sample_order(size, epoch, seed, shuffle)
        picked.append(order[place])
    return picked


def share_of_rank(items: Sequence, rank: int, ranks: int) -> list:
    """This rank's part of a global batch: every ranks-th item."""
    return list(items[rank::ranks])


def length_grouped(lengths: Sequence[int], micro_batch_size: int) -> list[list[int]]:
    """Micro batches of at most micro_batch_size samples, neighbours in length, so that little padding is computed.

    Returns indices into lengths. The longest come first: what does not fit into memory fails at once.
    """
    by_length = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [by_length[i : i + micro_batch_size] for i in range(0, len(by_length), micro_batch_size)]
