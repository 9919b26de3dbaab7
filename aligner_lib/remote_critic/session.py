"""Is the actor still there? What it says itself, what its run folder says, and how long it has been silent."""

from __future__ import annotations

import time
from dataclasses import dataclass

from aligner_lib.remote_critic.errors import Refusal
from aligner_lib.run_folder.reader import RunFolder

ANOTHER_S = 30.0  # an actor that was heard of so lately is not replaced by another run's


@dataclass(frozen=True)
class Ended:
    """Why the service is over."""

    status: str  # finished, stopped or failed
    message: str


class ActorSession:
    """The one actor that is served. The server ends when it is done, or has been silent for too long."""

    def __init__(self, timeout_s: float):
        self.timeout_s = timeout_s
        self.actor: str | None = None  # names one start of one run
        self.run_path: str | None = None
        self._heard = time.monotonic()
        self._welcomed = 0.0  # seconds since the epoch

    @property
    def silence_s(self) -> float:
        return time.monotonic() - self._heard

    def open(self) -> None:
        """From now on an actor can come."""
        self._heard = time.monotonic()

    def heard(self, actor: str | None) -> None:
        if actor is not None and actor == self.actor:
            self._heard = time.monotonic()

    def welcome(self, actor: str, run_path: str, owner: str | None) -> None:
        """From now on this actor is served. owner: the run whose checkpoints lie here. Raises Refusal for another run."""
        if self.actor is not None and run_path != self.run_path and self.silence_s < ANOTHER_S:
            raise Refusal(
                f"it serves another actor, {self.run_path}, which was heard of {self.silence_s:.0f} s ago: start a "
                "critic with another --run and trainer.ppo.port for this one"
            )
        if owner not in (None, run_path):
            raise Refusal(
                f"its checkpoints belong to another actor, {owner}: start the critic with another --run for this one"
            )
        self.actor, self.run_path = actor, run_path
        self._heard, self._welcomed = time.monotonic(), time.time()

    def should_exit(self) -> Ended | None:
        """Whether the actor's end, or its silence, ends the service."""
        if self.run_path is not None:
            info = self._actors_info()
            status = info.get("status")
            if status in ("finished", "stopped") and info["heartbeat"]["time"] < self._welcomed:
                # an attempt that was refused leaves the run.json of the attempt before
                return Ended(
                    "stopped", f"its actor, {self.run_path}, ended before it began: its log says why"
                )
            if status == "finished":
                return Ended(status, f"its actor, {self.run_path}, is done")
            if status == "stopped":
                return Ended(status, f"its actor, {self.run_path}, was stopped")
            if status == "failed":
                return Ended("stopped", f"its actor, {self.run_path}, has failed: {info.get('message', '')}")
        if self.silence_s > self.timeout_s:
            silent = (
                f"its actor, {self.run_path}, was not heard of for"
                if self.run_path
                else "no actor came within"
            )
            return Ended("stopped", f"{silent} {self.timeout_s:.0f} s (actor_timeout)")
        return None

    def _actors_info(self) -> dict:
        try:
            return RunFolder(self.run_path).info
        except (OSError, ValueError):  # a shared disk that hiccups says nothing of the actor
            return {}
