"""Fair division of a batch's rows among shares. Pure functions of counts.

A share is a set of responses that compete for rows together, such as all responses of one request. The rule is max-min
fairness: a free row goes to the share with the fewest rows. A row is taken from the share with the most rows as long as the
taker does not end up with more rows than the giver.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Hashable, Sequence

Share = Hashable


def next_in_line(waiting: Sequence[Share], running: Counter[Share], count: int) -> list[int]:
    """The indices in `waiting` of the next `count` responses to get rows.

    Each row goes to the first response of the share with the fewest rows. waiting: the share of each response, in the order of
    arrival. running: the number of rows of each share. Among shares with equally many rows, the share with the earliest
    response comes first, so a single share is served in order.
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
    """The number of rows that each share gives up to waiting shares; empty if no share has too many rows.

    waiting, running: for each share, the number of waiting responses and the number of rows. free: the number of free rows.
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
    """Whether a waiting share has at least two rows fewer than another share, so that a row should change hands."""
    return bool(waiting) and min(running[share] for share in waiting) + 2 <= max(running.values(), default=0)
