"""The actor's connection to a server: calls in separate threads, and a watch that detects a dead server within seconds.

A time limit on a call can't distinguish a dead server from a busy server. Therefore calls have a long time limit, and the watch
decides. A server that answers may still hang. The server's status comes from other threads than its work, and reports how long
the current work has taken.
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
from aligner_lib.remote_critic.pytriton_client import PyTritonConnection, ServerUnreachable, probe
from aligner_lib.run_folder.reader import RunFolder

POLL_S = 1.0
STATUS_S = 5.0  # time limit for a status, which a busy server also answers immediately
SILENCE_S = 12.0  # the server counts as lost after two status requests without an answer


class Lost(ConnectionError):
    """The server is lost. The message completes "the critic at host:port …"."""


@dataclass(frozen=True)
class Endpoint:
    """The address of a server in the settings: by run folder, or by ip and port."""

    service: str
    """critic or reward_model."""
    ip: str | None
    port: int
    run: str | None

    def __str__(self) -> str:
        name = self.service.replace("_", " ")
        return f"the {name} of {self.run}" if self.run else f"the {name} at {self.ip}:{self.port}"


class ServerConnection:
    """A connection to a server, made by `connect`. After the connection is `lost`, call `connect` again."""

    def __init__(self, where: Endpoint, actor: str, answer_s: float = 3600.0):
        """actor: identifies a start of a run. answer_s: time limit in seconds for the answer of a living server, which may have
        queued many earlier requests."""
        self.where, self.actor, self.answer_s = where, actor, answer_s
        self.lost: str | None = "is not connected yet"
        self._refused: Refusal | None = None  # ends the actor's run at the next call
        self._connection: PyTritonConnection | None = None

    # -- connecting -----------------------------------------------------------------------------------------------

    def connect(self) -> dict:
        """Find the server and connect. Returns the server's status. Raises ServerUnreachable after a few seconds at the
        latest."""
        address = discovery.find(self.where.service, self.where.ip, self.where.port, self.where.run)
        if address is None:
            raise ServerUnreachable("has not published its address yet")
        if address.token is None:
            probe(address.host, address.port)
            raise ServerUnreachable(
                "listens, but has not published its token: the server is just starting, or is another program"
            )
        connection = PyTritonConnection(address.host, address.port, address.token)
        status = _within(STATUS_S + 2, lambda: self._status(connection))
        if reason := overdue(status):
            raise ServerUnreachable(reason)
        self.run, self._connection = RunFolder(status["run"]), connection
        self.lost, self._refused = None, None
        threading.Thread(target=self._watch, args=(connection, status["server"]), daemon=True).start()
        return status

    def close(self, reason: str) -> None:
        self.lost = self.lost or reason

    # -- calls ----------------------------------------------------------------------------------------------------

    def call(
        self, endpoint: str, arrays: serialization.Arrays, after: Iterable[Future] = (), **parameters
    ) -> Future:
        """Send a request. `wait_for` waits for the answer. after: calls that must be answered before the request is sent."""
        connection, earlier = self._connection, list(after)

        def work() -> serialization.Arrays:
            wait(earlier)
            return self._call(connection, endpoint, arrays, parameters)

        return _in_thread(work)

    def wait_for(self, answer: Future) -> serialization.Arrays:
        """The answer to a request. Raises the server's Refusal, Lost when the server is lost before it answers, and UserError
        when a living server does not answer in time."""
        started = time.monotonic()
        while True:
            try:
                return answer.result(timeout=0.2)
            except TimeoutError:
                pass
            except ServerUnreachable as error:
                self.lost = self.lost or self._ending() or str(error)
            if self.lost is not None:
                raise self._refused or Lost(self.lost)
            if time.monotonic() - started > self.answer_s:
                raise UserError(
                    f"{self.where} is alive but has not answered for {self.answer_s:g} s "
                    f"(trainer.distributed_timeout_minutes): see its log in {self.run.path}, and start the server again"
                )

    def ask(self, endpoint: str, arrays: serialization.Arrays, **parameters) -> dict:
        """Send a request whose answer is JSON, and wait for the result. Raises Lost, NotReady and Refusal."""
        answer = serialization.value_of(self.wait_for(self.call(endpoint, arrays, **parameters)))
        if "problem" in answer:
            raise self.refusal(answer["problem"])
        return answer["result"]

    def refusal(self, problem: str) -> Refusal:
        """The server's refusal as an error that names the server."""
        error = from_words(problem)
        error = type(error)(f"{self.where}: {error}")
        if type(error) is Refusal:
            self._refused = error
        return error

    def _call(
        self, connection: PyTritonConnection, endpoint: str, arrays: serialization.Arrays, parameters: dict
    ) -> serialization.Arrays:
        if self.lost is not None:
            raise ServerUnreachable(self.lost)
        return connection.call(endpoint, arrays, {"actor": self.actor, **parameters}, timeout_s=1e6)

    # -- the watch ------------------------------------------------------------------------------------------------

    def _status(self, connection: PyTritonConnection) -> dict:
        request = serialization.text({}, "request")
        return serialization.value_of(
            connection.call("status", request, {"actor": self.actor}, timeout_s=STATUS_S)
        )

    def _watch(self, connection: PyTritonConnection, server: str) -> None:
        last_heard = time.monotonic()
        while self.lost is None and self._connection is connection:
            time.sleep(POLL_S)
            try:
                status = _within(STATUS_S + 1, lambda: self._status(connection))
                last_heard = time.monotonic()
                reason = self._closing(status) if status["server"] == server else "was started again"
            except ServerUnreachable as error:
                silent = time.monotonic() - last_heard > SILENCE_S
                reason = self._ending() or (
                    f"gives no sign of life for {SILENCE_S:.0f} s: it {error}" if silent else None
                )
            if reason and self._connection is connection:
                self.lost = self.lost or reason

    def _closing(self, status: dict) -> str | None:
        """The reason why a server that still answers counts as lost, according to its status: the server hangs, or has failed
        and is about to end."""
        if status.get("refusal") is None:
            return overdue(status)
        self.refusal(status["refusal"])
        return f"is ending: {from_words(status['refusal'])}"

    def _ending(self) -> str | None:
        """How the server ended, if its run folder records the end. On the same machine, a killed process is noticed at once."""
        try:
            status = self.run.status
            if status not in ("finished", "stopped", "failed", "lost"):
                return None
            return "was killed" if status == "lost" else f"is over ({status}): {self.run.info['message']}"
        except (OSError, ValueError):
            return None


def _in_thread(work: Callable[[], object]) -> Future:
    """Run `work` in a daemon thread, so a call that hangs in a dead server does not keep the process from ending."""
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _within(seconds: float, work: Callable[[], dict]) -> dict:
    """The result of `work`. Raises ServerUnreachable when `work` takes too long, because a new gRPC client waits forever for a
    stopped server."""
    try:
        return _in_thread(work).result(timeout=seconds)
    except TimeoutError:
        raise ServerUnreachable(f"gives no sign of life within {seconds:.0f} s") from None
