"""One server, seen from the actor: calls in threads of their own, and a watch that notices within seconds that it died.

A call's own time limit can't tell a dead server from a busy one, so calls wait long, and the watch decides. A server
that answers may still hang: its status comes from threads beside those that work, and says for how long they have been
at what they do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass

from aligner_lib.errors import UserError
from aligner_lib.remote_critic import discovery, serialization
from aligner_lib.remote_critic.errors import Refusal, from_words
from aligner_lib.remote_critic.hang_detection import overdue
from aligner_lib.remote_critic.pytriton_client import PyTritonConnection, Unreachable, probe
from aligner_lib.run_folder.reader import RunFolder

POLL_S = 1.0
STATUS_S = 5.0  # a status is answered at once, whatever the server is doing
SILENCE_S = 12.0  # without a status for so long, the server is lost: two that were not answered


class Lost(ConnectionError):
    """The server is gone. The text completes "the critic at host:port …"."""


@dataclass(frozen=True)
class Endpoint:
    """Where a server is to be found, as the settings say: by run folder, or by ip and port."""

    service: str  # critic or reward_model
    ip: str | None
    port: int
    run: str | None

    def __str__(self) -> str:
        name = self.service.replace("_", " ")
        return f"the {name} of {self.run}" if self.run else f"the {name} at {self.ip}:{self.port}"


class ServerConnection:
    """Connected by `connect`; once `lost`, connect again."""

    def __init__(self, where: Endpoint, actor: str, answer_s: float = 3600.0):
        """actor: how this start of this run is told from others. answer_s: what a living server is given for an answer;
        many requests may be in the line before it."""
        self.where, self.actor, self.answer_s = where, actor, answer_s
        self.lost: str | None = "is not connected yet"
        self._connection: PyTritonConnection | None = None

    # -- coming and going -----------------------------------------------------------------------------------------

    def connect(self) -> dict:
        """Find the server, and return its status. Raises Unreachable, at the latest after a few seconds."""
        found = discovery.find(self.where.service, self.where.ip, self.where.port, self.where.run)
        if found is None:
            raise Unreachable("has not said yet where it answers")
        if found.token is None:
            probe(found.host, found.port)
            raise Unreachable(
                "listens, and has not said its token: it is just starting, or it is another program"
            )
        connection = PyTritonConnection(found.host, found.port, found.token)
        status = _within(STATUS_S + 2, lambda: self._status(connection))
        if reason := overdue(status):
            raise Unreachable(reason)
        self.run, self._connection, self.lost = RunFolder(status["run"]), connection, None
        threading.Thread(target=self._watch, args=(connection, status["server"]), daemon=True).start()
        return status

    def close(self, reason: str) -> None:
        self.lost = self.lost or reason

    # -- calls ----------------------------------------------------------------------------------------------------

    def call(
        self, endpoint: str, arrays: serialization.Arrays, after: Iterable[Future] = (), **parameters
    ) -> Future:
        """The endpoint's answer, to be had from `wait_for`. after: calls that are to be answered before this is sent."""
        connection, before = self._connection, list(after)

        def work() -> serialization.Arrays:
            wait(before)
            return self._call(connection, endpoint, arrays, parameters)

        return _in_thread(work)

    def wait_for(self, answer: Future) -> serialization.Arrays:
        """Raises Lost when the server goes away first, UserError when it lives and gives no answer."""
        started = time.monotonic()
        while True:
            try:
                return answer.result(timeout=0.2)
            except TimeoutError:
                pass
            except Unreachable as error:
                self.lost = self.lost or self._ending() or str(error)
            if self.lost is not None:
                raise Lost(self.lost)
            if time.monotonic() - started > self.answer_s:
                raise UserError(
                    f"{self.where} is alive and has not answered for {self.answer_s:g} s "
                    f"(trainer.distributed_timeout_minutes): see its log in {self.run.path}, and start it again"
                )

    def ask(self, endpoint: str, arrays: serialization.Arrays, **parameters) -> dict:
        """A call whose answer is words: waits for the result. Raises Lost, NotReady and Refusal."""
        answer = serialization.value_of(self.wait_for(self.call(endpoint, arrays, **parameters)))
        if "problem" in answer:
            raise self.refusal(answer["problem"])
        return answer["result"]

    def refusal(self, problem: str) -> Refusal:
        """What the server says it can't do, as an error that names the server."""
        error = from_words(problem)
        return type(error)(f"{self.where}: {error}")

    def _call(
        self, connection: PyTritonConnection, endpoint: str, arrays: serialization.Arrays, parameters: dict
    ) -> serialization.Arrays:
        if self.lost is not None:
            raise Unreachable(self.lost)
        return connection.call(endpoint, arrays, {"actor": self.actor, **parameters}, timeout_s=1e6)

    # -- the watch ------------------------------------------------------------------------------------------------

    def _status(self, connection: PyTritonConnection) -> dict:
        request = serialization.text({}, "request")
        return serialization.value_of(
            connection.call("status", request, {"actor": self.actor}, timeout_s=STATUS_S)
        )

    def _watch(self, connection: PyTritonConnection, server: str) -> None:
        heard = time.monotonic()
        while self.lost is None and self._connection is connection:
            time.sleep(POLL_S)
            try:
                status = _within(STATUS_S + 1, lambda: self._status(connection))
                heard = time.monotonic()
                reason = overdue(status) if status["server"] == server else "was started anew"
            except Unreachable as error:
                silent = time.monotonic() - heard > SILENCE_S
                reason = self._ending() or (
                    f"gives no sign of life for {SILENCE_S:.0f} s: it {error}" if silent else None
                )
            if reason and self._connection is connection:
                self.lost = self.lost or reason

    def _ending(self) -> str | None:
        """How it ended, if its run folder says so; a machine can tell of its own processes alone, at once."""
        try:
            status = self.run.status
            if status not in ("finished", "stopped", "failed", "lost"):
                return None
            return "was killed" if status == "lost" else f"is over ({status}): {self.run.info['message']}"
        except (OSError, ValueError):
            return None


def _in_thread(work: Callable[[], object]) -> Future:
    """A daemon thread: one that hangs in a dead server's call does not keep the process from ending."""
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _within(seconds: float, work: Callable[[], dict]) -> dict:
    """work's result. Raises Unreachable when it takes too long: a new gRPC client waits for a stopped server for ever."""
    try:
        return _in_thread(work).result(timeout=seconds)
    except TimeoutError:
        raise Unreachable(f"gives no sign of life within {seconds:.0f} s") from None
