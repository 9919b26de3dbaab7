"""Playback of recorded runs as live runs, for readers without the hardware or the time for training.

`widgets.recordings.recording_file` defines the file format.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, pairwise, takewhile
from statistics import median_low

from aligner_lib.run_folder.reader import RunFolder
from widgets.recordings.recording_file import find, read

PLAYED_SECONDS = 20.0  # duration of the playback of a bundle's run in a monitor
LONGEST_STEP = 5.0  # medians of the steps' seconds; a longer time is most often a pause or a long validation


class Recording:
    """A recorded run, played from the beginning: `Monitor(Recording("healthy", speed=60))`.

    source: the name of a recording of this package, a file of `widgets.recordings.recording_file.record`, or a run folder.
    speed: recorded seconds per second; infinity shows the end immediately. Pauses and long validations are shortened to
    LONGEST_STEP medians of the steps' seconds. The playback starts at the first read access. The class has RunFolder's interface; `request_stop` ends
    the playback. Raises ValueError for speed ≤ 0.
    """

    def __init__(self, source, speed: float = 20.0):
        if not speed > 0:
            raise ValueError(f"Recording(speed={speed!r}): give recorded seconds a second, more than 0")
        self.path = find(source)
        self._content = read(self.path)
        self.name = self._content.info.get("name") or self.path.name
        # the position of each metrics record
        self._positions = _positions([record["time"] for record in self._content.metrics])
        self._length = max(self._positions, default=0.0)
        self._speed = speed
        # a position in recorded seconds, and the clock's time at this position
        self._position, self._since = 0.0, None
        self._stopped_at: float | None = None
        self.playings = 1  # number of starts

    def __repr__(self) -> str:
        return f"Recording({str(self.path)!r}, speed={self.speed:g})"

    # -- the player -----------------------------------------------------------------------------------------------

    @property
    def speed(self) -> float:
        """Recorded seconds per second."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        """Change the speed, starting at the current position."""
        self._position, self._since = self.position, time.monotonic()
        self._speed = speed

    @property
    def position(self) -> float:
        """The recorded seconds that were played so far."""
        if self._since is None:
            self._since = time.monotonic()
        if self._stopped_at is not None:
            return self._stopped_at
        if math.isinf(self._speed):
            return self._length
        return min(self._position + (time.monotonic() - self._since) * self._speed, self._length)

    @property
    def length(self) -> float:
        """Recorded seconds from the first record to the last, with shortened pauses."""
        return self._length

    def request_stop(self) -> None:
        """End the playback at the current position. The recording then has the status `stopped`."""
        self._stopped_at = self.position

    def restart(self) -> None:
        """Play from the beginning again."""
        self._position, self._since, self._stopped_at = 0.0, time.monotonic(), None
        self.playings += 1

    # -- as a run folder ------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """The recorded run's kind of job."""
        return self._content.info.get("kind", "")

    @property
    def is_over(self) -> bool:
        """Whether the playback has reached its end or was stopped."""
        return self._stopped_at is not None or self.position >= self._length

    @property
    def status(self) -> str:
        """`running` during the playback; afterwards `stopped` or the final status of the recorded run."""
        if not self.is_over:
            return "running"
        return "stopped" if self.position < self._length or self._goes_on else self._content.info["status"]

    @property
    def heartbeat_age(self) -> float:
        """Always 0, because a recording has no process."""
        return 0.0

    @property
    def info(self) -> dict:
        """The content of run.json at the current position."""
        status, step = self.status, self._step
        message = self._content.info.get("message", "") if self.position >= self._length else ""
        if self.position < self._length and status == "stopped":
            message = f"the recording was stopped at step {step}; it goes on to step {self._last_step}"
        elif self.is_over and self._goes_on:
            message = "the run was not over when it was recorded"
        # after the playback the heartbeat stands still, so that nothing changes
        beat = self._last_time if self.is_over else time.time()
        now = {"status": status, "message": message, "heartbeat": {"time": beat, "step": step}}
        return self._content.info | now

    @property
    def _goes_on(self) -> bool:
        """Whether the run was not over when it was recorded. The recording has no later state."""
        return self._content.info["status"] in ("running", "waiting")

    @property
    def _step(self) -> int:
        return max((record["step"] for record in self._played()), default=0)

    @property
    def _last_time(self) -> float:
        return self._played()[-1]["time"] if self._positions else 0.0

    @property
    def _last_step(self) -> int:
        return self._content.metrics[-1]["step"]

    def _played(self) -> list[dict]:
        """The metrics records that the playback has reached."""
        return self._content.metrics[: bisect_right(self._positions, self.position)]

    def metrics_reader(self) -> _Player:
        """A reader that returns metrics records as the playback reaches them."""
        return _Player(self, self._played)

    def rollouts_reader(self) -> _Player:
        """A reader that returns rollouts as the playback reaches their steps."""
        return _Player(self, self._reached_rollouts)

    def _reached_rollouts(self) -> list[dict]:
        """The rollouts before the first one whose step the playback has not reached."""
        step = self._step
        return list(takewhile(lambda rollout: rollout["step"] <= step, self._content.rollouts))

    def metrics(self) -> list[dict]:
        """The metrics records played so far."""
        return self.metrics_reader().poll()

    def rollouts(self) -> list[dict]:
        """The rollouts of the steps played so far."""
        return self.rollouts_reader().poll()

    def alarms(self) -> list[dict]:
        """The alarms of the steps played so far."""
        return [alarm for alarm in self._content.alarms if alarm["step"] <= self._step]

    def latest_checkpoint(self) -> None:
        """Always None, because a recording has no checkpoints."""
        return None


def as_recorded(run):
    """A Recording of PLAYED_SECONDS for the folder of a bundle's recorded run. Other runs are returned unchanged."""
    if not isinstance(run, RunFolder) or "recorded" not in run.info:
        return run
    player = Recording(run)
    player.speed = max(1.0, player.length / PLAYED_SECONDS)
    return player


def _positions(times: list[float]) -> list[float]:
    """Seconds from the first record to each record, without the pauses of a resumed run and the set-backs of a clock.

    times: unix seconds of the records. Between two records are at least 0 and at most LONGEST_STEP medians of the differences.
    """
    seconds = [max(0.0, later - earlier) for earlier, later in pairwise(times)]
    longest = LONGEST_STEP * median_low([s for s in seconds if s > 0] or [0.0])
    return list(accumulate((min(s, longest) for s in seconds), initial=0.0)) if times else []


class _Player:
    """A reader with JsonlReader's interface. A poll returns the records that the playback has reached since the last poll."""

    def __init__(self, recording: Recording, reached: Callable[[], list[dict]]):
        """reached: returns all records that the playback has reached."""
        self._recording, self._reached = recording, reached
        self._given = 0
        self._playing = recording.playings
        self.restarts = 0
        self.skipped = 0

    def poll(self, max_bytes: int | None = None) -> list[dict]:
        if self._playing != self._recording.playings:
            self._playing, self._given, self.restarts = self._recording.playings, 0, self.restarts + 1
        news = self._reached()[self._given :]
        self._given += len(news)
        return news
