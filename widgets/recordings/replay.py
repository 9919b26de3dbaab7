"""Playback of recorded runs as live runs, for readers without the hardware or the time for training.

`widgets.recordings.recording_file` defines the file format.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from aligner_lib.run_folder.reader import RunFolder
from widgets.recordings.recording_file import find, read

PLAYED_SECONDS = 20.0  # duration of the playback of a bundle's run in a monitor


class Recording:
    """A recorded run, played from the beginning: `Monitor(Recording("healthy", speed=60))`.

    source: the name of a recording of this package, a file of `widgets.recordings.recording_file.record`, or a run folder.
    speed: recorded seconds per second; infinity shows the end immediately. The playback starts at the first read access. The
    class has RunFolder's interface; `request_stop` ends the playback. Raises ValueError for speed ≤ 0.
    """

    def __init__(self, source, speed: float = 20.0):
        if not speed > 0:
            raise ValueError(f"Recording(speed={speed!r}): give recorded seconds a second, more than 0")
        self.path = find(source)
        self._content = read(self.path)
        self.name = self._content.info.get("name") or self.path.name
        times = [record["time"] for record in self._content.metrics]
        self._start, self._length = (times[0], max(times) - times[0]) if times else (0.0, 0.0)
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
        """Recorded seconds from the first record to the last."""
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
        """`running` during the playback; afterwards `stopped` or the recorded run's status."""
        if not self.is_over:
            return "running"
        return "stopped" if self.position < self._length else self._content.info["status"]

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
        # after the playback the heartbeat stands still, so that nothing changes
        beat = self._start + self.position if self.is_over else time.time()
        now = {"status": status, "message": message, "heartbeat": {"time": beat, "step": step}}
        return self._content.info | now

    @property
    def _step(self) -> int:
        return max((r["step"] for r in self._content.metrics if self.has_played(r)), default=0)

    @property
    def _last_step(self) -> int:
        return self._content.metrics[-1]["step"]

    def has_played(self, record: dict) -> bool:
        """Whether the playback has reached a metrics record."""
        return record["time"] - self._start <= self.position

    def metrics_reader(self) -> _Player:
        """A reader that returns metrics records as the playback reaches them."""
        return _Player(self, self._content.metrics, lambda: self.has_played)

    def rollouts_reader(self) -> _Player:
        """A reader that returns rollouts as the playback reaches their steps."""
        return _Player(self, self._content.rollouts, self._has_reached)

    def _has_reached(self) -> Callable[[dict], bool]:
        """A test whether the playback has now reached a rollout's step."""
        step = self._step
        return lambda rollout: rollout["step"] <= step

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


class _Player:
    """A reader with JsonlReader's interface. A poll returns the records that the playback has reached since the last poll."""

    def __init__(self, recording: Recording, records: list[dict], test: Callable[[], Callable[[dict], bool]]):
        """test: returns the function that says whether the playback has reached a record."""
        self._recording, self._records, self._test = recording, records, test
        self._given = 0
        self._playing = recording.playings
        self.restarts = 0
        self.skipped = 0

    def poll(self, max_bytes: int | None = None) -> list[dict]:
        if self._playing != self._recording.playings:
            self._playing, self._given, self.restarts = self._recording.playings, 0, self.restarts + 1
        start, has_come = self._given, self._test()
        while self._given < len(self._records) and has_come(self._records[self._given]):
            self._given += 1
        return self._records[start : self._given]
