"""A thread that owns a model and answers requests as they come: those that arrive while others run join the batch.

Tokens of a response, and what is told of them, go to the asyncio loop that the request came from.
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
from aligner_lib.megatron.generate import ContinuousBatch, Response, Sampling, generating
from aligner_lib.megatron.logprobs import gather_vocab

logger = logging.getLogger(__name__)
POSITIONS = 256  # of a prompt whose log-probabilities are computed at the same time: each has one for the whole vocabulary

Likeliest = list[tuple[int, float]]  # token ids with their log-probabilities


@dataclass(frozen=True)
class Drawn:
    """A token that was drawn. logprob: in the model's own distribution, in nats; None where it was not asked for."""

    token: int
    logprob: float | None = None
    likeliest: Likeliest = field(default_factory=list)


@dataclass(eq=False)
class Generation:
    """A response on its way. `events` gives what is new: Drawn for each token, and at last an End or an exception."""

    prompt: list[int]
    seed: int
    sampling: Sampling
    alternatives: int | None = None  # likeliest tokens that are told for each place; None: not even its own
    request: object = None  # those of one request share rows with each other, and all requests alike
    events: asyncio.Queue = field(default_factory=asyncio.Queue)
    response: Response | None = None  # once the thread has it
    told: int = 0  # tokens that are in events
    logprobs: list[tuple[float, Likeliest]] = field(default_factory=list)


@dataclass(frozen=True)
class End:
    """The end of a response. finished: by a stop token, rather than by its length."""

    finished: bool


class Ended(Exception):
    """The thread has been asked to end."""


class GenerationThread(threading.Thread):
    """Generates up to so many responses at the same time. All methods are called from one asyncio loop."""

    def __init__(self, model, rows: int, stop_ids: Sequence[int]):
        super().__init__(name="generation", daemon=True)
        self.model, self.rows, self.stop_ids = model, rows, stop_ids
        self.open: set[Generation] = set()  # those that wait for something, of the loop's side
        self._loop = asyncio.get_running_loop()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: dict[int, Generation] = {}  # by their responses, of the thread's side
        self._batch = self._new_batch()

    def begin(self, generation: Generation) -> None:
        """Generate a response."""
        self.open.add(generation)
        self._orders.put(lambda: self._begin(generation))

    def cancel(self, generation: Generation) -> None:
        """Nobody wants this response any more. One that is over is none the worse for it."""
        self.open.discard(generation)
        self._orders.put(lambda: self._cancel(generation))

    async def prompt_logprobs(self, prompt: list[int], alternatives: int) -> list[tuple[float, Likeliest]]:
        """Log-probabilities of a prompt's tokens but the first, with the likeliest tokens in their places."""
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
        """End after the current step. What is open gets `Ended`."""
        self._orders.put(None)

    # -- the thread's side ----------------------------------------------------------------------------------------

    def run(self) -> None:
        going_on = True
        with generating(self.model):
            while going_on:
                try:
                    if going_on := self._carry_out_orders():
                        self._batch.step()
                        self._tell()
                except Exception as error:  # those who wait learn of it; a new batch serves who comes next
                    logger.exception("generation failed")
                    self._fail(error)
                    self._batch = self._new_batch()
        self._fail(Ended("the server ends"))

    def _carry_out_orders(self) -> bool:
        """Do what was ordered, waiting for an order where nothing else is to do. False: it is over."""
        while not self._orders.empty() or not self._batch:
            order = self._orders.get()
            if order is None:
                return False
            order()
        return True

    def _new_batch(self) -> ContinuousBatch:
        return ContinuousBatch(self.model, self.rows, stop_ids=self.stop_ids, observe=self._observe)

    def _begin(self, generation: Generation) -> None:
        generation.response = self._batch.add(
            generation.prompt, generation.seed, generation.sampling, share=generation.request
        )
        self._running[id(generation.response)] = generation

    def _cancel(self, generation: Generation) -> None:
        if self._running.pop(id(generation.response), None) is not None:
            self._batch.cancel(generation.response)

    def _observe(self, responses: list[Response], logits: Tensor, tokens: Tensor) -> None:
        """Take down the log-probabilities that were asked for."""
        generations = [self._running.get(id(response)) for response in responses]
        rows = [row for row, one in enumerate(generations) if one and one.alternatives is not None]
        if not rows:
            return
        most = max(generations[row].alternatives for row in rows)
        for row, found in zip(rows, _told(logits[rows], tokens[rows], most)):
            logprob, likeliest = found
            generations[row].logprobs.append((logprob, likeliest[: generations[row].alternatives]))

    def _tell(self) -> None:
        news: list[tuple[Generation, Drawn | End]] = []
        for key, one in list(self._running.items()):
            for place, token in enumerate(one.response.tokens[one.told :], one.told):
                news.append((one, Drawn(token, *one.logprobs[place]) if one.logprobs else Drawn(token)))
            one.told = len(one.response.tokens)
            if one.response.is_over:
                news.append((one, End(one.response.finished)))
                del self._running[key]
        self._loop.call_soon_threadsafe(self._deliver, news)

    def _fail(self, error: Exception) -> None:
        self._running.clear()
        self._loop.call_soon_threadsafe(lambda: self._deliver([(one, error) for one in self.open]))

    # -- the loop's side ------------------------------------------------------------------------------------------

    def _deliver(self, news: list[tuple[Generation, Drawn | End | Exception]]) -> None:
        for generation, event in news:
            generation.events.put_nowait(event)
            if not isinstance(event, Drawn):
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
    found = []
    for part, tokens in zip(
        hidden.split(POSITIONS), torch.tensor(prompt[1:], device=device).split(POSITIONS)
    ):
        logits = gather_vocab(model.logits(part).float(), parallel.tp_group())
        found += _told(logits, tokens, alternatives)
    return found


def _told(logits: Tensor, tokens: Tensor, count: int) -> list[tuple[float, Likeliest]]:
    """The log-probability of each token, and the likeliest tokens in its place: logits float32 [T, V], tokens int64 [T]."""
    logprobs = logits.log_softmax(dim=-1)
    own = logprobs.gather(-1, tokens[:, None])[:, 0].tolist()
    likeliest = logprobs.topk(count, dim=-1)
    return [
        (logprob, list(zip(ids, values)))
        for logprob, ids, values in zip(own, likeliest.indices.tolist(), likeliest.values.tolist())
    ]
