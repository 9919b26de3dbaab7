"""Queue the actor's requests and turn them into commands for all ranks, in order. First rank only.

PyTriton calls `RequestQueue.answer_…` in its own threads, which queue their requests and wait. The main thread takes the
requests from the queue (`command_loop.serve`), makes all ranks execute the commands, and answers.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from aligner_lib.errors import UserError
from aligner_lib.remote_critic import serialization
from aligner_lib.remote_critic.checkpoints import CriticCheckpoints
from aligner_lib.remote_critic.errors import NotReady, Refusal, in_a_sentence, in_words
from aligner_lib.remote_critic.hang_detection import longest_with
from aligner_lib.remote_critic.session import ActorRun, ActorSession
from aligner_lib.remote_critic.worker import Command, Load, Rewards, Save, Train, Values, Wait

TICK_S = 0.5  # longest wait for a request between two checks whether the service ends


@dataclass
class Request:
    """A request that waits for its answer."""

    kind: str
    """values, rewards, train, save, load or begin."""
    details: dict
    answer: Future = field(default_factory=Future)


class RequestQueue:
    """Queues the actor's requests, answers them in order, and reports the server's status."""

    def __init__(
        self,
        checkpoints: CriticCheckpoints | None,
        session: ActorSession,
        vocab_size: int,
        about: dict,
        replicas: int = 1,
    ):
        """checkpoints: the critic's; None for a reward model, which never changes. about: entries for the status. replicas:
        data-parallel ranks that share a batch."""
        self.checkpoints, self.session, self.vocab_size, self.replicas = (
            checkpoints,
            session,
            vocab_size,
            replicas,
        )
        self.updates = checkpoints.latest() if checkpoints else 0
        self.about = about | {"server": uuid.uuid4().hex}
        self.doing, self.since = "starting", time.time()
        self.longest: dict[str, float] = {}  # seconds, by kind of command
        self._turn = time.monotonic()  # when the main thread last took a command, or looked for a command
        self.counts = {"values": 0, "rewards": 0, "train": 0, "merged": 0, "busy_s": 0.0}
        self._requests: queue.Queue[Request] = queue.Queue()
        self._closed: Refusal | None = None
        # set when the actor has received the status with the reason why the queue is closed
        self._told = threading.Event()

    # -- in PyTriton's threads ------------------------------------------------------------------------------------

    def answer_values(self, requests: list[tuple[dict, serialization.Arrays]]) -> list[serialization.Arrays]:
        return self._answer_scores("values", requests)

    def answer_rewards(self, requests: list[tuple[dict, serialization.Arrays]]) -> list[serialization.Arrays]:
        return self._answer_scores("rewards", requests)

    def _answer_scores(
        self, kind: str, requests: list[tuple[dict, serialization.Arrays]]
    ) -> list[serialization.Arrays]:
        """The values or rewards of each request. Requests that arrive together become a single command, but are computed
        separately, so that the numbers of a request do not depend on the other requests."""
        self.counts["merged"] += len(requests) > 1
        problems: list[str | None] = [None] * len(requests)
        batches = []
        for i, (parameters, arrays) in enumerate(requests):
            try:
                self._check_actor(parameters)
                if kind == "values":
                    self._check_updates(parameters)
                batches.append((i, serialization.unpack_tokens(arrays, self.vocab_size)))
            except Exception as error:
                problems[i] = _problem_of(error)
        scores = {}
        if batches:
            try:
                answers = self._ask(kind, batches=[batch for _, batch in batches], updates=self.updates)
                scores = {i: answer for (i, _), answer in zip(batches, answers)}
            except Exception as error:
                problems = [problem or _problem_of(error) for problem in problems]
        return [
            serialization.pack_scores(kind, scores[i], arrays["tokens"].shape[1])
            if i in scores
            else serialization.refused_scores(kind, arrays, problems[i])
            for i, (_, arrays) in enumerate(requests)
        ]

    def answer_train(self, requests: list[tuple[dict, serialization.Arrays]]) -> list[serialization.Arrays]:
        return [self._in_words(self._train, *request) for request in requests]

    def answer_checkpoint(
        self, requests: list[tuple[dict, serialization.Arrays]]
    ) -> list[serialization.Arrays]:
        return [self._in_words(self._checkpoint, *request) for request in requests]

    def answer_status(self, requests: list[tuple[dict, serialization.Arrays]]) -> list[serialization.Arrays]:
        for parameters, _ in requests:
            self.session.heard(parameters.get("actor"))
        closed = self._closed is not None
        answers = [serialization.text(self.status()) for _ in requests]
        if closed and any(parameters.get("actor") == self.session.actor for parameters, _ in requests):
            self._told.set()
        return answers

    def status(self) -> dict:
        return self.about | {
            "updates": self.updates,
            "checkpoints": self.checkpoints.numbers() if self.checkpoints else [],
            "doing": self.doing,
            "since": self.since,
            "doing_s": round(time.monotonic() - self._turn, 1),
            "longest_s": dict(self.longest),
            "counts": dict(self.counts),
            "actor": self.session.actor,
            "actor_heard_s": round(self.session.silence_s, 1),
            "refusal": in_words(self._closed) if self._closed is not None else None,
        }

    def _train(self, parameters: dict, arrays: serialization.Arrays) -> dict:
        self._check_actor(parameters)
        experience = serialization.unpack_experience(arrays, self.vocab_size)
        if experience.size < self.replicas:
            raise Refusal(
                f"a global batch of {experience.size} samples leaves some of its {self.replicas} data-parallel ranks "
                "without a sample: give the critic fewer devices, or the actor a larger model.global_batch_size"
            )
        lr = float.fromhex(parameters["lr"])
        return self._ask("train", number=int(parameters["number"]), experience=experience, lr=lr)

    def _checkpoint(self, parameters: dict, arrays: serialization.Arrays) -> dict:
        request = serialization.value_of(arrays, "request")
        if request["kind"] in ("begin", "load"):
            run = ActorRun(request["actor_run"], request.get("actor_created"))
            self.session.welcome(request["actor"], run, self.checkpoints and self.checkpoints.owner())
        else:
            self._check_actor(parameters)
        return self._ask(request.pop("kind"), **request)

    def _in_words(
        self, work: Callable[[dict, serialization.Arrays], dict], parameters: dict, arrays
    ) -> serialization.Arrays:
        try:
            return serialization.text({"result": work(parameters, arrays)})
        except Exception as error:
            return serialization.text({"problem": _problem_of(error)})

    def _check_actor(self, parameters: dict) -> None:
        self.session.heard(parameters.get("actor"))
        if parameters.get("actor") != self.session.actor:
            raise NotReady("the actor has not begun a session since the server was started")

    def _check_updates(self, parameters: dict) -> None:
        """Check that values come from the weights that the actor expects. Raises NotReady. A reward model has only a single set
        of weights."""
        if int(parameters["updates"]) != self.updates:
            raise NotReady(
                f"the server has made {self.updates} train steps, but {parameters['updates']} were expected"
            )

    def _ask(self, kind: str, **details) -> dict:
        if self._closed is not None:
            raise self._closed
        request = Request(kind, details)
        self._requests.put(request)
        return request.answer.result()

    # -- in the main thread ---------------------------------------------------------------------------------------

    def next(self) -> tuple[Command, Request | None]:
        """The next command and its request; Wait when there is none. Requests that need no rank are answered here."""
        while True:
            self._now("idle")
            try:
                request = self._requests.get(timeout=TICK_S)
            except queue.Empty:
                return Wait(), None
            try:
                command = self._command(request)
            except UserError as error:
                request.answer.set_exception(error)
                continue
            except Exception as error:
                request.answer.set_exception(Refusal(in_a_sentence(request.kind, error)))
                raise
            if command is not None:
                self._now(request.kind)
                return command, request

    def _command(self, request: Request) -> Command | None:
        """The command of all ranks for a request; None when the request is already answered."""
        details = request.details
        if request.kind == "rewards":
            return Rewards(details["batches"])
        if request.kind == "values":
            if details["updates"] != self.updates:
                raise NotReady(f"the server has made {self.updates} train steps meanwhile")
            return Values(details["batches"])
        if request.kind == "train":
            number = details["number"]
            if number != self.updates + 1:
                raise NotReady(
                    f"the server has made {self.updates} train steps, so cannot make number {number}"
                )
            return Train(number, details["experience"], details["lr"])
        if request.kind == "save":
            if details["updates"] != self.updates:
                raise NotReady(
                    f"the server has made {self.updates} train steps, but {details['updates']} were to be saved"
                )
            return Save(self.checkpoints.tmp_dir(self.updates))
        if request.kind == "load" and not (details["updates"] == self.updates == self.counts["train"] == 0):
            return Load(self.checkpoints.find(details["updates"]))
        assert request.kind in ("begin", "load"), request.kind
        request.answer.set_result(self.status())
        return None

    def done(self, command: Command, request: Request, result: object, seconds: float) -> None:
        """Record the result of a command on all ranks, and answer the request."""
        self.counts["busy_s"] += seconds
        if isinstance(command, Values | Rewards):
            self.counts[request.kind] += sum(batch.size for batch in command.batches)
        elif isinstance(command, Train):
            self.updates = command.number
            self.counts["train"] += 1
            if result:  # empty when no response of the global batch has a reward
                self.checkpoints.log(command.number, result, command.lr, seconds)
        elif isinstance(command, Save):
            details = request.details
            self.checkpoints.accept(
                command.folder,
                self.updates,
                details["previous"],
                self.session.run,
                details.get("way_back", 0),
            )
        elif isinstance(command, Load):
            self.updates = request.details["updates"]
            self.checkpoints.forget_after(self.updates)
        request.answer.set_result(self.status() if isinstance(command, Save | Load) else result)

    def close(self, reason: Refusal) -> None:
        """Refuse all waiting requests and all later ones. The first reason is kept."""
        self._closed = self._closed or reason
        while True:
            try:
                self._requests.get_nowait().answer.set_exception(self._closed)
            except queue.Empty:
                return

    def wait_until_told(self, within_s: float) -> None:
        """Return when the actor, if there is one, has received a status with the reason of `close`, or after within_s seconds.

        No answer contains an error that occurs between two requests. Without this wait, the actor would only find a dead
        server.
        """
        if self.session.actor is not None:
            self._told.wait(within_s)

    def _now(self, doing: str) -> None:
        before, self._turn = self._turn, time.monotonic()
        if self.doing not in ("starting", "idle"):
            self.longest[self.doing] = longest_with(self.longest.get(self.doing), self._turn - before)
        if doing != self.doing:
            self.doing, self.since = doing, time.time()


def _problem_of(error: Exception) -> str:
    """The message for the actor: an unchanged UserError, or a sentence for any other error, whose traceback is in the critic's
    log."""
    if isinstance(error, UserError):
        return in_words(error)
    traceback.print_exception(error)
    return in_words(Refusal(in_a_sentence("answering", error)))
