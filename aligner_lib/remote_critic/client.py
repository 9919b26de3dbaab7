"""The actor's side of the remote critic: a reward source and a value model, whose models run in other jobs.

All ranks create the same objects and make the same calls. The first rank of each model replica requests scores. Calls that
change the critic go through the first of all ranks, which numbers the train steps. When a server is lost, every rank raises an
Interruption. `reach` then waits for the server, and `load` returns the critic to the checkpoint that belongs to the actor's
checkpoint.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from omegaconf import OmegaConf
from torch import Tensor

from aligner_lib.datasets.batches import concat_restore_order
from aligner_lib.errors import Interruption, UnmatchedCheckpoint, UserError
from aligner_lib.megatron import parallel
from aligner_lib.remote_critic import serialization
from aligner_lib.remote_critic.connection import Endpoint, Lost, ServerConnection
from aligner_lib.remote_critic.connections import ServerConnections, on_first_rank, server_problem
from aligner_lib.remote_critic.errors import NoCheckpoint, NotReady
from aligner_lib.remote_critic.serial_executor import SerialExecutor
from aligner_lib.rollouts.records import CriticExperience, Rollouts
from aligner_lib.run_folder.set_aside import last_change
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.loop import stop_signals

NOTE = "remote.json"  # in the actor's checkpoint: the number of train steps in the matching checkpoint of the critic


class LazyResult(Future):
    """A result that is fetched on the first read. answer: the server's answer, on a rank that has sent a request."""

    def __init__(self, fetch: Callable[[], object], answer: Future | None = None):
        super().__init__()
        self._fetch, self.answer = fetch, answer

    def result(self, timeout: float | None = None):
        if not self.done():
            self.set_result(self._fetch())
        return super().result()


class RemoteRewardModel:
    """A `RewardSource` in another job. The constructor waits for the server."""

    def __init__(self, servers: ServerConnections, pad_to: int | None, writer: RunWriter | None = None):
        """pad_to: the setting pad_to_length. writer: the run's writer, on the first rank, which receives requests to stop."""
        self.servers, self.pad_to, self.writer = servers, pad_to, writer
        self.reach()

    def score(self, rollouts: Rollouts) -> Future[Tensor]:
        return self._request("rewards", rollouts)

    def collect(self, requested: list[Future]) -> list[Tensor]:
        outcomes = [parallel.from_replica_leader(scores.result()) for scores in requested]
        own = [outcome for outcome in outcomes if not isinstance(outcome, Tensor)]
        if problems := [problem for ranks in parallel.gather_over_dp(own) for problem in ranks]:
            # An error that ends the run has priority over an interruption, which another replica may have raised.
            raise min(problems, key=lambda problem: isinstance(problem, Interruption))
        return outcomes

    def reach(self, work: Callable[[], object] = lambda: None) -> dict:
        """Wait until all servers are connected and `work` has succeeded. Returns the first server's status.

        A request to stop ends the run here, because a waiting run has already saved all its results.
        """
        with stop_signals() as signalled:
            status = self.servers.reach(
                work, lambda: signalled.is_set() or (self.writer is not None and self.writer.stop_requested)
            )
        if status is None:
            if self.writer is not None:
                server = self.servers.first.where.service.replace("_", " ")
                self.writer.finish("stopped", f"stopped on request while it waited for the {server}")
            raise SystemExit(0)
        if signalled.is_set():  # the scheduler warns only once
            signal.raise_signal(signal.SIGTERM)
        return status

    def _request(self, kind: str, rollouts: Rollouts, **call) -> LazyResult:
        """Request scores from a server; `collect` waits for the scores."""
        if not parallel.leads_replica():
            return LazyResult(lambda: None)
        link = self.servers.that_gives(kind)
        length = serialization.padded_length(rollouts.tokens.shape[1], self.pad_to)
        answer = link.call(kind, serialization.pack_tokens(rollouts, length), **call)
        return LazyResult(lambda: _scores(link, kind, rollouts, answer), answer)


class RemoteCritic(RemoteRewardModel):
    """A `ValueModel` and `RewardSource` in other jobs. The critic's server or a second server gives the rewards."""

    def __init__(self, servers: ServerConnections, pad_to: int | None, writer: RunWriter | None = None):
        self.updates = 0  # train steps that were requested
        self.saved = 0  # train steps in the critic's checkpoint that belongs to the actor's newest checkpoint
        # the settings of the critic's optimizer; a critic that is started again may have others
        self.optim = OmegaConf.create()
        self._begun = False
        self._pending_values: list[Future] = []  # answers with values that were not collected yet
        self._executor = SerialExecutor()
        super().__init__(servers, pad_to, writer)
        self.critic = servers.that_gives("values")

    # -- RewardSource and ValueModel ------------------------------------------------------------------------------

    def score(self, rollouts: Rollouts) -> Future[Tensor]:
        """Request rewards. When the critic's server also gives the rewards, it answers all requests for values first, so that
        it exchanges the weights of critic and reward model only once."""
        self._begin()
        same_server = self.servers.that_gives("rewards") is self.critic
        return self._request("rewards", rollouts, after=self._pending_values if same_server else ())

    def values(self, rollouts: Rollouts) -> Future[Tensor]:
        self._begin()
        result = self._request("values", rollouts, updates=self.updates)
        if result.answer is not None:
            self._pending_values.append(result.answer)
        return result

    def collect(self, requested: list[Future]) -> list[Tensor]:
        self._pending_values = []
        return super().collect(requested)

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
        """Save the critic in its own run folder. The actor's checkpoint records the number of the critic's checkpoint."""
        self._begin()
        # the critic keeps `previous` until the actor's checkpoint is complete, and `way_back` as long as the actor's checkpoint
        # exists
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
        """Load the critic's checkpoint. Raises UnmatchedCheckpoint when the critic no longer has the checkpoint that belongs to
        the actor's."""
        if folder is not None and not (folder / NOTE).exists():
            raise UnmatchedCheckpoint(
                f"{folder} contains a critic trained in the actor's process: leave remote_critic_rm out, or "
                "start a new run"
            )
        self.updates = self.saved = json.loads((folder / NOTE).read_text())["updates"] if folder else 0
        self._begun = True
        self.reach(self._go_back)

    def reach(self, work: Callable[[], object] = lambda: None) -> dict:
        """Wait as `RemoteRewardModel.reach` does, and adopt the settings of the critic's optimizer, in place in `optim`."""
        status = super().reach(work)
        before = OmegaConf.to_container(self.optim)
        self.optim.merge_with(status["optim"])
        if before and self.optim != before and self.writer is not None:
            self.writer.announce(
                "the critic was started again with other settings of its optimizer: see its run.json"
            )
        return status

    # -- train steps ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Load the critic's initial weights at the start of a new run."""
        if not self._begun:
            self.load(None)

    def _way_back(self) -> int:
        """The critic's train steps in the actor's checkpoint before the last change of settings; 0: none. First rank only."""
        change = last_change(self.writer.folder) if self.writer is not None else None
        return json.loads((change.checkpoint / "critic" / NOTE).read_text())["updates"] if change else 0

    def _go_back(self) -> None:
        """Make the critic load its checkpoint after `updates` train steps (0: its initial weights). First rank only."""
        self._executor.recover()  # all earlier calls are then answered, or have failed
        try:
            self.servers.checkpoint("load", updates=self.updates)
        except NoCheckpoint as error:
            raise UnmatchedCheckpoint(str(error)) from None

    def _order(self, call: Callable[[], dict]) -> Future[dict]:
        """Send a call that changes the critic, from the first rank. Every rank can read the answer."""
        result = self._executor.put(call) if parallel.is_first_rank() else None

        def answer() -> dict:
            try:
                return result.result()
            except (Lost, NotReady) as error:
                raise _interruption(self.critic.where, error) from None

        return LazyResult(lambda: on_first_rank(answer))


def _scores(
    link: ServerConnection, kind: str, rollouts: Rollouts, call: Future
) -> Tensor | UserError | Interruption:
    """The values or rewards, or an error with the reason why there are none."""
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
    """The replicas' parts of a global batch, joined in order."""
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + part.size)
    return concat_restore_order(parts, [list(range(start, end)) for start, end in itertools.pairwise(ends)])


def _interruption(where: Endpoint, error: Exception) -> Interruption:
    return Interruption(server_problem(where, error))
