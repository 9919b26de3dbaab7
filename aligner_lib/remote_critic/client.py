"""The actor's side: a reward source and a value model whose reward model and critic are other jobs.

Every rank makes them and calls them alike. Scores are asked for by the first rank of each model replica; whatever changes
the critic goes through the first rank of all, which numbers the train steps. Where a server goes away, an Interruption is
raised on every rank; `reach` waits for it, and `load` has the critic go back to the checkpoint that belongs to the
actor's.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from torch import Tensor

from aligner_lib.datasets.batches import concat_restore_order
from aligner_lib.errors import Interruption, UnmatchedCheckpoint, UserError
from aligner_lib.megatron import parallel
from aligner_lib.remote_critic import serialization
from aligner_lib.remote_critic.connection import Endpoint, Lost, ServerConnection
from aligner_lib.remote_critic.connections import ServerConnections, on_first_rank, what_became_of
from aligner_lib.remote_critic.errors import NoCheckpoint, NotReady
from aligner_lib.remote_critic.serial_executor import SerialExecutor
from aligner_lib.rollouts.records import CriticExperience, Rollouts
from aligner_lib.run_folder.set_aside import last_change
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.loop import stop_signals

NOTE = "remote.json"  # in the actor's checkpoint: how many train steps the critic's that belongs to it holds


class Later(Future):
    """A result that is fetched when it is asked for. answer: the server's, where this rank has sent something."""

    def __init__(self, fetch: Callable[[], object], answer: Future | None = None):
        super().__init__()
        self._fetch, self.answer = fetch, answer

    def result(self, timeout: float | None = None):
        if not self.done():
            self.set_result(self._fetch())
        return super().result()


class RemoteRewardModel:
    """See RewardSource. Making one waits for its server."""

    def __init__(self, servers: ServerConnections, pad_to: int | None, writer: RunWriter | None = None):
        """pad_to: pad_to_length. writer: the run's, on the first rank: it knows of a wish to stop."""
        self.servers, self.pad_to, self.writer = servers, pad_to, writer
        self.about = self.reach()

    def score(self, rollouts: Rollouts) -> Future[Tensor]:
        return self._ask("rewards", rollouts)

    def collect(self, asked: list[Future]) -> list[Tensor]:
        outcomes = [parallel.from_replica_leader(scores.result()) for scores in asked]
        own = [outcome for outcome in outcomes if not isinstance(outcome, Tensor)]
        if problems := [problem for ranks in parallel.gather_over_dp(own) for problem in ranks]:
            raise problems[0]
        return outcomes

    def reach(self, work: Callable[[], object] = lambda: None) -> dict:
        """The first server's status, when all are there and `work` is done. What a run that waits could save is saved: a
        wish to stop ends it."""
        with stop_signals() as signalled:
            status = self.servers.reach(
                work, lambda: signalled.is_set() or (self.writer is not None and self.writer.stop_requested)
            )
        if status is None:
            if self.writer is not None:
                server = self.servers.first.where.service.replace("_", " ")
                self.writer.finish("stopped", f"stopped while it waited for the {server}, as asked")
            raise SystemExit(0)
        return status

    def _ask(self, kind: str, rollouts: Rollouts, **call) -> Later:
        """Ask a server for scores, to be had from `collect`."""
        if not parallel.leads_replica():
            return Later(lambda: None)
        link = self.servers.that_gives(kind)
        length = serialization.padded_length(rollouts.tokens.shape[1], self.pad_to)
        answer = link.call(kind, serialization.pack_tokens(rollouts, length), **call)
        return Later(lambda: _scores(link, kind, rollouts, answer), answer)


class RemoteCritic(RemoteRewardModel):
    """See ValueModel, and RewardSource: the critic's server gives the rewards, too, or another one does."""

    def __init__(self, servers: ServerConnections, pad_to: int | None, writer: RunWriter | None = None):
        self.updates = 0  # train steps that were asked for
        self.saved = 0  # … those in the critic's checkpoint that the actor's newest one names
        self._begun = False
        self._valuing: list[Future] = []  # answers with values that are not collected
        self._executor = SerialExecutor()
        super().__init__(servers, pad_to, writer)
        self.critic = servers.that_gives("values")

    # -- RewardSource and ValueModel ------------------------------------------------------------------------------

    def score(self, rollouts: Rollouts) -> Future[Tensor]:
        """Where one server gives both, it has given its values first: it exchanges the weights of the one model for the
        other's once."""
        self._begin()
        one = self.servers.that_gives("rewards") is self.critic
        return self._ask("rewards", rollouts, after=self._valuing if one else ())

    def values(self, rollouts: Rollouts) -> Future[Tensor]:
        self._begin()
        asked = self._ask("values", rollouts, updates=self.updates)
        if asked.answer is not None:
            self._valuing.append(asked.answer)
        return asked

    def collect(self, asked: list[Future]) -> list[Tensor]:
        self._valuing = []
        return super().collect(asked)

    def train(self, experience: CriticExperience, lr: float) -> Future[dict[str, float]]:
        self._begin()
        whole = _joined(parallel.gather_over_dp(experience))
        self.updates += 1
        return self._order(
            lambda number=self.updates: self.critic.ask(
                "train", serialization.pack_experience(whole), number=number, lr=lr.hex()
            )
        )

    def save(self, folder: Path) -> None:
        """The critic saves in its own run folder; here it is noted which of its checkpoints belongs to the actor's."""
        self._begin()
        # previous: the critic keeps it until the actor's checkpoint is complete; way_back: as long as the actor's is there
        self._order(
            lambda: self.servers.checkpoint(
                "save", updates=self.updates, previous=self.saved, way_back=self._way_back()
            )
        ).result()
        self.saved = self.updates
        if parallel.is_first_rank():
            folder.mkdir(parents=True)
            (folder / NOTE).write_text(json.dumps({"updates": self.updates}))

    def load(self, folder: Path | None) -> None:
        """Raises UnmatchedCheckpoint when the critic no longer has the checkpoint that belongs to this one."""
        if folder is not None and not (folder / NOTE).exists():
            raise UnmatchedCheckpoint(
                f"{folder} holds a critic that was trained in the actor's process: leave remote_critic_rm out, or "
                "start a new run"
            )
        self.updates = self.saved = json.loads((folder / NOTE).read_text())["updates"] if folder else 0
        self._begun = True
        self.reach(self._go_back)

    # -- its train steps ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """A run that starts anew starts with the critic as it was at first."""
        if not self._begun:
            self.load(None)

    def _way_back(self) -> int:
        """The critic's train steps in the actor's checkpoint before its last change of settings; 0: none. On the first rank."""
        change = last_change(self.writer.folder) if self.writer is not None else None
        return json.loads((change.checkpoint / "critic" / NOTE).read_text())["updates"] if change else 0

    def _go_back(self) -> None:
        """Have the critic load its checkpoint after so many train steps (0: what it began with). On the first rank."""
        self._executor.recover()  # what was asked for before is answered, or has failed
        try:
            self.servers.checkpoint("load", updates=self.updates)
        except NoCheckpoint as error:
            raise UnmatchedCheckpoint(str(error)) from None

    def _order(self, call: Callable[[], dict]) -> Future[dict]:
        """The first rank asks the critic to change; the answer is to be had on every rank."""
        asked = self._executor.put(call) if parallel.is_first_rank() else None

        def answer() -> dict:
            try:
                return asked.result()
            except (Lost, NotReady) as error:
                raise _interruption(self.critic.where, error) from None

        return Later(lambda: on_first_rank(answer))


def _scores(
    link: ServerConnection, kind: str, rollouts: Rollouts, call: Future
) -> Tensor | UserError | Interruption:
    """The values or rewards, or why there are none."""
    try:
        arrays = link.wait_for(call)
        if problem := arrays["problem"].reshape(-1)[0].decode():
            raise link.refusal(problem)
        return serialization.unpack_scores(kind, arrays, rollouts)
    except (Lost, NotReady) as error:
        return _interruption(link.where, error)
    except serialization.WireError as error:
        return UserError(f"{link.where}: {error}")
    except UserError as error:
        return error


def _joined(parts: list[CriticExperience]) -> CriticExperience:
    """The replicas' parts of a global batch, one after the other."""
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + part.size)
    return concat_restore_order(parts, [list(range(start, end)) for start, end in itertools.pairwise(ends)])


def _interruption(where: Endpoint, error: Exception) -> Interruption:
    return Interruption(what_became_of(where, error))
