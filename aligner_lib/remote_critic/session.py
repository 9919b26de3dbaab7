"""Decide whether the actor still runs, from its messages, its run folder, and the time since its last message."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from aligner_lib.remote_critic.errors import Refusal
from aligner_lib.run_folder.reader import RunFolder

ANOTHER_S = 30.0  # an actor with a message within this time is not replaced by the actor of another run


@dataclass(frozen=True)
class ServiceEnd:
    """The reason why the service is over."""

    status: str
    """finished, stopped or failed."""
    message: str


class ActorRun(NamedTuple):
    """The run of an actor."""

    path: str
    """The run folder."""
    created: float | None = None
    """`created` in run.json, which a moved or copied folder keeps; None in checkpoints and requests of earlier releases."""

    def is_same(self, other: ActorRun) -> bool:
        """Whether both are the same run, which may have been moved, copied, or begun anew in its folder."""
        if self.created is not None and self.created == other.created:
            return True
        return os.path.realpath(self.path) == os.path.realpath(other.path)


class ActorSession:
    """The actor that the service serves. The service ends when the actor has ended, or has been silent for too long."""

    def __init__(self, timeout_s: float):
        self.timeout_s = timeout_s
        self.actor: str | None = None  # identifies a start of a run
        self.run: ActorRun | None = None
        self._heard = time.monotonic()
        self._welcomed = 0.0  # seconds since the epoch

    @property
    def silence_s(self) -> float:
        return time.monotonic() - self._heard

    def open(self) -> None:
        """Start the time limit for silence. Call `open` when actors can connect."""
        self._heard = time.monotonic()

    def heard(self, actor: str | None) -> None:
        if actor is not None and actor == self.actor:
            self._heard = time.monotonic()

    @property
    def run_path(self) -> str | None:
        return self.run and self.run.path

    def welcome(self, actor: str, run: ActorRun, owner: ActorRun | None) -> None:
        """Serve this actor from now on. owner: the run to which the checkpoints belong. Raises Refusal for another run."""
        if self.actor is not None and run.path != self.run_path and self.silence_s < ANOTHER_S:
            raise Refusal(
                f"the server serves another actor, {self.run_path}, last heard {self.silence_s:.0f} s ago: start "
                "another critic with another --run and trainer.ppo.port for this actor"
            )
        if owner is not None and not owner.is_same(run):
            raise Refusal(
                f"the server's checkpoints belong to another actor, {owner.path}: start the critic with another --run for "
                "this actor"
            )
        self.actor, self.run = actor, run
        self._heard, self._welcomed = time.monotonic(), time.time()

    def should_exit(self) -> ServiceEnd | None:
        """The end of the service, when the actor has ended or has been silent for too long; else None."""
        if self.run_path is not None:
            info = self._actors_info()
            status = info.get("status")
            beat = (info.get("heartbeat") or {}).get("time", 0.0)
            if status in ("finished", "stopped") and beat < self._welcomed:
                # a refused attempt leaves the earlier attempt's run.json in place; a refused branch never had a heartbeat
                return ServiceEnd(
                    "stopped", f"its actor, {self.run_path}, ended before it began: see the actor's log"
                )
            if status == "finished":
                return ServiceEnd(status, f"its actor, {self.run_path}, is done")
            if status == "stopped":
                return ServiceEnd(status, f"its actor, {self.run_path}, was stopped")
            if status == "failed":
                return ServiceEnd(
                    "stopped", f"its actor, {self.run_path}, has failed: {info.get('message', '')}"
                )
        if self.silence_s > self.timeout_s:
            silent = (
                f"its actor, {self.run_path}, sent nothing for" if self.run_path else "no actor came within"
            )
            return ServiceEnd("stopped", f"{silent} {self.timeout_s:.0f} s (actor_timeout)")
        return None

    def _actors_info(self) -> dict:
        try:
            return RunFolder(self.run_path).info
        except (OSError, ValueError):  # a short failure of a shared disk says nothing about the actor
            return {}
