"""Decide when a command takes too long. A server with a hanging rank can still answer requests for its status."""

from __future__ import annotations

OVERDUE_S = 30.0  # seconds before which no command is given up …
OVERDUE_FACTOR = 20  # … and as a multiple of the longest earlier command of its kind
FIRST_S = 600.0  # for the first command of a kind, in which libraries initialise themselves


def overdue(status: dict) -> str | None:
    """The reason to give up a server that answers: a rank hangs, so a command does not end. None for a healthy server."""
    doing, seconds = status["doing"], status["doing_s"]
    if doing == "starting":
        return None
    # an idle server looks for commands continuously
    longest = 0.0 if doing == "idle" else status["longest_s"].get(doing)
    if longest is None:
        return f"hangs: its first {doing} has taken {seconds:.0f} s" if seconds > FIRST_S else None
    if seconds <= max(OVERDUE_S, OVERDUE_FACTOR * longest):
        return None
    return f"hangs: nothing followed '{doing}' for {seconds:.0f} s, which never took more than {longest:.1f} s before"


def longest_with(longest: float | None, seconds: float) -> float:
    """The new longest duration of a kind of command, in seconds, after another command has ended.

    The duration at most doubles, beyond what OVERDUE_S allows anyway. Otherwise a single pause of the whole server would make
    the watch ignore later hangs. If a kind of command becomes slower for good, the recorded
    duration catches up after one or two reported hangs, and the watch no longer gives up the server.
    """
    if longest is None:
        return seconds
    return max(longest, min(seconds, 2 * max(longest, OVERDUE_S / OVERDUE_FACTOR)))
