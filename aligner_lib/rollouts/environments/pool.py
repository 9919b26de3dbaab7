"""Environments in processes of their own: one that raises, hangs or dies costs its sample and nothing else.

Processes hold no state of an episode: every request replays it from its seed and the responses so far. So any process
may take any request, a lost one is replaced by a new one, and a run that is resumed goes on exactly.
"""

from __future__ import annotations

import atexit
import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from omegaconf import OmegaConf
from pebble import ProcessExpired, ProcessPool

from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments import tracebacks, worker
from aligner_lib.rollouts.environments.base import Prompt, Step
from aligner_lib.rollouts.environments.registry import find
from aligner_lib.rollouts.environments.worker import Blueprint, Description, Problem

RESTARTS = 3  # of a pool whose processes were killed from outside, for one request


class Settings(Protocol):
    """What is read here of aligner_lib.config.environments.EnvironmentSettings."""

    use: str  # empty: as it is named
    timeout: float
    processes: int
    args: Mapping[str, Any]


@dataclass(frozen=True)
class Episode:
    """An episode: its environment's name, its seed, and the policy's responses so far."""

    environment: str
    seed: int
    responses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Why an environment did not answer."""

    environment: str
    seed: int
    reason: str  # raised, timeout, not_finite, died
    text: str  # a traceback or a sentence


class Environments:
    """The environments of a run by name, for one split; each has `processes` processes, and as many requests at a time.

    Raises UserError for a `use` or `args` that makes no sense. Workers are started afresh (spawn): they have neither
    torch nor its threads.
    """

    def __init__(self, settings: Mapping[str, Settings], split: str):
        self.names = list(settings)
        self._processes = {name: one.processes for name, one in settings.items()}
        atexit.register(self.close)  # before pebble's own end, which waits seconds for each process
        self._folder = tempfile.TemporaryDirectory(prefix="aligner-environments-")
        self._pools: dict[str, ProcessPool] = {}
        self._blueprints: dict[str, Blueprint] = {}
        try:
            for name, one in settings.items():
                self._blueprints[name] = self._blueprint(name, one, split)
            self._descriptions = self._described()
        except BaseException:
            self.close()
            raise

    def sizes(self) -> dict[str, int | None]:
        """How many different episodes each has; None: endless."""
        return {name: described.size for name, described in self._descriptions.items()}

    def max_turns(self) -> dict[str, int]:
        """How many responses an episode of each may have."""
        return {name: described.max_turns for name, described in self._descriptions.items()}

    def reset(self, episodes: Sequence[Episode]) -> list[Prompt | Failure]:
        """The prompt of each episode."""
        return self._ask(worker.reset, episodes)

    def step(self, episodes: Sequence[Episode]) -> list[Step | Failure]:
        """What each says to the last of its responses; the others are replayed. Reward and metrics are finite."""
        return self._ask(worker.step, episodes)

    def close(self) -> None:
        """End the processes."""
        atexit.unregister(self.close)
        for pool in self._pools.values():
            pool.stop()
        for pool in self._pools.values():
            pool.join()
        self._pools.clear()
        self._folder.cleanup()

    def __enter__(self) -> Environments:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _blueprint(self, name: str, one: Settings, split: str) -> Blueprint:
        args = OmegaConf.to_container(one.args) if OmegaConf.is_config(one.args) else dict(one.args)
        try:
            found = find(one.use or name)
        except UserError as error:
            raise _in_settings(name, str(error)) from None
        return Blueprint(found, split, args, one.timeout, self._folder.name)

    def _described(self) -> dict[str, Description]:
        requests = [_Request(self, name, worker.describe) for name in self.names]
        described = dict(zip(self.names, [request.result() for request in requests]))
        for name, answer in described.items():
            if isinstance(answer, Problem):
                why = "" if answer.reason == "refused" else "it can't be built: "
                raise _in_settings(name, f"{why}{answer.text}")
        return described

    def _ask(self, function: Callable, episodes: Sequence[Episode]) -> list:
        requests = [_Request(self, one.environment, function, one.seed, one.responses) for one in episodes]
        return [
            Failure(one.environment, one.seed, answer.reason, answer.text)
            if isinstance(answer, Problem)
            else answer
            for one, answer in zip(episodes, [request.result() for request in requests])
        ]

    def _schedule(self, name: str, function: Callable, args: Iterable) -> Future:
        blueprint, pool = self._blueprints[name], self._pools.get(name) or self._start(name)
        # A process bounds itself (worker._bounded). This bound is for one that has been stopped.
        timeout = worker.BUILD_SECONDS + blueprint.timeout
        return pool.schedule(function, args=[blueprint, *args], timeout=timeout)

    def _start(self, name: str) -> ProcessPool:
        self._pools[name] = ProcessPool(
            max_workers=self._processes[name],
            initializer=worker.ignore_warnings,
            context=multiprocessing.get_context("spawn"),
        )
        return self._pools[name]


class _Request:
    """One call in one of an environment's processes, begun when this is made."""

    def __init__(self, environments: Environments, name: str, function: Callable, *args: Any):
        self._environments, self._name, self._function, self._args = environments, name, function, args
        self._begin()

    def result(self) -> Any:
        """What the function returned, or a Problem. Waits for it."""
        for _ in range(RESTARTS):
            while not wait([self._future], timeout=1).done and self._pool.active:
                pass
            try:
                return self._outcome()
            except BrokenProcessPool:  # its processes were killed while they had no work
                self._begin()
        return Problem("died", "its processes were killed from outside, again and again")

    def _begin(self) -> None:
        pools = self._environments._pools
        if (pool := pools.get(self._name)) and not pool.active:
            pool.join()
            del pools[self._name]
        self._future = self._environments._schedule(self._name, self._function, self._args)
        self._pool = pools[self._name]

    def _outcome(self) -> Any:
        building = self._function is worker.describe
        seconds = worker.BUILD_SECONDS if building else self._environments._blueprints[self._name].timeout
        if not self._future.done():
            raise BrokenProcessPool
        try:
            return self._future.result()
        except TimeoutError:
            return Problem("timeout", f"no answer within {seconds:g} s")
        except ProcessExpired as error:
            if hung := self._hung(error.pid):
                return Problem(
                    "timeout",
                    f"no answer within {seconds:g} s; it was here, the innermost call first:\n{hung}",
                )
            return Problem("died", f"its process ended with exit code {error.exitcode}")

    def _hung(self, pid: int) -> str:
        """Where a process was when its time was over; empty where it ended otherwise."""
        file = Path(self._environments._folder.name) / str(pid)
        return tracebacks.of_dump(file.read_text()) if file.exists() else ""


def _in_settings(name: str, words: str) -> UserError:
    return UserError(f"model.environments.{name}: {words}")
