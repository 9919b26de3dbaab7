"""When a command has taken too long: a server that answers may hang all the same, where one of its ranks does."""

from __future__ import annotations

OVERDUE_S = 30.0  # nothing that usually goes faster is given up before
OVERDUE_FACTOR = 20  # … or so many times the longest of its kind before
FIRST_S = 600.0  # the first of a kind: libraries set themselves up, and nobody knows how long it takes


def overdue(status: dict) -> str | None:
    """Why a server that answers is given up: one of its ranks hangs, so that no command comes to its end."""
    doing, seconds = status["doing"], status["doing_s"]
    if doing == "starting":
        return None
    longest = (
        0.0 if doing == "idle" else status["longest_s"].get(doing)
    )  # idle: it looks for commands all the time
    if longest is None:
        return f"hangs: its first {doing} has gone on for {seconds:.0f} s" if seconds > FIRST_S else None
    if seconds <= max(OVERDUE_S, OVERDUE_FACTOR * longest):
        return None
    return f"hangs: for {seconds:.0f} s nothing came after '{doing}', where it never took more than {longest:.1f} s"


def longest_with(longest: float | None, seconds: float) -> float:
    """The longest of a kind, in seconds, now that another has ended.

    It doubles at the most (from what OVERDUE_S allows anyway): a pause of the whole server does not blind the watch, and
    a kind that has become slower is given up once or twice, not for ever.
    """
    if longest is None:
        return seconds
    return max(longest, min(seconds, 2 * max(longest, OVERDUE_S / OVERDUE_FACTOR)))
