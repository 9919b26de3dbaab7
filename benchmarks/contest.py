"""Run each side in its own process, one round at a time in turn: A B C A B C …

With permanent processes, the threads, caches and patches of a library do not affect the other sides. The turns spread other
work of the machine evenly over the sides.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from benchmarks.measure import Comparison, Round, Side
from benchmarks.setting import Setting

START_SECONDS = 600  # imports and models on a busy machine
ROUND_SECONDS = 1800
ROUNDING = {
    "32": 1.0,
    "bf16": 200.0,
}  # a bf16 number has 16 bits fewer than a float32, and losses are means of many numbers
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Rounds:
    """The side's end of the connection. `begin` waits for the side's turn, `end` reports a round. A side loops until `begin`
    ends its process."""

    def __init__(self, setting: Setting, connection: Connection):
        self._clock = CLOCKS[setting.clock]
        self._connection = connection
        self._connection.send("ready")

    def begin(self) -> None:
        if self._connection.recv() == "stop":
            sys.exit(0)
        self._started = self._clock()

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """A context manager for work that only the comparison needs: the block's time does not count."""
        began = self._clock()
        yield
        self._started += self._clock() - began

    def end(self, tokens: int, *figures, **more) -> None:
        """Report a `Round`, whose seconds are the seconds since `begin`."""
        seconds = self._clock() - self._started
        self._connection.send(Round(seconds, tokens, *figures, **more))


@dataclass(frozen=True)
class Contestant:
    """A side before its start. run(setting, connection) makes a Rounds object when the side is ready."""

    name: str
    settings: str
    run: Callable[[Setting, Connection], None]


def compete(
    name: str,
    contestants: list[Contestant],
    setting: Setting,
    aim: float | None,
    say: Callable[[str], None] = print,
) -> Comparison:
    """Run the sides in turn: a warm-up round for each side, then setting.repeats rounds. Checks that the sides did equal
    work."""
    if setting.beside is not None:
        # the target is a speed beside the first of the others
        aim = aim if 1 in setting.beside else None
        contestants = contestants[:1] + [c for i, c in enumerate(contestants) if i in setting.beside]
    with ExitStack() as stack:
        processes = [stack.enter_context(SideProcess(contestant, setting)) for contestant in contestants]
        sides = [Side(contestant.name, contestant.settings) for contestant in contestants]
        for side, process in zip(sides, processes):
            side.warm_up = process.round()
        for number in range(1, setting.repeats + 1):
            for side, process in zip(sides, processes):
                side.rounds.append(process.round())
            speeds = ", ".join(f"{side.name} {side.speeds[-1]:,.0f}" for side in sides)
            say(f"{name}, round {number} of {setting.repeats}: {speeds} tokens/s")
    comparison = Comparison(name, "real tokens/s", sides, aim, ROUNDING[setting.precision])
    comparison.check_equal_work()
    return comparison


def check_beside(name: str, contestants: list[Contestant], beside: tuple[int, ...]) -> None:
    """End the program if a number of --beside has no side."""
    others = {number: side for number, side in enumerate(contestants) if number}
    if unknown := sorted(set(beside) - set(others)):
        sides = "; ".join(f"{number}: {side.name}, {side.settings}" for number, side in others.items())
        sys.exit(f"error: --beside {','.join(map(str, unknown))}: the other sides of {name} are {sides}")


class SideProcess:
    """The parent's end of the connection. `round` starts a round of the side and returns the side's message, a Round in a
    contest."""

    def __init__(self, contestant: Contestant, setting: Setting):
        self.name = contestant.name
        context = multiprocessing.get_context("spawn")  # so that a side inherits no library's threads
        self.connection, theirs = context.Pipe()
        self.log = Path(tempfile.mkstemp(suffix=".log", dir=setting.folder)[1])
        self.process = context.Process(
            target=_run_side, args=(contestant.run, setting, theirs, self.log), daemon=True
        )

    def __enter__(self) -> SideProcess:
        self.process.start()
        self._receive(START_SECONDS)
        return self

    def __exit__(self, *_) -> None:
        if self.process.is_alive():
            with suppress(BrokenPipeError):
                self.connection.send("stop")
            self.process.join(30)
        self.process.kill()

    def round(self):
        # the pipe is broken when the side has ended; its last message follows
        with suppress(BrokenPipeError):
            self.connection.send("go")
        return self._receive(ROUND_SECONDS)

    def _receive(self, seconds: float):
        deadline = time.monotonic() + seconds
        while not self.connection.poll(1):
            if not self.process.is_alive():
                self._fail("ended early")
            if time.monotonic() > deadline:
                self._fail(f"did not answer within {seconds:.0f} s")
        try:
            return self.connection.recv()
        except EOFError:
            self._fail("ended early")

    def _fail(self, what: str) -> NoReturn:
        self.process.join(5)
        last_lines = self.log.read_text(errors="replace").splitlines()[-20:]
        raise RuntimeError(f"the side {self.name!r} {what}; its last words:\n" + "\n".join(last_lines))


def _run_side(run: Callable, setting: Setting, connection: Connection, log: Path) -> None:
    with open(log, "w") as file:  # the libraries' messages go to the log, so that only the table is printed
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        run(setting, connection)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
