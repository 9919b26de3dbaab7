"""Recorded runs, played as if they ran now: for those without the hardware, or without the time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

from aligner_lib.runs import RunFolder

RECORDED = ("run.json", "metrics.jsonl", "rollouts.jsonl", "alarms.jsonl")


class Recording:
    """A run folder that plays from its beginning when it is first read. `Monitor(Recording(path, speed=20))`.

    speed: recorded seconds a second; infinite shows the end at once. Acts like a RunFolder, but can't be stopped.
    """

    def __init__(self, path, speed: float = 20.0):
        if not speed > 0:
            raise ValueError(f"Recording(speed={speed!r}): it plays forwards; pause() holds it")
        self.folder = RunFolder(path)
        if not self.folder.info:
            raise FileNotFoundError(f"{self.folder.path} holds no recorded run: there is no run.json in it")
        self.path, self.name = self.folder.path, self.folder.name
        self._records = self.folder.metrics()
        self._start = min((record["time"] for record in self._records), default=0.0)
        self._end = max((record["time"] for record in self._records), default=0.0)
        self._speed = speed
        self._paused = False
        self._position, self._since = 0.0, None  # recorded seconds, and when they were true
        self.playings = 1  # how often it has been started

    def __repr__(self) -> str:
        return f"Recording({str(self.path)!r}, speed={self.speed:g})"

    # -- the player -----------------------------------------------------------------------------------------------

    @property
    def speed(self) -> float:
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._position, self._since = self.position, time.monotonic()
        self._speed = speed

    @property
    def position(self) -> float:
        """Recorded seconds played so far."""
        if self._since is None:
            self._since = time.monotonic()
        if math.isinf(self._speed):
            return self._end - self._start
        played = 0.0 if self._paused else (time.monotonic() - self._since) * self._speed
        return min(self._position + played, self._end - self._start)

    def pause(self, paused: bool = True) -> None:
        self._position, self._since = self.position, time.monotonic()
        self._paused = paused

    def restart(self) -> None:
        """Play it from the beginning again."""
        self._position, self._since, self._paused = 0.0, time.monotonic(), False
        self.playings += 1

    # -- as a run folder ------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        return self.folder.kind

    @property
    def is_over(self) -> bool:
        return self.position >= self._end - self._start

    @property
    def status(self) -> str:
        return self.folder.info["status"] if self.is_over else "running"

    @property
    def heartbeat_age(self) -> float:
        return 0.0

    @property
    def info(self) -> dict:
        over = self.is_over
        step = max((r["step"] for r in self._records if self.has_played(r)), default=0)
        info = self.folder.info
        message = info.get("message", "") if over else ""
        return info | {
            "status": self.status,
            "message": message,
            "heartbeat": {"time": time.time(), "step": step},
        }

    def has_played(self, record: dict) -> bool:
        return record["time"] - self._start <= self.position

    def metrics_reader(self) -> _Player:
        return _Player(self, self._records, self.has_played)

    def rollouts_reader(self) -> _Player:
        return _Player(
            self, self.folder.rollouts(), lambda rollout: rollout["step"] <= self.info["heartbeat"]["step"]
        )

    def rollouts(self) -> list[dict]:
        """The rollouts of the steps played so far."""
        return self.rollouts_reader().poll()

    def latest_checkpoint(self) -> None:
        return None


class _Player:
    """Reads like a JsonlReader: each poll gives the records whose time has come."""

    def __init__(self, recording: Recording, records: list[dict], has_come: Callable[[dict], bool]):
        self._recording, self._records, self._has_come = recording, records, has_come
        self._given = 0
        self._playing = recording.playings
        self.restarts = 0
        self.skipped = 0

    def poll(self, max_bytes: int | None = None) -> list[dict]:
        if self._playing != self._recording.playings:
            self._playing, self._given, self.restarts = self._recording.playings, 0, self.restarts + 1
        start = self._given
        while self._given < len(self._records) and self._has_come(self._records[self._given]):
            self._given += 1
        return self._records[start : self._given]


def record(run, folder, rollouts_a_step: int = 8) -> Path:
    """Copy what is worth playing of a run into a folder, with at most so many rollouts of each step and split."""
    run, folder = RunFolder(getattr(run, "path", run)), Path(folder)
    folder.mkdir(parents=True, exist_ok=False)
    for name in RECORDED:
        source = run.path / name
        if source.exists() and name != "rollouts.jsonl":
            (folder / name).write_bytes(source.read_bytes())
    seen: dict[tuple, int] = {}
    with open(folder / "rollouts.jsonl", "w", encoding="utf-8") as file:
        for rollout in run.rollouts():
            key = (rollout["step"], rollout["split"])
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= rollouts_a_step:
                file.write(json.dumps(rollout, ensure_ascii=False) + "\n")
    return folder
