"""Who gets the next rows of a batch, and who gives some up: counts that can be checked by hand."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aligner_lib.megatron.shares import is_owed, next_in_line, rows_to_give_up


@pytest.mark.parametrize(
    ("waiting", "running", "count", "places"),
    [
        ("aaaa", {}, 3, [0, 1, 2]),  # one share: in order
        ("aaab", {}, 2, [0, 3]),  # a has a row, so b is next
        ("aaabb", {"a": 2}, 3, [3, 4, 0]),
        ("ab", {"a": 1, "b": 1}, 1, [0]),  # equally many: who came first
        ("", {}, 5, []),
    ],
)
def test_a_free_row_goes_to_the_share_with_the_fewest_rows(waiting, running, count, places):
    assert next_in_line(waiting, Counter(running), count) == places


@pytest.mark.parametrize(
    ("waiting", "running", "free", "given_up"),
    [
        ({"b": 1}, {"a": 16}, 0, {"a": 1}),  # four tokens beside 512 responses
        ({"b": 100}, {"a": 16}, 0, {"a": 8}),  # two large requests: half each
        ({"b": 9, "c": 9}, {"a": 6}, 0, {"a": 4}),
        ({"b": 1}, {"a": 16}, 1, {}),  # a free row does
        ({"b": 1}, {"a": 1, "c": 1}, 0, {}),  # everybody has one: the next who ends makes room
        ({"a": 3}, {"a": 4}, 0, {}),
    ],
)
def test_rows_change_hands_until_no_share_has_two_more_than_one_that_waits(waiting, running, free, given_up):
    assert rows_to_give_up(Counter(waiting), Counter(running), free) == given_up


COUNTS = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 6), max_size=5)


@given(COUNTS, COUNTS, st.integers(0, 4))
def test_afterwards_nobody_is_owed_a_row(waiting, running, free):
    waiting, running = Counter(waiting), Counter(running)
    if not running:
        free += 1  # a batch has a row
    given_up = rows_to_give_up(waiting, running, free)
    left = running - given_up
    line = [*waiting.elements()]
    joining = next_in_line(line, left, free + given_up.total())
    taken = Counter(line[place] for place in joining)
    after = left + taken
    assert not is_owed(waiting - taken, after)
    assert after.total() <= running.total() + free
    if is_owed(waiting, running):
        assert taken  # somebody's wait ends
