"""The judge of notebook 13: a model on a server of this machine, recorded verdicts, or a server elsewhere."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from aligner_lib.errors import UserError
from aligner_lib.tutorial.judging.verdicts import recorded_judge

KEY_VARIABLE = "NOTEBOOK_JUDGE_KEY"
ROWS = 8  # requests that are answered at the same time
START_S, POLL_S, END_S = 600, 0.5, 20
"""Seconds: until a server on a busy machine must answer, between two attempts, and for the end of a server."""
NEWS_S = 20.0
"""Seconds between two lines of a long wait for the judge."""


@dataclass
class ServedJudge:
    """A model behind `aligner serve` on loopback. `stop` ends the server; a `with` block does the same."""

    url: str
    model: str
    process: subprocess.Popen

    def args(self) -> dict[str, object]:
        """The arguments of the environment `judge` for this server."""
        return {"url": self.url, "model": self.model, "key_variable": KEY_VARIABLE}

    def stop(self) -> None:
        """End the server. A second call does nothing."""
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> ServedJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_served: ServedJudge | None = None
"""The last server of this process. A notebook's cell that runs again must not keep a second model in memory."""


def serve_judge(model: str | Path) -> ServedJudge:
    """Start a server for a model, and return when the server answers. An earlier server of this process ends.

    model: as for `aligner serve`. The environment variable KEY_VARIABLE gets the server's random token. Raises UserError with
    the server's last words if the server ends before an answer.
    """
    global _served
    if _served is not None:
        _served.stop()
    os.environ[KEY_VARIABLE] = secrets.token_hex(16)
    # The server itself takes a free port: between a choice here and the server's start, another program could take the port.
    options = ["--port", "0", "--rows", str(ROWS)]
    command = [sys.executable, "-m", "aligner_lib", "serve", str(model), *options]
    environment = os.environ | {"ALIGNER_SERVE_TOKEN": os.environ[KEY_VARIABLE]}
    with tempfile.TemporaryFile("w+") as words:
        process = subprocess.Popen(command, env=environment, stdout=words, stderr=words)
        judge = _served = ServedJudge("", str(model), process)
        atexit.register(judge.stop)
        waited = time.monotonic()
        try:
            while not (url := _greeted(words)):
                if process.poll() is not None or time.monotonic() - waited > START_S:
                    judge.stop()
                    words.seek(0)
                    raise UserError(f"no server for {model} has started: {words.read()[-1000:]}")
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            judge.stop()
            raise
    judge.url = url
    return judge


@dataclass(frozen=True)
class JudgeElsewhere:
    """Recorded verdicts, or a running server."""

    arguments: dict[str, object]

    def args(self) -> dict[str, object]:
        """The arguments of the environment `judge`."""
        return self.arguments

    def stop(self) -> None:
        """Do nothing."""


class PrintedProgress:
    """Prints how many requests are done, every NEWS_S seconds. For `JudgeEndpoint.on_answer`."""

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._printed = now()

    def __call__(self, done: int, requests: int) -> None:
        now = self._now()
        if done == 1:
            self._printed = now  # a new wait begins
        elif done < requests and now - self._printed >= NEWS_S:
            self._printed = now
            print(f"{done} of {requests} requests to the judge are done", flush=True)


def endpoint_of(judge: str, model: str, folder: Path) -> ServedJudge | JudgeElsewhere:
    """The judge of the notebook.

    judge: "recorded" for the recorded verdicts, "live" for a new server on this machine, or the address of a server, whose key is
    in the environment variable JUDGE_KEY if the server needs a key. model: the model of the server. folder: for caches. Raises
    UserError for any other `judge`.
    """
    if judge == "recorded":
        return JudgeElsewhere(recorded_judge(folder))
    if judge == "live":
        return serve_judge(model)
    if not judge.startswith(("http://", "https://")):
        raise UserError(
            f"judge={judge!r}: write recorded, live, or the address of a server, such as http://127.0.0.1:8000"
        )
    key = {"key_variable": "JUDGE_KEY"} if "JUDGE_KEY" in os.environ else {}
    return JudgeElsewhere({"url": judge, "model": model} | key)


def _greeted(words: IO[str]) -> str | None:
    """The address in the greeting of a server that answers; None before. words: the server's output."""
    # not `words.read`, which would move the position at which the server writes
    output = os.pread(words.fileno(), os.fstat(words.fileno()).st_size, 0).decode(errors="replace")
    greeting = re.search(r" is served at (http://127\.0\.0\.1:\d+)/v1 ", output)
    return greeting and greeting[1]
