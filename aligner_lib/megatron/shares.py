"""Rows of a batch shared fairly among those who want them: a share is whatever competes as one, such as a request of many
responses. Pure functions of counts.

The rule is max-min fairness: a free row goes to the share with the fewest rows, and a row is taken from the share with the
most as long as that leaves it with no fewer than the share that gets the row.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Hashable, Sequence

Share = Hashable


def next_in_line(waiting: Sequence[Share], running: Counter[Share], count: int) -> list[int]:
    """Places in `waiting` of the next `count` that get rows: each time the first of the share with the fewest rows.

    waiting: the share of each, in the order in which they came. running: how many rows each share has. Of shares with
    equally many rows, the one whose first member came first; so a single share is served in order.
    """
    places: dict[Share, deque[int]] = {}
    for place, share in enumerate(waiting):
        places.setdefault(share, deque()).append(place)
    line = [(running[share], members[0], share) for share, members in places.items()]
    heapq.heapify(line)
    chosen: list[int] = []
    while line and len(chosen) < count:
        rows, place, share = heapq.heappop(line)
        chosen.append(place)
        places[share].popleft()
        if places[share]:
            heapq.heappush(line, (rows + 1, places[share][0], share))
    return chosen


def rows_to_give_up(waiting: Counter[Share], running: Counter[Share], free: int) -> Counter[Share]:
    """How many rows each share gives up to others that wait; empty where all have their part.

    waiting and running: how many members of each share wait, and have rows. free: rows that nobody has.
    """
    waiting, rows, given_up = Counter(+waiting), Counter(running), Counter()
    while waiting:
        poorest = min(waiting, key=lambda share: rows[share])
        if free > 0:
            free -= 1
        else:
            richest = max(rows, key=lambda share: rows[share])
            if rows[richest] - rows[poorest] < 2:
                break
            rows[richest] -= 1
            given_up[richest] += 1
        rows[poorest] += 1
        waiting = waiting - Counter([poorest])
    return given_up


def is_owed(waiting: Counter[Share], running: Counter[Share]) -> bool:
    """Whether a share that waits has at least two rows fewer than another, so that one of them should change hands."""
    return bool(waiting) and min(running[share] for share in waiting) + 2 <= max(running.values(), default=0)
