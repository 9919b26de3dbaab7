"""Each side in a process of its own, one round at a time in turn: A B C A B C …

Resident processes keep one library's threads, caches and patches out of another's way; taking turns spreads whatever
else the machine does evenly over the sides.
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
}  # a bf16 number has 16 bits fewer than a float32, and losses are means of many
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Rounds:
    """The side's end: `begin` waits for its turn, `end` reports. A side loops until `begin` ends its process."""

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
        """A context manager: what a round does inside, for the comparison's sake alone, costs it no time."""
        began = self._clock()
        yield
        self._started += self._clock() - began

    def end(self, tokens: int, *figures, **more) -> None:
        """As a `Round`, whose seconds are those since `begin`."""
        seconds = self._clock() - self._started
        self._connection.send(Round(seconds, tokens, *figures, **more))


@dataclass(frozen=True)
class Contestant:
    """A side before it runs. run(setting, connection) makes Rounds when it is ready to begin."""

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
    """Run the sides in turn: one warm-up round each, then setting.repeats rounds. Checks that the work was equal."""
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


class SideProcess:
    """The parent's end of a side: `round` gives it its turn and returns what it sends back, a Round in a contest."""

    def __init__(self, contestant: Contestant, setting: Setting):
        self.name = contestant.name
        context = multiprocessing.get_context("spawn")  # no library's threads are inherited
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
        with suppress(BrokenPipeError):  # then the side has ended, and what it said follows
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
    with open(log, "w") as file:  # libraries talk; the table shall be all there is
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        run(setting, connection)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
