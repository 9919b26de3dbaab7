"""A thread that owns a model and answers requests as they arrive. A request joins the running batch.

The thread sends the tokens of a response, and its end or error, to the asyncio loop of the request.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aligner_lib.megatron import parallel
from aligner_lib.megatron.generate import Constraint, ContinuousBatch, Response, Sampling, generating
from aligner_lib.megatron.logprobs import gather_vocab

logger = logging.getLogger(__name__)
# prompt positions whose logits are computed together; each position has a logit per vocabulary entry
POSITIONS = 256

Likeliest = list[tuple[int, float]]  # token ids with their log-probabilities in nats


@dataclass(frozen=True)
class DrawnToken:
    """A sampled token. logprob: under the model's own distribution, in nats; None if not requested."""

    token: int
    logprob: float | None = None
    likeliest: Likeliest = field(default_factory=list)


@dataclass(eq=False)
class PendingResponse:
    """A response in generation. `events` receives a DrawnToken for each token, then a ResponseEnd or an exception."""

    prompt: list[int]
    seed: int
    sampling: Sampling
    alternatives: int | None = None
    """Number of likeliest tokens to report at each position; None: report no log-probabilities."""
    request: object = None
    """Responses to the same request share rows of the batch. Different requests get equal shares."""
    constraint: Constraint | None = None
    events: asyncio.Queue = field(default_factory=asyncio.Queue)
    response: Response | None = None
    """Set when the thread has started the response."""
    delivered: int = 0
    """Number of tokens already put into events."""
    logprobs: list[tuple[float, Likeliest]] = field(default_factory=list)


@dataclass(frozen=True)
class ResponseEnd:
    """The end of a response. finished: True after a stop token, False at the maximal length."""

    finished: bool


class ThreadEnded(Exception):
    """The thread has ended on request."""


class GenerationThread(threading.Thread):
    """Generates up to `rows` responses at the same time. All methods must be called from the same asyncio loop."""

    def __init__(self, model, rows: int, stop_ids: Sequence[int]):
        super().__init__(name="generation", daemon=True)
        self.model, self.rows, self.stop_ids = model, rows, stop_ids
        # responses with a waiting client; used only by the asyncio loop
        self.open: set[PendingResponse] = set()
        self._loop = asyncio.get_running_loop()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: dict[
            int, PendingResponse
        ] = {}  # by the ids of their responses; used only by the thread
        self._batch = self._new_batch()

    def begin(self, generation: PendingResponse) -> None:
        """Start the generation of a response."""
        self.open.add(generation)
        self._orders.put(lambda: self._begin(generation))

    def cancel(self, generation: PendingResponse) -> None:
        """Cancel a response whose client no longer waits. The response may already be complete."""
        self.open.discard(generation)
        self._orders.put(lambda: self._cancel(generation))

    async def prompt_logprobs(self, prompt: list[int], alternatives: int) -> list[tuple[float, Likeliest]]:
        """Compute log-probabilities of all tokens of a prompt except the first, with the likeliest tokens at each position."""
        answer = asyncio.get_running_loop().create_future()

        def compute() -> None:
            try:
                result, failed = _prompt_logprobs(self.model, prompt, alternatives), None
            except Exception as error:
                result, failed = None, error
            self._loop.call_soon_threadsafe(_settle, answer, result, failed)

        self._orders.put(compute)
        return await answer

    def close(self) -> None:
        """End the thread after the current step. Open responses get `ThreadEnded`."""
        self._orders.put(None)

    # -- methods of the thread ------------------------------------------------------------------------------------

    def run(self) -> None:
        active = True
        with generating(self.model):
            while active:
                try:
                    if active := self._execute_orders():
                        self._batch.step()
                        self._send_news()
                except Exception as error:  # open responses get the error; later responses use a new batch
                    logger.exception("generation failed")
                    self._fail(error)
                    self._batch = self._new_batch()
        self._fail(ThreadEnded("the server ends"))

    def _execute_orders(self) -> bool:
        """Execute the queued orders. If the batch is empty, wait for an order. Returns False at the end of the thread."""
        while not self._orders.empty() or not self._batch:
            order = self._orders.get()
            if order is None:
                return False
            order()
        return True

    def _new_batch(self) -> ContinuousBatch:
        return ContinuousBatch(self.model, self.rows, stop_ids=self.stop_ids, observe=self._observe)

    def _begin(self, generation: PendingResponse) -> None:
        generation.response = self._batch.add(
            generation.prompt,
            generation.seed,
            generation.sampling,
            share=generation.request,
            constraint=generation.constraint,
        )
        self._running[id(generation.response)] = generation

    def _cancel(self, generation: PendingResponse) -> None:
        if self._running.pop(id(generation.response), None) is not None:
            self._batch.cancel(generation.response)

    def _observe(self, responses: list[Response], logits: Tensor, tokens: Tensor) -> None:
        """Record the requested log-probabilities."""
        generations = [self._running.get(id(response)) for response in responses]
        rows = [
            row
            for row, generation in enumerate(generations)
            if generation and generation.alternatives is not None
        ]
        if not rows:
            return
        most = max(generations[row].alternatives for row in rows)
        for row, (logprob, likeliest) in zip(rows, _with_alternatives(logits[rows], tokens[rows], most)):
            generations[row].logprobs.append((logprob, likeliest[: generations[row].alternatives]))

    def _send_news(self) -> None:
        news: list[tuple[PendingResponse, DrawnToken | ResponseEnd]] = []
        for key, generation in list(self._running.items()):
            response, logprobs = generation.response, generation.logprobs
            for place, token in enumerate(response.tokens[generation.delivered :], generation.delivered):
                news.append(
                    (generation, DrawnToken(token, *logprobs[place]) if logprobs else DrawnToken(token))
                )
            generation.delivered = len(response.tokens)
            if response.is_over:
                news.append((generation, ResponseEnd(response.finished)))
                del self._running[key]
        self._loop.call_soon_threadsafe(self._deliver, news)

    def _fail(self, error: Exception) -> None:
        self._running.clear()
        self._loop.call_soon_threadsafe(
            lambda: self._deliver([(generation, error) for generation in self.open])
        )

    # -- methods of the loop --------------------------------------------------------------------------------------

    def _deliver(self, news: list[tuple[PendingResponse, DrawnToken | ResponseEnd | Exception]]) -> None:
        for generation, event in news:
            generation.events.put_nowait(event)
            if not isinstance(event, DrawnToken):
                self.open.discard(generation)


def _settle(answer: asyncio.Future, result, failed: Exception | None) -> None:
    if answer.cancelled():
        return
    if failed is None:
        answer.set_result(result)
    else:
        answer.set_exception(failed)


def _prompt_logprobs(model, prompt: list[int], alternatives: int) -> list[tuple[float, Likeliest]]:
    device = next(model.parameters()).device
    hidden = model(torch.tensor([prompt], device=device))[:-1, 0]  # [S-1, H]
    results = []
    for part, tokens in zip(
        hidden.split(POSITIONS), torch.tensor(prompt[1:], device=device).split(POSITIONS)
    ):
        logits = gather_vocab(model.logits(part).float(), parallel.tp_group())
        results += _with_alternatives(logits, tokens, alternatives)
    return results


def _with_alternatives(logits: Tensor, tokens: Tensor, count: int) -> list[tuple[float, Likeliest]]:
    """Each token's log-probability and the likeliest tokens at its position: logits float32 [T, V], tokens int64 [T]."""
    logprobs = logits.log_softmax(dim=-1)
    own = logprobs.gather(-1, tokens[:, None])[:, 0].tolist()
    likeliest = logprobs.topk(count, dim=-1)
    return [
        (logprob, list(zip(ids, values)))
        for logprob, ids, values in zip(own, likeliest.indices.tolist(), likeliest.values.tolist())
    ]
