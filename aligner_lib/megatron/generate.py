"""Generation with Megatron models by continuous batching.

Prompts of different lengths share one KV cache. When responses end, waiting prompts take their rows.

B rows of the batch, P longest prompt, V vocabulary
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from aligner_lib.megatron import parallel
from aligner_lib.megatron.attention import KVCache
from aligner_lib.megatron.bare_pass import GenerationPass
from aligner_lib.megatron.captured_step import WORTH_CAPTURING, CapturedStep, capture_for
from aligner_lib.megatron.logprobs import gather_vocab
from aligner_lib.megatron.pipeline import pass_through_stages
from aligner_lib.megatron.shares import Share, is_owed, next_in_line, rows_to_give_up
from aligner_lib.megatron.spans import note

logger = logging.getLogger(__name__)

# Finished rows are removed or reused once they are this share of the batch. Removing rows copies the cache, and computing a
# single prompt costs a pass over all weights.
LEAVE_FRACTION = 1 / 8
# The same for the removal of rows where steps are captured: the next step is captured anew, which costs about three steps.
LEAVE_FRACTION_OF_CAPTURED = 1 / 2
ROOM = 256  # the most free columns that a cache gets when it is moved; the cache grows with the responses


@dataclass(frozen=True)
class Sampling:
    """How the next token is sampled. The defaults sample from the model's unchanged distribution.

    Raises ValueError for a temperature, top_p or max_length outside its range.
    """

    max_length: int  # tokens in a response, the stop token included
    min_length: int = 1  # the first token, counted from 1, that may be a stop token
    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    greedy: bool = False
    end_strings: tuple[str, ...] = ()

    def __post_init__(self):
        if self.temperature <= 0:
            raise ValueError(
                f"temperature is {self.temperature}, but must be positive (use_greedy takes the likeliest token)"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, but must be above 0 and at most 1")
        if self.max_length < 1:
            raise ValueError(f"max_length is {self.max_length}; a response has at least 1 token")


@dataclass
class Response:
    """One generated response."""

    tokens: list[int] = field(default_factory=list)  # the stop token included, if there is one
    logprobs: list[float] = field(default_factory=list)
    """The log-probability of each token, in the distribution from which the token was drawn."""
    finished: bool = False  # ended by a stop token or an end string, not by max_length
    is_over: bool = False  # finished, or at its maximal length


def generate(
    model,
    prompts: list[list[int]],
    seeds: list[int],
    sampling: Sampling,
    *,
    stop_ids: Sequence[int],
    rows: int | None = None,
    decode: Callable[[list[int]], str] | None = None,
) -> list[Response]:
    """Generate a response to each prompt. All ranks of a data-parallel replica call it together.

    rows: the number of responses generated at the same time; None: all. For the other arguments see `ContinuousBatch`.
    """
    batch = ContinuousBatch(model, rows or len(prompts), stop_ids=stop_ids, decode=decode)
    responses = [batch.add(prompt, seed, sampling) for prompt, seed in zip(prompts, seeds)]
    batch.run()
    return responses


@contextmanager
def generating(model: torch.nn.Module) -> Iterator[None]:
    """A context manager: inside, the model generates, in evaluation mode. Afterwards the model has its previous mode."""
    was_training = model.training
    model.eval()
    with torch.inference_mode(), _whole_sequences(model):
        yield
    model.train(was_training)


@contextmanager
def _whole_sequences(model: torch.nn.Module) -> Iterator[None]:
    """A context manager: inside, sequence parallelism is off, because a single new token cannot be split over ranks."""
    modules = list(model.modules())
    configs = {id(module.config): module.config for module in modules if hasattr(module, "config")}
    names = ("sequence_parallel", "reduce_scatter_embeddings")
    on = [(at, name) for at in (*modules, *configs.values()) for name in names if getattr(at, name, False)]
    for at, name in on:
        setattr(at, name, False)
    try:
        yield
    finally:
        for at, name in on:
            setattr(at, name, True)


class Constraint(Protocol):
    """The tokens that a response may contain, such as those of a JSON text. Each response has its own."""

    def allowed(self, size: int) -> Tensor:
        """Whether each token may come next, bool [size]. At least one token may."""
        ...

    def take(self, token: int) -> None:
        """Read the response's next token."""
        ...


@dataclass(eq=False)
class _Request:
    """A prompt and its response, waiting or in a row of the batch."""

    prompt: tuple[int, ...]
    sampling: Sampling
    uniforms: list[float]  # the random number for each token
    response: Response
    share: Share = None  # requests with the same share count as one competitor for rows
    constraint: Constraint | None = None

    @property
    def context(self) -> tuple[int, ...]:
        """The tokens that the model has to read before the next token: the prompt and the response so far."""
        return self.prompt + tuple(self.response.tokens) if self.response.tokens else self.prompt

    @property
    def remaining(self) -> int:
        """The number of tokens by which the response may still grow; 0 when the response is over."""
        return 0 if self.response.is_over else self.sampling.max_length - len(self.response.tokens)

    @property
    def is_too_short_to_stop(self) -> bool:
        """Whether the next token must not be a stop token."""
        return len(self.response.tokens) + 1 < self.sampling.min_length

    @property
    def uniform(self) -> float:
        """The random number for the next token."""
        return self.uniforms[len(self.response.tokens)] if self.remaining else 0.0

    def take(self, token: int, logprob: float, stop_ids: Sequence[int], decode) -> None:
        """Append the next token, which may end the response."""
        response = self.response
        response.tokens.append(token)
        response.logprobs.append(logprob)
        response.finished = token in stop_ids or _has_ended(response.tokens, self.sampling, decode)
        response.is_over = response.finished or len(response.tokens) >= self.sampling.max_length
        if self.constraint is not None:
            self.constraint.take(token)


@dataclass(frozen=True)
class _Computed:
    """A context that the model has read."""

    cache: KVCache
    row: int  # the context's row in the cache
    hidden: Tensor | None  # hidden state of the last token, [H], on the last stage


class ContinuousBatch:
    """A batch of responses that are generated together. Prompts may be added at any time.

    Apart from rounding, a response depends only on its prompt, seed and sampling, not on the batch or the parallelism. A prompt
    shared by several requests is computed once. All ranks of a data-parallel replica make the same calls.
    """

    def __init__(
        self,
        model,
        rows: int,
        *,
        stop_ids: Sequence[int],
        decode: Callable[[list[int]], str] | None = None,
        observe: Callable[[list[Response], Tensor, Tensor], None] | None = None,
    ):
        """rows: the number of responses generated at the same time. stop_ids: ids of the tokens that end a response. decode:
        gives the text of token ids, required for end strings. observe: called on the last stage with responses, the logits of
        their next tokens, float32 [B, V], and the drawn tokens, int64 [B], before the responses contain these tokens."""
        self.model, self.rows, self.stop_ids = model, rows, list(stop_ids)
        self._decode, self._observe = decode, observe
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []  # by row; a finished request stays until its row is taken
        self._computed: dict[tuple[int, ...], _Computed] = {}  # contexts for which further requests wait
        self._device = next(model.parameters()).device
        self._cache = KVCache(torch.zeros(0, dtype=torch.int64, device=self._device), 0)
        self._work = GenerationPass(model)
        self._capture = capture_for(model)
        self._captured: CapturedStep | None = None  # until the rows or columns of the cache are arranged anew

    def add(
        self,
        prompt: list[int],
        seed: int,
        sampling: Sampling,
        share: Share = None,
        constraint: Constraint | None = None,
    ) -> Response:
        """Add a prompt (token ids, not empty). Returns its response, which grows with each step. seed: of the random numbers.

        share: rows are divided fairly among shares, such as the clients of a server. A response may lose its row to a share
        with fewer rows; its generation continues later from the last token. Requests of one share are served in order.
        constraint: limits the response's tokens, without pipeline stages.
        """
        assert prompt, "an empty prompt can't be continued"
        uniforms = _uniforms(seed, sampling.max_length)
        request = _Request(tuple(prompt), sampling, uniforms, Response(), share, constraint)
        self._waiting.append(request)
        return request.response

    def cancel(self, response: Response) -> None:
        """End a response that is no longer needed."""
        response.is_over = True
        self._waiting = deque(request for request in self._waiting if request.response is not response)
        if not self:  # keep nothing for later prompts
            self._leave()
            self._computed.clear()

    def __bool__(self) -> bool:
        """Whether some response is not over yet."""
        return bool(self._waiting) or any(request.remaining for request in self._running)

    def run(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Take steps until all responses are over or `enough` returns True."""
        self._work = GenerationPass(self.model)  # a profile counts each run separately
        note(self._work)
        with generating(self.model):
            while self and not enough():
                self.step()

    def step(self) -> None:
        """Draw a token for each row, or let waiting prompts join the batch. Must be called inside `generating`."""
        owed = self._waiting and self._give_up_rows()
        free = self.rows - sum(request.remaining > 0 for request in self._running)
        if self._waiting and free and (owed or free >= LEAVE_FRACTION * self.rows):
            self._join(min(free, len(self._waiting)))
        else:
            self._advance()
        over = sum(request.remaining == 0 for request in self._running)
        fraction = LEAVE_FRACTION if self._capture is None else LEAVE_FRACTION_OF_CAPTURED
        if not self._waiting and over and over >= fraction * len(self._running):
            self._leave()

    # -- rows of the cache ----------------------------------------------------------------------------------------

    def _give_up_rows(self) -> bool:
        """Take rows from shares that have more rows than a waiting share. Returns whether a waiting share was owed a row.

        Within a share, the responses with the shortest contexts lose their rows, because they cost the least to read again.
        """
        waiting = Counter(request.share for request in self._waiting)
        running = Counter(request.share for request in self._running if request.remaining)
        if not is_owed(waiting, running):
            return False
        for share, count in rows_to_give_up(waiting, running, self.rows - running.total()).items():
            rows = [
                row
                for row, request in enumerate(self._running)
                if request.remaining and request.share == share
            ]
            for row in sorted(rows, key=lambda row: len(self._running[row].context))[:count]:
                request = self._running[row]
                self._waiting.appendleft(request)
                # the row is free from here on: a copy of the request, marked as over, stays in the row until another request
                # takes it
                self._running[row] = replace(request, response=replace(request.response, is_over=True))
        return True

    def _join(self, count: int) -> None:
        """Give free or new rows to the next waiting requests, and draw their first tokens."""
        # shortest first: a row's rounding depends on its place in the batch, and all recorded figures were made in this order
        joining = sorted(self._next_in_line(count), key=lambda request: len(request.context))
        computed = self._prefilled(joining)
        width = max(prefill.cache.sequence_len_offset for prefill in computed)
        present = len(self._running)
        rows = [row for row, request in enumerate(self._running) if not request.remaining][:count]
        added = count - len(rows)
        if added or width > self._cache.sequence_len_offset:
            self._arrange(range(present), joining, added, width)
        rows += range(present, present + added)
        self._running += joining[:added]  # placeholders for the new rows; the loop below assigns the requests
        for row, request in zip(rows, joining):
            self._running[row] = request
        for cache in {id(prefill.cache): prefill.cache for prefill in computed}.values():
            its = [(row, prefill.row) for row, prefill in zip(rows, computed) if prefill.cache is cache]
            self._cache.insert(
                self._indices([row for row, _ in its]), cache, self._indices([copy for _, copy in its])
            )
        hidden = torch.stack([prefill.hidden for prefill in computed]) if parallel.is_last_stage() else None
        self._draw(joining, hidden)

    def _next_in_line(self, count: int) -> list[_Request]:
        """Remove the requests that get the next rows from the queue. Returns these requests."""
        running = Counter(request.share for request in self._running if request.remaining)
        places = next_in_line([request.share for request in self._waiting], running, count)
        chosen, left = [self._waiting[place] for place in places], set(places)
        self._waiting = deque(request for place, request in enumerate(self._waiting) if place not in left)
        return chosen

    def _advance(self) -> None:
        """Compute one more token for each row."""
        if self._cache.sequence_len_offset == self._cache.max_sequence_length:
            self._arrange(range(len(self._running)))
        tokens = torch.tensor(
            [request.response.tokens[-1:] for request in self._running], device=self._device
        )
        hidden = self._next_hidden(tokens)
        self._cache.increment_sequence_len_offset(1)
        self._work.read(tokens, self._cache.sequence_len_offset)
        self._draw(self._running, hidden[-1])

    def _next_hidden(self, tokens: Tensor) -> Tensor:
        """The hidden states of new tokens: int64 [B, 1] → [1, B, H] in the model's dtype, on the last stage."""
        left = max(request.remaining for request in self._running)
        if self._captured is None and self._capture is not None and left >= WORTH_CAPTURING:
            try:
                self._captured = CapturedStep(self.model, self._cache, self._capture)
            except RuntimeError as error:  # an operation of this model can't be captured
                logger.warning(
                    f"generation starts every operation from Python: no CUDA graph, because {error}"
                )
                self._capture = None
        if self._captured is not None:
            return self._captured(tokens)
        return pass_through_stages(self.model, tokens, self._cache)

    def _leave(self) -> None:
        """Remove the finished rows from the batch."""
        staying = [row for row, request in enumerate(self._running) if request.remaining]
        self._arrange(staying)
        self._running = [self._running[row] for row in staying]

    def _arrange(
        self, rows: Sequence[int], joining: Sequence[_Request] = (), added: int = 0, width: int = 0
    ) -> None:
        """Keep the given rows, add empty rows for joining requests, and drop the columns before the first unfinished row.

        width: the least number of filled columns afterwards.
        """
        self._captured = None
        running = [row for row in rows if self._running[row].remaining]
        origins = self._cache.origins[self._indices(running)].tolist() if running else []
        filled = self._cache.sequence_len_offset
        end = max(filled - min(origins, default=filled), width)
        remaining = [request.remaining for request in (*(self._running[row] for row in running), *joining)]
        self._cache.arrange(self._indices(rows), added, end, end + min(max(remaining, default=0), ROOM))

    def _indices(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(list(rows), dtype=torch.int64, device=self._device)

    # -- prompts and tokens ---------------------------------------------------------------------------------------

    def _prefilled(self, requests: list[_Request]) -> list[_Computed]:
        """The computed context of each request. New contexts go through the model together, each of them once."""
        prompts = dict.fromkeys(
            request.context for request in requests if request.context not in self._computed
        )
        if prompts:
            longest = max(map(len, prompts))
            padding = [longest - len(prompt) for prompt in prompts]
            rows = [[self.stop_ids[0]] * left + list(prompt) for left, prompt in zip(padding, prompts)]
            tokens, cache = torch.tensor(rows, device=self._device), KVCache(self._indices(padding), longest)
            hidden = pass_through_stages(self.model, tokens, cache)
            self._work.read(tokens, longest)
            cache.increment_sequence_len_offset(longest)
            last = hidden[-1] if parallel.is_last_stage() else [None] * len(prompts)
            self._computed |= {prompt: _Computed(cache, row, last[row]) for row, prompt in enumerate(prompts)}
        computed = [self._computed[request.context] for request in requests]
        waiting = {request.context for request in self._waiting}
        self._computed = {prompt: prefill for prompt, prefill in self._computed.items() if prompt in waiting}
        return computed

    def _draw(self, requests: list[_Request], hidden: Tensor | None) -> None:
        """Draw the next token of each request, from the last stage's hidden states [B, H], in the model's dtype.

        The last stage draws and sends tokens and log-probabilities, float64 [2, B], to every rank of the replica.
        """
        self._work.drawn += len(requests)
        drawn = torch.zeros(2, len(requests), dtype=torch.float64, device=self._device)
        if parallel.is_last_stage():
            logits = gather_vocab(self.model.logits(hidden).float(), parallel.tp_group())  # [B, V]
            early = [row for row, request in enumerate(requests) if request.is_too_short_to_stop]
            if early:
                logits[self._indices(early)[:, None], self._indices(self.stop_ids)] = -torch.inf
            uniforms = torch.tensor(
                [request.uniform for request in requests], dtype=torch.float64, device=self._device
            )
            possible = _constrained(logits, requests)
            for sampling, rows in _alike(requests).items():
                at = self._indices(rows) if len(rows) < len(requests) else slice(None)
                drawn[0, at], drawn[1, at] = map(Tensor.double, draw(possible[at], uniforms[at], sampling))
            if self._observe is not None:
                self._observe([request.response for request in requests], logits, drawn[0].long())
        tokens, logprobs = parallel.from_head(drawn).tolist()
        for request, token, logprob in zip(requests, tokens, logprobs):
            if request.remaining:
                request.take(int(token), logprob, self.stop_ids, self._decode)


def _constrained(logits: Tensor, requests: list[_Request]) -> Tensor:
    """The logits, float32 [B, V], without the tokens that a request's constraint forbids. Other rows keep their values."""
    rows = [row for row, request in enumerate(requests) if request.constraint and request.remaining]
    if not rows:
        return logits
    logits = logits.clone()  # observers read the model's own distribution
    for row in rows:
        allowed = requests[row].constraint.allowed(logits.shape[-1])
        logits[row].masked_fill_(~allowed.to(logits.device), -torch.inf)
    return logits


def _alike(requests: list[_Request]) -> dict[Sampling, list[int]]:
    """The indices of the requests that draw a token with the same settings, by these settings."""
    places: dict[Sampling, list[int]] = {}
    for place, request in enumerate(requests):
        way = replace(request.sampling, max_length=1, min_length=1, end_strings=())
        places.setdefault(way, []).append(place)
    return places


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Sample each row's next token by inverting its cumulative distribution at the row's uniform number.

    logits: float32 [B, V]; uniforms: float64 [B] in [0, 1). Returns ids, int64 [B], and their log-probabilities in the
    distribution from which they were drawn (scaled by the temperature, cut by top-k and top-p), float32 [B] in nats; 0 with
    greedy. With top-k or top-p, tokens are ordered by probability and the tail is cut off; otherwise tokens are ordered by id.
    Source of top-p: nucleus sampling, Holtzman et al. 2020 (arXiv:1904.09751).
    """
    if sampling.greedy:
        return logits.argmax(dim=-1), torch.zeros(len(logits), device=logits.device)
    logits = logits / sampling.temperature
    if not sampling.top_k and sampling.top_p == 1.0:
        ids = _invert(logits.softmax(dim=-1), uniforms)
        return ids, _selected(logits, ids) - logits.logsumexp(dim=-1)
    k = min(sampling.top_k or logits.shape[-1], logits.shape[-1])
    top, ids = logits.topk(k, dim=-1)
    probabilities = top.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # mass of the likelier tokens
    beyond = before >= sampling.top_p
    beyond[:, 0] = False  # the likeliest token always stays
    probabilities = probabilities.masked_fill(beyond, 0.0)
    places = _invert(probabilities, uniforms)
    return _selected(ids, places), (_selected(probabilities, places) / probabilities.sum(dim=-1)).log()


def _selected(table: Tensor, places: Tensor) -> Tensor:
    return table.gather(-1, places[:, None])[:, 0]


def _invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    cumulative = probabilities.double().cumsum(dim=-1)
    threshold = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True).clamp(max=probabilities.shape[-1] - 1)[:, 0]


def _uniforms(seed: int, count: int) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, dtype=torch.float64, generator=generator).tolist()


def _has_ended(tokens: list[int], sampling: Sampling, decode) -> bool:
    """Whether the last token completes an end string, which may end within the token."""
    if not sampling.end_strings:
        return False
    assert decode is not None, "end strings need decode"
    longest = max(len(end.encode()) for end in sampling.end_strings)
    tail = decode(tokens[-longest - 1 :])  # a token is at least one byte long
    return any(end in tail for end in sampling.end_strings)
