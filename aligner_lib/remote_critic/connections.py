"""An actor's connections to its servers, and the wait for an unavailable server.

All ranks create `ServerConnections` and make the same calls. The first rank decides, and the others get the result. The first
ranks of the other model replicas request scores through connections of their own.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping

from aligner_lib.datasets.tokenizer import Tokenizer, check_same_tokenizer
from aligner_lib.errors import Interruption, UserError
from aligner_lib.megatron import parallel
from aligner_lib.remote_critic import serialization
from aligner_lib.remote_critic.connection import Endpoint, Lost, ServerConnection
from aligner_lib.remote_critic.errors import NotReady, Refusal
from aligner_lib.remote_critic.pytriton_client import ServerUnreachable
from aligner_lib.run_folder.writer import RunWriter

logger = logging.getLogger(__name__)

SLICE_S = 1.0  # for an attempt of the first rank; after the attempt, the other ranks learn that the first rank still waits
RETRY_S = 0.5
LOG_EVERY_S = 15.0  # between two log lines about waiting


class ServerConnections:
    """Connections to the critic's server and to a separate reward model's server, if there is one, or to the reward model's
    server alone. All start unconnected."""

    def __init__(
        self,
        servers: Mapping[Endpoint, set[str]],
        tokenizer: Tokenizer,
        run: str,
        timeout_s: float,
        answer_s: float,
        longest_sample: int,
        writer: RunWriter | None = None,
    ):
        """servers: each server with the kinds of scores it must give, `values` or `rewards`; a critic comes first. tokenizer:
        the policy's. run: the actor's run folder. timeout_s: time limit to wait for a server. answer_s: time limit for an
        answer of a connected server. longest_sample: tokens of the longest sample that may be sent. writer: the run's
        writer, on the first rank, which knows the models that the run was begun with."""
        self.tokenizer, self.run, self.timeout_s = tokenizer, run, timeout_s
        self.longest_sample, self.writer = longest_sample, writer
        actor = parallel.from_first_rank(f"{run}#{time.time_ns():x}")
        self.links = {ServerConnection(at, actor, answer_s): gives for at, gives in servers.items()}
        self.first = next(iter(self.links))
        self.settings = "remote_critic_rm" if "values" in self.links[self.first] else "remote_rm"

    def that_gives(self, kind: str) -> ServerConnection:
        """The server that gives `values` or `rewards`."""
        return next(link for link, gives in self.links.items() if kind in gives)

    def reach(self, work: Callable[[], object], stop: Callable[[], bool]) -> dict | None:
        """Connect, and call `work` on the first rank. Repeats both until they succeed.

        Returns the first server's status; None when `stop` returns True first (on the first rank). Raises UserError after
        `timeout_s`.
        """
        started, logged_at = time.monotonic(), -math.inf
        while True:
            status, reason, stopped, waited = on_first_rank(
                lambda: (*self._attempt(work), stop(), time.monotonic() - started)
            )
            reason = reason or self._others_connect()
            if reason is None:
                return status
            if stopped:
                return None
            if waited > self.timeout_s:
                raise UserError(
                    f"{reason}, and {self.timeout_s:.0f} s are over ({self.settings}.timeout): check that `aligner "
                    "serve-critic` (or serve-rm) runs there, with the printed ip and port and without a firewall in "
                    "between; then start the same command again"
                )
            if parallel.is_first_rank() and time.monotonic() - logged_at >= LOG_EVERY_S:
                logged_at = time.monotonic()
                logger.info(f"waiting, {waited:.0f} s of at most {self.timeout_s:.0f} s: {reason}")

    def checkpoint(self, kind: str, link: ServerConnection | None = None, **details) -> dict:
        """Ask a server, by default the first server, to begin, save or load. Returns the server's status. First rank only."""
        link = link or self.first
        created = None if self.writer is None else self.writer.created
        request = {
            "kind": kind,
            "actor": link.actor,
            "actor_run": self.run,
            "actor_created": created,
        } | details
        return link.ask("checkpoint", serialization.text(request, "request"))

    def _attempt(self, work: Callable[[], object]) -> tuple[dict, str | None]:
        """The first server's status and None; or {} and the reason why the servers are not ready, after an attempt of about
        SLICE_S."""
        slice_ends = time.monotonic() + SLICE_S
        while True:
            statuses = {}
            try:
                for link in self.links:
                    at = link.where
                    if link.lost:
                        self._check(link, link.connect())
                    statuses[link] = self.checkpoint("begin", link)
                at = self.first.where
                work()
                return statuses[self.first], None
            except (ServerUnreachable, Lost, NotReady) as error:
                if time.monotonic() > slice_ends:
                    return {}, server_problem(at, error)
                time.sleep(RETRY_S)

    def _check(self, link: ServerConnection, status: dict) -> None:
        """Check a server. Raises UserError when the server lacks scores that the settings require, or when its model has
        another tokenizer or too few positions, or is not the model that the run was begun with."""
        if missing := self.links[link] - set(status["gives"]):
            cure = "check its port"
            if self.settings == "remote_critic_rm":
                cure += (
                    ", and that model.ppo.combine_rm_and_critic_server here equals "
                    "trainer.ppo.combine_rm_and_critic_server there"
                )
            raise UserError(
                f"{link.where} gives {' and '.join(status['gives'])}, but no {' or '.join(sorted(missing))}: the "
                f"server is of another kind; {cure}"
            )
        check_same_tokenizer(
            self.tokenizer, status["tokenizer"], f"{link.where}, which has {status['model']},"
        )
        if status["positions"] < self.longest_sample:
            raise UserError(
                f"model.encoder_seq_length={self.longest_sample} is beyond the {status['positions']} positions of "
                f"{link.where}, which has {status['model']}: set model.encoder_seq_length={status['positions']} or less"
            )
        # a server of an earlier release names no hash
        if self.writer is not None and "hash" in status:
            self.writer.check_server(
                link.where.service, status["hash"], f"{link.where}, which has {status['model']}"
            )

    def _others_connect(self) -> str | None:
        """Connect the first ranks of the other replicas. Returns on every rank the reason for a failure, or None."""
        reason = None
        if parallel.leads_replica():
            for link in self.links:
                try:
                    if link.lost:
                        link.connect()
                except ServerUnreachable as error:
                    reason = server_problem(link.where, error)
        reasons = parallel.gather_over_dp(parallel.from_replica_leader(reason))
        return next(filter(None, reasons), None)


def on_first_rank(work: Callable[[], object]):
    """The result of `work` on the first rank, returned on every rank. A UserError or Interruption in `work` is raised on every
    rank."""
    result, error = None, None
    if parallel.is_first_rank():
        try:
            result = work()
        except (UserError, Interruption) as raised:
            error = raised
    result, error = parallel.from_first_rank((result, error))
    if error is not None:
        raise error
    return result


def server_problem(where: Endpoint, error: Exception) -> str:
    """A sentence on a lost server, or the message of a server that refuses."""
    return str(error) if isinstance(error, Refusal) else f"{where} {error}"
