"""The order of samples: seen once an epoch, the same after a restart, on every layout."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aligner_lib.algorithms.batching import (
    ALIKE,
    global_batch,
    length_grouped,
    longest_first,
    packed,
    sample_order,
    share_of_rank,
)
from aligner_lib.datasets.batches import TokenBatch, alike_grouped, pad_rows
from aligner_lib.rollouts.seeds import response_seed

sizes, seeds = st.integers(1, 40), st.integers(0, 5)


def test_a_batch_reaches_over_the_end_of_an_epoch():
    assert global_batch(3, 0, 2, seed=0, shuffle=False) == [0, 1]
    assert global_batch(3, 1, 2, seed=0, shuffle=False) == [2, 0]
    assert global_batch(2, 0, 5, seed=0, shuffle=False) == [0, 1, 0, 1, 0]


def test_an_order_is_a_permutation_that_depends_on_epoch_and_seed_alone():
    order = sample_order(100, 0, 1)
    assert sorted(order) == list(range(100)) and order == sample_order(100, 0, 1)
    assert order != sample_order(100, 1, 1) and order != sample_order(100, 0, 2)


@given(sizes, st.integers(1, 15), st.integers(1, 12), seeds, st.booleans())
def test_batches_in_a_row_are_the_epochs_in_a_row(size, batch_size, steps, seed, shuffle):
    """A run that is resumed asks for single steps, out of nothing: together they are the unbroken order."""
    picked = [i for step in range(steps) for i in global_batch(size, step, batch_size, seed, shuffle)]
    epochs = -(-len(picked) // size)
    unbroken = [i for epoch in range(epochs) for i in sample_order(size, epoch, seed, shuffle)]
    assert picked == unbroken[: len(picked)]


@given(st.lists(st.integers(), max_size=20), st.integers(1, 5))
def test_the_shares_of_the_ranks_are_the_batch(items, ranks):
    shares = [share_of_rank(items, rank, ranks) for rank in range(ranks)]
    assert sorted(item for share in shares for item in share) == sorted(items)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def grouped(rows: list[list[int]], micro_batch_size: int) -> list[list[int]]:
    return alike_grouped(TokenBatch(*pad_rows(rows, 0)), micro_batch_size)


def test_the_responses_to_a_prompt_stand_in_one_micro_batch():
    first, second = [7, 1, 2, 3, 4], [7, 5, 6, 8, 9]
    rows = [[*first, 1], [*second, 1, 2, 3], [*first, 2, 3], [*second, 2]]
    # the prompt with the longest response comes first, and each prompt's longer response
    assert grouped(rows, 2) == [[1, 3], [2, 0]]
    assert grouped(rows, 3) == [[1, 3, 2], [0]]


def test_a_beginning_that_all_rows_share_makes_none_alike():
    """A system prompt of three of nine tokens: what it saves, any micro batch saves."""
    rows = [[1, 2, 3, *[start] * 6] for start in (9, 4, 8, 5)]
    assert grouped(rows, 2) == [[0, 1], [2, 3]]
    rows[3] += [5, 5]
    assert grouped(rows, 2) == [[3, 0], [1, 2]], "the longest rows first, as of length_grouped"


def test_samples_of_like_length_share_a_micro_batch_the_longest_first():
    assert longest_first([2, 5, 2, 7]) == [3, 1, 0, 2]
    assert length_grouped([5, 90, 6, 91, 4], 2) == [[3, 1], [2, 0], [4]]
    assert packed([9, 4, 10, 8, 3, 7], [9, 4, 10, 8, 3, 7], 20) == [[2, 0], [3, 5], [1, 4]]


def test_response_seeds_differ_by_seed_step_and_number():
    keys = [(seed, step, number) for seed in range(3) for step in range(12) for number in range(12)]
    keys += [(1, 23, 4), (12, 3, 4), (1, 2, 34)]  # whose digits are the same in a row
    drawn = [response_seed(*key) for key in keys]
    assert len(set(drawn)) == len(keys)
    assert all(0 <= seed < 2**63 for seed in drawn)


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 3), st.integers(1, 90))
def test_packed_micro_batches_hold_every_sample_once_within_the_budget(lengths, rows, budget):
    tokens = [rows * length for length in lengths]
    groups = packed(lengths, tokens, budget)
    assert [i for group in groups for i in group] == longest_first(lengths)
    for group in groups:
        assert len(group) == 1 or sum(tokens[i] for i in group) <= budget
        assert lengths[group[-1]] >= ALIKE * lengths[group[0]]
    for group, following in pairwise(groups):  # none ends before it has to
        full = sum(tokens[i] for i in group) + tokens[following[0]] > budget
        assert full or lengths[following[0]] < ALIKE * lengths[group[0]]
