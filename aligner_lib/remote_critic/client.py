"""The actor's side: a value model and a reward source whose critic and reward model are other jobs.

Every rank makes them and calls them alike. Scores are asked for by the first rank of each model replica; whatever changes
the critic goes through the first rank of all, which numbers the train steps. Where a server goes away, an Interruption is
raised on every rank; `load` waits for it, and has the critic go back to the checkpoint that belongs to the actor's.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from torch import Tensor

from aligner_lib.datasets.batches import concat_restore_order
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import Interruption, UnmatchedCheckpoint, UserError
from aligner_lib.megatron import parallel
from aligner_lib.remote_critic import serialization
from aligner_lib.remote_critic.connection import CriticConnection, Endpoint, Lost
from aligner_lib.remote_critic.connections import CriticConnections, on_first_rank, what_became_of
from aligner_lib.remote_critic.errors import NoCheckpoint, NotReady
from aligner_lib.remote_critic.serial_executor import SerialExecutor
from aligner_lib.rollouts.records import CriticExperience, Rollouts
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.loop import stop_signals

NOTE = "remote.json"  # in the actor's checkpoint: how many train steps the critic's that belongs to it holds


class Later(Future):
    """A result that is fetched when it is asked for."""

    def __init__(self, fetch: Callable[[], object]):
        super().__init__()
        self._fetch = fetch

    def result(self, timeout: float | None = None):
        if not self.done():
            self.set_result(self._fetch())
        return super().result()


class RemoteCritic:
    """See ValueModel. Making one waits for the servers, the reward model's included."""

    def __init__(
        self,
        critic: Endpoint,
        reward_model: Endpoint | None,
        tokenizer: Tokenizer,
        run: Path,
        timeout_s: float,
        answer_s: float,
        longest_sample: int,
        pad_to: int | None,
        writer: RunWriter | None = None,
    ):
        """tokenizer: the policy's. run: the actor's run folder. timeout_s: how long to wait for a server; answer_s: for an
        answer of one that is there. longest_sample: tokens. pad_to: pad_to_length. writer: the run's, on the first rank: it
        knows of a wish to stop."""
        self.servers = CriticConnections(
            critic, reward_model, tokenizer, str(Path(run).absolute()), timeout_s, answer_s, longest_sample
        )
        self.pad_to, self.writer = pad_to, writer
        self.updates = 0  # train steps that were asked for
        self.saved = 0  # … those in the critic's checkpoint that the actor's newest one names
        self._begun = False
        self._valuing: list[Future] = []  # values that were asked for and are not collected
        self._executor = SerialExecutor()
        self.about = self._reach(lambda: None)

    # -- ValueModel -----------------------------------------------------------------------------------------------

    def values(self, rollouts: Rollouts) -> Future[Tensor]:
        return self._ask(self.servers.critic, "values", rollouts, updates=self.updates)

    def rewards(self, rollouts: Rollouts) -> Future[Tensor]:
        """For RemoteRewardModel. Where one server gives both, it has given its values first: it exchanges the weights of
        the one model for the other's once."""
        link = self.servers.reward_model
        return self._ask(
            link, "rewards", rollouts, after=self._valuing if link is self.servers.critic else ()
        )

    def collect(self, asked: list[Future]) -> list[Tensor]:
        self._valuing = []
        outcomes = [parallel.from_replica_leader(scores.result()) for scores in asked]
        own = [outcome for outcome in outcomes if not isinstance(outcome, Tensor)]
        if problems := [problem for ranks in parallel.gather_over_dp(own) for problem in ranks]:
            raise problems[0]
        return outcomes

    def train(self, experience: CriticExperience, lr: float) -> Future[dict[str, float]]:
        self._begin()
        whole = _joined(parallel.gather_over_dp(experience))
        self.updates += 1
        return self._order(
            lambda number=self.updates: self.servers.critic.ask(
                "train", serialization.pack_experience(whole), number=number, lr=lr.hex()
            )
        )

    def save(self, folder: Path) -> None:
        """The critic saves in its own run folder; here it is noted which of its checkpoints belongs to the actor's."""
        self._begin()
        # previous: the critic keeps it until the actor's checkpoint is complete
        self._order(
            lambda: self.servers.checkpoint("save", updates=self.updates, previous=self.saved)
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
        self._reach(self._go_back)

    # -- waiting for the servers ----------------------------------------------------------------------------------

    def _reach(self, work: Callable[[], object]) -> dict:
        """The critic's status, when `work` is done. What a run that waits could save is saved: a wish to stop ends it."""
        with stop_signals() as signalled:
            status = self.servers.reach(
                work, lambda: signalled.is_set() or (self.writer is not None and self.writer.stop_requested)
            )
        if status is None:
            if self.writer is not None:
                self.writer.finish("stopped", "stopped while it waited for the critic, as asked")
            raise SystemExit(0)
        return status

    def _begin(self) -> None:
        """A run that starts anew starts with the critic as it was at first."""
        if not self._begun:
            self.load(None)

    def _go_back(self) -> None:
        """Have the critic load its checkpoint after so many train steps (0: what it began with). On the first rank."""
        self._executor.recover()  # what was asked for before is answered, or has failed
        try:
            self.servers.checkpoint("load", updates=self.updates)
        except NoCheckpoint as error:
            raise UnmatchedCheckpoint(str(error)) from None

    # -- asking ---------------------------------------------------------------------------------------------------

    def _order(self, call: Callable[[], dict]) -> Future[dict]:
        """The first rank asks the critic to change; the answer is to be had on every rank."""
        asked = self._executor.put(call) if parallel.is_first_rank() else None

        def answer() -> dict:
            try:
                return asked.result()
            except (Lost, NotReady) as error:
                raise _interruption(self.servers.critic.where, error) from None

        return Later(lambda: on_first_rank(answer))

    def _ask(self, link: CriticConnection, kind: str, rollouts: Rollouts, **call) -> Future[Tensor]:
        """Ask a server for scores, to be had from `collect`."""
        self._begin()
        if not parallel.leads_replica():
            return Later(lambda: None)
        length = serialization.padded_length(rollouts.tokens.shape[1], self.pad_to)
        answer = link.call(kind, serialization.pack_tokens(rollouts, length), **call)
        if kind == "values":
            self._valuing.append(answer)
        return Later(lambda: _scores(link, kind, rollouts, answer))


class RemoteRewardModel:
    """See RewardSource. Its server may be the critic's; if it goes away, the critic's waiting is for it, too."""

    def __init__(self, critic: RemoteCritic):
        self._critic = critic

    def score(self, rollouts: Rollouts) -> Future[Tensor]:
        return self._critic.rewards(rollouts)

    def collect(self, asked: list[Future]) -> list[Tensor]:
        return self._critic.collect(asked)


def _scores(
    link: CriticConnection, kind: str, rollouts: Rollouts, call: Future
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
