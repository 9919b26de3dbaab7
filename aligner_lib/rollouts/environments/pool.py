"""Environments in separate processes: an environment that raises, hangs or dies costs only one sample.

The processes keep no state of an episode, because every request replays the episode from its seed and the responses so far.
Therefore any process can take any request, a lost process can be replaced, and a resumed run continues exactly.
"""

from __future__ import annotations

import atexit
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from omegaconf import OmegaConf
from pebble import ProcessExpired, ProcessPool
from pebble.pool.process import PoolManager

from aligner_lib.config.environments import REWARD_MODEL
from aligner_lib.datasets.tool_calls import Tool
from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments import tracebacks, worker
from aligner_lib.rollouts.environments.base import Prompt, Step
from aligner_lib.rollouts.environments.process_group import GroupLeaders, check_locks
from aligner_lib.rollouts.environments.registry import find
from aligner_lib.rollouts.environments.worker import Blueprint, Description, Problem

RESTARTS = 3  # of one request, when the processes of a pool are killed from outside


class PoolSettings(Protocol):
    """The settings of aligner_lib.config.environments.EnvironmentSettings that this module reads."""

    use: str
    """Empty: the environment's name."""
    rewards: Mapping[str, float]
    timeout: float
    processes: int
    args: Mapping[str, Any]


@dataclass(frozen=True)
class Episode:
    """An episode: its environment's name, its seed, and the policy's responses so far."""

    environment: str
    seed: int
    responses: tuple[str, ...] = ()
    """Tool calls have the form `tags` (`aligner_lib.datasets.tool_calls`)."""
    group: int | None = None
    """The number of the group, of which a step has several where it draws a prompt twice; None: the seed."""


@dataclass(frozen=True)
class EnvironmentFailure:
    """The reason why an environment did not answer."""

    environment: str
    seed: int
    reason: str
    """raised, timeout, not_finite, reward_missing, died, too_long, templated, or the reason of a NoVerdict."""
    text: str
    """A traceback or a sentence."""


class Environments:
    """The environments of a run by name, for one split. Each environment has `processes` processes and serves as many requests
    at a time.

    Raises UserError for a wrong `use`, wrong `args`, `rewards` that the answer to an empty response lacks, and as `check_locks`
    does. Workers are spawned, not forked, so they do not inherit torch and its threads. The programs that a worker has started
    end with the worker.
    """

    def __init__(self, settings: Mapping[str, PoolSettings], split: str):
        check_locks()
        self.names = list(settings)
        self._processes = {name: environment.processes for name, environment in settings.items()}
        # runs before pebble's own exit function, which waits seconds for each process
        atexit.register(self.close)
        self._folder = tempfile.TemporaryDirectory(prefix="aligner-environments-")
        self._pools: dict[str, ProcessPool] = {}
        self._blueprints: dict[str, Blueprint] = {}
        try:
            for name, environment in settings.items():
                self._blueprints[name] = self._blueprint(name, environment, split)
            self._descriptions = self._described()
            self._check_rewards()
        except BaseException:
            self.close()
            raise

    def sizes(self) -> dict[str, int | None]:
        """The number of different episodes of each environment; None: endless."""
        return {name: description.size for name, description in self._descriptions.items()}

    def max_turns(self) -> dict[str, int]:
        """The largest number of responses in an episode of each environment."""
        return {name: description.max_turns for name, description in self._descriptions.items()}

    def tools(self) -> dict[str, tuple[Tool, ...]]:
        """The descriptions of each environment's tools."""
        return {name: description.tools for name, description in self._descriptions.items()}

    def reset(self, episodes: Sequence[Episode]) -> list[Prompt | EnvironmentFailure]:
        """The prompt of each episode."""
        return self._ask(worker.reset, episodes)

    def step(self, episodes: Sequence[Episode]) -> list[Step | EnvironmentFailure]:
        """Each episode's answer to its last response. Earlier responses are replayed. Rewards and metrics are finite."""
        together = [name for name in self.names if self._descriptions[name].judges_together]
        alone = [episode for episode in episodes if episode.environment not in together]
        answers: dict[str, Iterator] = {
            name: iter(
                self._ask_together(name, [episode for episode in episodes if episode.environment == name])
            )
            for name in together
        }
        answers |= dict.fromkeys(set(self.names) - set(together), iter(self._ask(worker.step, alone)))
        return [next(answers[episode.environment]) for episode in episodes]

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

    def _blueprint(self, name: str, settings: PoolSettings, split: str) -> Blueprint:
        args = (
            OmegaConf.to_container(settings.args, resolve=True)
            if OmegaConf.is_config(settings.args)
            else dict(settings.args)
        )
        try:
            source = find(settings.use or name)
        except UserError as error:
            raise _in_settings(name, str(error)) from None
        rewards = tuple(settings.rewards)
        if source == REWARD_MODEL and rewards:
            if REWARD_MODEL not in rewards:
                raise _in_settings(
                    name,
                    f"rewards={dict(settings.rewards)} lacks {REWARD_MODEL}, the reward model's score; give the score a weight, or "
                    "choose another environment",
                )
            rewards = tuple(reward for reward in rewards if reward != REWARD_MODEL)  # scored by the trainer
        return Blueprint(source, split, args, settings.timeout, rewards, self._folder.name)

    def _described(self) -> dict[str, Description]:
        requests = [_EnvironmentRequest(self, name, worker.describe) for name in self.names]
        descriptions = dict(zip(self.names, [request.result() for request in requests]))
        for name, answer in descriptions.items():
            if isinstance(answer, Problem):
                prefix = "" if answer.reason == "refused" else "it can't be built: "
                raise _in_settings(name, f"{prefix}{answer.text}")
        return descriptions

    def _check_rewards(self) -> None:
        """Let each environment with several rewards judge an empty response. A failure for another reason than a missing reward
        proves nothing."""
        named = [name for name in self.names if self._blueprints[name].rewards]
        for answer in self.step([Episode(name, 0, ("",)) for name in named]):
            if isinstance(answer, EnvironmentFailure) and answer.reason == "reward_missing":
                raise _in_settings(answer.environment, answer.text)

    def _ask(self, function: Callable, episodes: Sequence[Episode]) -> list:
        requests = [
            _EnvironmentRequest(self, episode.environment, function, episode.seed, episode.responses)
            for episode in episodes
        ]
        return _as_failures(episodes, [request.result() for request in requests])

    def _ask_together(self, name: str, episodes: Sequence[Episode]) -> list[Step | EnvironmentFailure]:
        """The answers of an environment with `judges_together`, from one call for all responses."""
        if not episodes:
            return []
        assert all(len(episode.responses) == 1 for episode in episodes), (
            "an episode has a single response here"
        )
        seeds, responses = zip(*((episode.seed, episode.responses[0]) for episode in episodes))
        groups = tuple(episode.seed if episode.group is None else episode.group for episode in episodes)
        answer = _EnvironmentRequest(self, name, worker.step_all, seeds, responses, groups).result()
        answers = [answer] * len(episodes) if isinstance(answer, Problem) else answer
        return _as_failures(episodes, answers)

    def _seconds(self, name: str, function: Callable, args: Sequence) -> float:
        """The time limit of a request, in seconds."""
        if function is worker.describe:
            return worker.BUILD_SECONDS
        groups = args[-1] if function is worker.step_all else worker.groups_of(*args)
        return worker.time_limit(self._blueprints[name], self._descriptions[name], groups)

    def _schedule(self, name: str, function: Callable, args: Sequence) -> Future:
        blueprint, pool = self._blueprints[name], self._pools.get(name) or self._start(name)
        # A process limits its own time (worker._bounded). The pool's limit is for a stopped process (SIGSTOP).
        timeout = worker.BUILD_SECONDS + self._seconds(name, function, args)
        return pool.schedule(function, args=[blueprint, *args], timeout=timeout)

    def _start(self, name: str) -> ProcessPool:
        self._pools[name] = _Pool(
            max_workers=self._processes[name],
            initializer=worker.leave_ranks,
            context=GroupLeaders(),
        )
        return self._pools[name]


class _Pool(ProcessPool):
    """A pool of pebble that blames the right task for the end of a worker."""

    def __init__(self, *, context: GroupLeaders, **settings: Any):
        super().__init__(context=context, **settings)
        names = ("handle_worker_expiration", "process_next_message", "stop")
        assert hasattr(self, "_pool_manager") and all(hasattr(PoolManager, name) for name in names), (
            "this version of pebble has other private parts: install the version in requirements.lock"
        )
        self._pool_manager = _PoolManager(self._context, context)


class _PoolManager(PoolManager):
    """Reads an ended worker's last messages before it blames the task that the worker had last, and ends the workers before
    their locks.

    pebble notices an end in one thread and reads the messages in another. Without the last messages, the task before would fail,
    and the task that ended the worker would seem to run until its time limit.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._ends: deque[tuple[int, int]] = deque()

    def handle_worker_expiration(self, expiration: tuple[int, int]) -> None:
        self._ends.append(expiration)

    def stop(self) -> None:
        # pebble removes the locks first, and a worker that is still starting would print a traceback
        self.worker_manager.force_stop_workers()
        super().stop()

    def process_next_message(self, timeout: float) -> None:
        while self._ends:
            with suppress(OSError):  # the pool is closing
                while self.worker_manager.pool_channel.poll(0):
                    super().process_next_message(0)
            super().handle_worker_expiration(self._ends.popleft())
        super().process_next_message(timeout)


class _EnvironmentRequest:
    """A call in a process of an environment. The constructor begins the call."""

    def __init__(self, environments: Environments, name: str, function: Callable, *args: Any):
        self._environments, self._name, self._function, self._args = environments, name, function, args
        self._begin()

    def result(self) -> Any:
        """Wait for the call. Returns the function's result, or a Problem."""
        for _ in range(RESTARTS):
            while not wait([self._future], timeout=1).done and self._pool.active:
                pass
            try:
                return self._outcome()
            except BrokenProcessPool:  # the processes were killed while they were idle
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
        seconds = self._environments._seconds(self._name, self._function, self._args)
        if not self._future.done():
            raise BrokenProcessPool
        try:
            return self._future.result()
        except TimeoutError:
            return Problem("timeout", f"no answer within {seconds:g} s")
        except ProcessExpired as error:
            if dump := self._dump(error.pid):
                # a new process builds its environment first, with a limit of its own
                limit = tracebacks.limit_of_dump(dump)
                return Problem(
                    "timeout",
                    f"no answer within {limit:g} s; it was here, the innermost call first:\n{tracebacks.of_dump(dump)}",
                )
            return Problem("died", f"its process ended with exit code {error.exitcode}")

    def _dump(self, pid: int) -> str:
        """What faulthandler wrote about a process at its time limit; empty for a process with another end."""
        file = Path(self._environments._folder.name) / str(pid)
        return file.read_text() if file.exists() else ""


def _as_failures(episodes: Sequence[Episode], answers: Sequence) -> list:
    """The answers to episodes. Each Problem is replaced by an EnvironmentFailure of its episode."""
    return [
        EnvironmentFailure(episode.environment, episode.seed, answer.reason, answer.text)
        if isinstance(answer, Problem)
        else answer
        for episode, answer in zip(episodes, answers)
    ]


def _in_settings(name: str, message: str) -> UserError:
    return UserError(f"model.environments.{name}: {message}")
