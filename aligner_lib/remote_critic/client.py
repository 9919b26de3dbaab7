"""The actor's side: a value model and a reward source whose critic and reward model are other jobs.

Every rank makes them and calls them alike. Scores are asked for by the first rank of each model replica; whatever changes
the critic goes through the first rank of all, which numbers the train steps and keeps those that no checkpoint of the
critic's holds yet. So a critic that was killed and started again is brought back to where it was, to the bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from torch import Tensor

from aligner_lib.datasets.batches import concat_restore_order
from aligner_lib.errors import Interruption, UnmatchedCheckpoint, UserError
from aligner_lib.megatron import parallel
from aligner_lib.remote_critic import replay_log, serialization
from aligner_lib.remote_critic.connection import CriticConnection, Endpoint, Lost
from aligner_lib.remote_critic.connections import CriticConnections, on_first_rank, what_became_of
from aligner_lib.remote_critic.errors import NoCheckpoint, NotReady
from aligner_lib.remote_critic.serial_executor import SerialExecutor
from aligner_lib.rollouts.records import Experience, Rollouts
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.loop import stop_signals


class CriticAway(Interruption):
    """A server can't be reached, or has not taken the train steps that it should have: nothing was changed."""

    def __init__(self, reason: str, critic: RemoteCritic):
        super().__init__(reason)
        self._critic = critic

    def overcome(self, stop: Callable[[], bool]) -> bool:
        return self._critic.come_back(stop)


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
        run: Path,
        timeout_s: float,
        pad_to: int | None,
        writer: RunWriter | None = None,
    ):
        """run: the actor's run folder. timeout_s: how long to wait for a server. pad_to: pad_to_length. writer: the run's,
        on the first rank: it knows of a wish to stop."""
        self.servers = CriticConnections(critic, reward_model, str(Path(run).absolute()), timeout_s)
        self.pad_to, self.writer = pad_to, writer
        self.updates = 0  # train steps that were asked for
        self.saved = 0  # … of which the critic's last checkpoint holds so many
        self.kept: list[replay_log.Step] = []  # … and these it does not (on the first rank)
        self._owes_checkpoint = False  # the actor has saved without it
        self._begun = False
        self._valuing: list[Future] = []  # values that were asked for and are not collected
        self._executor = SerialExecutor()
        self.about = self._reach_at_first(lambda _: None)

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
            raise problems[0] if isinstance(problems[0], UserError) else CriticAway(problems[0], self)
        return outcomes

    def train(self, experience: Experience, lr: float) -> Future[dict[str, float]]:
        self._begin()
        whole = _joined(parallel.gather_over_dp(experience))
        self.updates += 1
        asked = None
        if parallel.is_first_rank():
            self.kept.append(replay_log.Step(self.updates, whole, lr))
            asked = self._executor.put(lambda step=self.kept[-1]: self._train(step))
        return Later(lambda: on_first_rank(lambda: _or_nothing(asked)))

    def save(self, folder: Path) -> None:
        """The critic saves in its own run folder; here it is noted which of its checkpoints belongs to the actor's.

        A critic that is away saves when it is back; the train steps that it lacks are written down here.
        """
        self._begin()
        away = on_first_rank(self._save)
        if parallel.is_first_rank():
            replay_log.write(folder, self.updates, self.saved, self.kept)
        if away:
            raise CriticAway(away, self)

    def load(self, folder: Path) -> None:
        """Raises UnmatchedCheckpoint when the critic no longer has the checkpoint that belongs to this one."""
        if not replay_log.is_there(folder):
            raise UnmatchedCheckpoint(
                f"{folder} holds a critic that was trained in the actor's process: leave remote_critic_rm out, or "
                "start a new run"
            )
        self.updates, self.saved, lacks = replay_log.read(folder)
        if parallel.is_first_rank():
            self.kept, self._owes_checkpoint = lacks, bool(lacks)
        self._begun = True
        self._reach_at_first(lambda _: self._go_back_to(self.saved))
        self._reach_at_first(self._catch_up)

    # -- when a server was away -----------------------------------------------------------------------------------

    def come_back(self, stop: Callable[[], bool]) -> bool:
        """Wait for the servers, and bring the critic to where the actor is; False when `stop` says so (on the first rank).

        Raises UserError after `timeout_s`.
        """
        return self.servers.reach(self._catch_up, stop) is not None

    def _reach_at_first(self, work: Callable[[dict], object]) -> dict:
        """The critic's status. Before its first step a run has nothing to save: a wish to stop ends it here."""
        with stop_signals() as signalled:
            status = self.servers.reach(
                work, lambda: signalled.is_set() or (self.writer is not None and self.writer.stop_requested)
            )
        if status is None:
            if self.writer is not None:
                self.writer.finish("stopped", "stopped while it waited for the critic, as asked")
            raise SystemExit(0)
        return status

    def _catch_up(self, status: dict) -> None:
        """Give the critic the train steps that it has not taken."""
        has, first = status["updates"], self.updates + 1 - len(self.kept)
        if not first - 1 <= has <= self.updates:
            raise UserError(
                f"{self.servers.critic.where} came back with {has} train steps, and the actor can give it those after "
                f"{first - 1}: its run folder is not the one that it had; start it with its own --run again"
            )
        for step in self.kept:
            if step.number <= has:
                continue
            self._train(step)
            self.servers.came_further(step.number)
            if step.number < self.updates and self.servers.others_wait:
                raise NotReady(
                    f"{self.servers.critic.where} takes train steps {step.number + 1} to {self.updates} again"
                )
        if self._owes_checkpoint:
            self._ask_to_save()

    # -- on the first rank ----------------------------------------------------------------------------------------

    def _train(self, step: replay_log.Step) -> dict[str, float]:
        return self.servers.critic.ask(
            "train", serialization.pack_experience(step.experience), number=step.number, lr=step.lr.hex()
        )

    def _save(self) -> str | None:
        """Why the critic has not saved, if it has not."""
        try:
            self._executor.put(self._ask_to_save).result()
        except (Lost, NotReady) as error:
            self._owes_checkpoint = True
            return what_became_of(self.servers.critic.where, error)
        self.saved, self.kept = self.updates, []
        return None

    def _ask_to_save(self) -> None:
        """`previous`: the critic's checkpoint that the actor's newest one names; the critic does not remove it."""
        self.servers.checkpoint("save", updates=self.updates, previous=self.saved)
        self._owes_checkpoint = False

    def _go_back_to(self, updates: int) -> None:
        """Have the critic load one of its checkpoints (0: what it began with)."""
        try:
            self.servers.checkpoint("load", updates=updates)
        except NoCheckpoint as error:
            raise UnmatchedCheckpoint(str(error)) from None

    # -- on every rank --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """A run that starts anew starts with the critic as it was at first."""
        if not self._begun:
            self._begun = True
            self._reach_at_first(lambda _: self._go_back_to(0))

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


def _scores(link: CriticConnection, kind: str, rollouts: Rollouts, call: Future) -> Tensor | UserError | str:
    """The values or rewards, an error that ends the run, or why the server is away."""
    try:
        arrays = link.wait_for(call)
        if problem := arrays["problem"].reshape(-1)[0].decode():
            raise link.refusal(problem)
        return serialization.unpack_scores(kind, arrays, rollouts)
    except (Lost, NotReady) as error:
        return what_became_of(link.where, error)
    except serialization.WireError as error:
        return UserError(f"{link.where}: {error}")
    except UserError as error:
        return error


def _joined(parts: list[Experience]) -> Experience:
    """The replicas' parts of a global batch, one after the other."""
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + part.size)
    return concat_restore_order(parts, [list(range(start, end)) for start, end in itertools.pairwise(ends)])


def _or_nothing(asked: Future | None) -> dict[str, float]:
    """A train step's metrics; none when the critic went away: it takes the step when it is back."""
    try:
        return asked.result()
    except (Lost, NotReady):
        return {}
