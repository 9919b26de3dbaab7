"""The servers that an actor works with, and how it waits for one that is away.

Every rank makes `ServerConnections` and calls it alike: the first rank decides, and the others are told. The first ranks of the
other model replicas have connections of their own, to ask for scores.
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
from aligner_lib.remote_critic.pytriton_client import Unreachable

logger = logging.getLogger(__name__)

SLICE_S = 1.0  # for one try of the first rank, before the other ranks are told that it still waits
RETRY_S = 0.5
LOG_EVERY_S = 15.0  # between two lines that say so


class ServerConnections:
    """The critic's server, the reward model's where it is another one, or that one alone; none is connected yet."""

    def __init__(
        self,
        servers: Mapping[Endpoint, set[str]],
        tokenizer: Tokenizer,
        run: str,
        timeout_s: float,
        answer_s: float,
        longest_sample: int,
    ):
        """servers: each with what it has to give, `values` or `rewards`; a critic comes first. tokenizer: the policy's.
        run: the actor's run folder. timeout_s: how long to wait for a server; answer_s: for an answer of one that is there.
        longest_sample: tokens of the longest that may be sent."""
        self.tokenizer, self.run, self.timeout_s = tokenizer, run, timeout_s
        self.longest_sample = longest_sample
        actor = parallel.from_first_rank(f"{run}#{time.time_ns():x}")
        self.links = {ServerConnection(at, actor, answer_s): gives for at, gives in servers.items()}
        self.first = next(iter(self.links))
        self.settings = "remote_critic_rm" if "values" in self.links[self.first] else "remote_rm"

    def that_gives(self, kind: str) -> ServerConnection:
        """The server of values, or of rewards."""
        return next(link for link, gives in self.links.items() if kind in gives)

    def reach(self, work: Callable[[], object], stop: Callable[[], bool]) -> dict | None:
        """Connect, and do `work` on the first rank; again, until it is done.

        Returns the first server's status; None when `stop` says so first (on the first rank). Raises UserError after `timeout_s`.
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
                    f"{reason}, and {self.timeout_s:.0f} s are over ({self.settings}.timeout): check that "
                    f"`aligner serve-critic` (or serve-rm) runs there, that ip and port are the ones that it names, and "
                    "that no firewall is between; then start the same command again"
                )
            if parallel.is_first_rank() and time.monotonic() - logged_at >= LOG_EVERY_S:
                logged_at = time.monotonic()
                logger.info(f"waiting, {waited:.0f} s of at most {self.timeout_s:.0f} s: {reason}")

    def checkpoint(self, kind: str, link: ServerConnection | None = None, **details) -> dict:
        """Ask a server, by default the first, to begin, save or load; its status. On the first rank."""
        link = link or self.first
        request = {"kind": kind, "actor": link.actor, "actor_run": self.run} | details
        return link.ask("checkpoint", serialization.text(request, "request"))

    def _attempt(self, work: Callable[[], object]) -> tuple[dict, str | None]:
        """The first server's status; or why it does not go on, after trying for about a slice."""
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
            except (Unreachable, Lost, NotReady) as error:
                if time.monotonic() > slice_ends:
                    return {}, what_became_of(at, error)
                time.sleep(RETRY_S)

    def _check(self, link: ServerConnection, status: dict) -> None:
        """Raises UserError for another kind of server than the settings say, or a model with another tokenizer or too few
        positions."""
        if missing := self.links[link] - set(status["gives"]):
            cure = "check its port"
            if self.settings == "remote_critic_rm":
                cure += (
                    ", and that model.ppo.combine_rm_and_critic_server says here what "
                    "trainer.ppo.combine_rm_and_critic_server says there"
                )
            raise UserError(
                f"{link.where} gives {' and '.join(status['gives'])}, and no {' or '.join(sorted(missing))}: it is another "
                f"kind of server; {cure}"
            )
        check_same_tokenizer(
            self.tokenizer, status["tokenizer"], f"{link.where}, which has {status['model']},"
        )
        if status["positions"] < self.longest_sample:
            raise UserError(
                f"model.encoder_seq_length={self.longest_sample} is beyond the {status['positions']} positions of "
                f"{link.where}, which has {status['model']}: set model.encoder_seq_length={status['positions']} or less"
            )

    def _others_connect(self) -> str | None:
        """The first ranks of the other replicas connect, too; why not, on every rank."""
        reason = None
        if parallel.leads_replica():
            for link in self.links:
                try:
                    if link.lost:
                        link.connect()
                except Unreachable as error:
                    reason = what_became_of(link.where, error)
        reasons = parallel.gather_over_dp(parallel.from_replica_leader(reason))
        return next(filter(None, reasons), None)


def on_first_rank(work: Callable[[], object]):
    """work's result on the first rank, on every rank; a UserError or Interruption is raised on every rank, too."""
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


def what_became_of(where: Endpoint, error: Exception) -> str:
    """What has become of a server that is gone, or what one that is there says of itself."""
    return str(error) if isinstance(error, Refusal) else f"{where} {error}"
