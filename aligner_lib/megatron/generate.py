"""Generation with Megatron models: prompts of different lengths in one batch, and a KV cache.

B rows still generating, P longest prompt, S columns so far, V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aligner_lib.megatron import parallel
from aligner_lib.megatron.attention import KVCache
from aligner_lib.megatron.logprobs import gather_vocab
from aligner_lib.megatron.pipeline import pass_through_stages

LEAVE_FRACTION = 1 / 8  # finished rows leave once they are this part of the batch: each time copies the cache


@dataclass(frozen=True)
class Sampling:
    """How the next token is sampled. The defaults sample from the model's unchanged distribution.

    Raises ValueError for a temperature, top_p or max_length outside its range.
    """

    max_length: int  # tokens a response, the stop token included
    min_length: int = 1  # the stop token is not drawn before this many tokens
    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    greedy: bool = False
    end_strings: tuple[str, ...] = ()

    def __post_init__(self):
        if self.temperature <= 0:
            raise ValueError(
                f"temperature is {self.temperature}; it must be positive (use_greedy takes the likeliest token)"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it lies in (0, 1]")
        if self.max_length < 1:
            raise ValueError(f"max_length is {self.max_length}; a response has at least 1 token")


@dataclass
class Response:
    """One generated response."""

    tokens: list[int] = field(default_factory=list)  # the stop token included, where there is one
    logprobs: list[float] = field(
        default_factory=list
    )  # of each token, in the distribution it was drawn from
    finished: bool = False  # by the stop token or an end string, rather than by max_length


def generate(
    model,
    prompts: list[list[int]],
    seeds: list[int],
    sampling: Sampling,
    *,
    stop_id: int,
    decode: Callable[[list[int]], str] | None = None,
) -> list[Response]:
    """Generate a response to each prompt, all in one batch. All ranks of a data-parallel replica call it together.

    prompts: token ids, none empty. seeds: one for each prompt, so that a response depends neither on the
    batch nor on the parallelism. stop_id: id of the stop token. decode: text of token ids, required for end
    strings.
    """
    assert all(prompts), "an empty prompt can't be continued"
    was_training = model.training
    model.eval()
    with torch.inference_mode(), _whole_sequences(model):
        # shortest first: how a row is rounded depends on its place in the batch, and all recorded figures are of this order
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        ordered = [prompts[row] for row in order], [seeds[row] for row in order]
        responses = _generate(model, *ordered, sampling, stop_id, decode)
        responses = [response for _, response in sorted(zip(order, responses), key=lambda pair: pair[0])]
    model.train(was_training)
    return responses


@contextmanager
def _whole_sequences(model: torch.nn.Module) -> Iterator[None]:
    """A context manager: inside, no sequence parallelism, for a single new token can't be shared by ranks."""
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


def _generate(model, prompts, seeds, sampling, stop_id, decode) -> list[Response]:
    responses = [Response() for _ in prompts]
    device = next(model.parameters()).device
    longest = max(len(prompt) for prompt in prompts)
    distinct = list(dict.fromkeys(map(tuple, prompts)))  # a group's prompt is computed once
    tokens = torch.full((len(distinct), longest), stop_id)
    visible = torch.ones(len(distinct), longest + sampling.max_length, dtype=torch.bool)
    for row, prompt in enumerate(distinct):
        padding = longest - len(prompt)
        tokens[row, padding:] = torch.tensor(prompt)
        visible[row, :padding] = False
    uniforms = torch.stack([_uniforms(seed, sampling.max_length) for seed in seeds])
    tokens, visible, uniforms = tokens.to(device), visible.to(device), uniforms.to(device)
    cache = KVCache(visible)
    copies = None
    if len(distinct) < len(prompts):
        copies = torch.tensor([distinct.index(tuple(prompt)) for prompt in prompts], device=device)
    alive = list(range(len(prompts)))  # which responses the batch still holds
    slots = torch.arange(len(prompts), device=device)  # … and their rows of uniforms and logprobs
    logprobs = torch.zeros(len(prompts), sampling.max_length, device=device)  # filled where tokens are drawn
    for position in range(sampling.max_length):
        excluded = stop_id if position + 1 < sampling.min_length else None
        drawn, drawn_logprobs = _next_tokens(
            model, tokens, cache, copies, uniforms[slots, position], sampling, excluded
        )
        logprobs[slots, position] = drawn_logprobs
        copies = None
        for row, token in zip(alive, drawn.tolist()):
            if not _is_over(responses[row], sampling):
                responses[row].tokens.append(token)
                responses[row].finished = token == stop_id or _ends_with(
                    responses[row].tokens, sampling, decode
                )
        running = [i for i, row in enumerate(alive) if not _is_over(responses[row], sampling)]
        if not running:
            break
        tokens = drawn[:, None]
        if len(alive) - len(running) >= LEAVE_FRACTION * len(alive):
            keep = torch.tensor(running, device=device)
            cache.keep(keep)
            alive, slots, tokens = [alive[i] for i in running], slots[keep], tokens[keep]
    for response, row in zip(responses, parallel.from_head(logprobs).tolist()):
        response.logprobs = row[: len(response.tokens)]
    return responses


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Sample each row's next token by inverting its cumulative distribution at the row's uniform number.

    logits: float32 [B, V]; uniforms: float64 [B] in [0, 1). Returns ids, int64 [B], and their log-probabilities in the
    distribution that they were drawn from (scaled by the temperature, cut by top-k and top-p), float32 [B] in nats;
    0 with greedy. With top-k or top-p, tokens are ordered by probability and the tail is cut off; else they are ordered
    by id. Source of top-p: nucleus sampling, Holtzman et al. 2020 (arXiv:1904.09751).
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
    probabilities = probabilities.masked_fill(before >= sampling.top_p, 0.0)  # the likeliest always stays
    places = _invert(probabilities, uniforms)
    return _selected(ids, places), (_selected(probabilities, places) / probabilities.sum(dim=-1)).log()


def _selected(table: Tensor, places: Tensor) -> Tensor:
    return table.gather(-1, places[:, None])[:, 0]


def _invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    cumulative = probabilities.double().cumsum(dim=-1)
    threshold = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True).clamp(max=probabilities.shape[-1] - 1)[:, 0]


def _next_tokens(
    model,
    tokens: Tensor,
    cache: KVCache,
    copies: Tensor | None,
    uniforms: Tensor,
    sampling: Sampling,
    excluded: int | None,
) -> tuple[Tensor, Tensor]:
    """Each row's next token, int64 [B], on every rank of the replica: the last stage draws, and sends ids only. And their
    log-probabilities, float32 [B], which are zeros on other stages.

    tokens: int64 [B', S], those that the cache does not hold yet. copies: int64 [B], which of the computed rows each
    one goes on from, where several go on from one; the cache has B rows from then on. excluded: a token id that is not
    drawn.
    """
    hidden = pass_through_stages(model, tokens, cache)  # [S, B', H] on the last stage
    cache.increment_sequence_len_offset(tokens.shape[1])
    if copies is not None:
        cache.keep(copies)
    drawn = torch.empty(len(uniforms), dtype=torch.int64, device=tokens.device)
    logprobs = torch.zeros(len(uniforms), device=tokens.device)
    if parallel.is_last_stage():
        last = hidden[-1] if copies is None else hidden[-1][copies]
        logits = gather_vocab(model.logits(last).float(), parallel.tp_group())  # [B, V]
        if excluded is not None:
            logits[:, excluded] = -torch.inf
        drawn, logprobs = draw(logits, uniforms, sampling)
    return parallel.from_head(drawn), logprobs


def _uniforms(seed: int, count: int) -> Tensor:
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _is_over(response: Response, sampling: Sampling) -> bool:
    return response.finished or len(response.tokens) >= sampling.max_length


def _ends_with(tokens: list[int], sampling: Sampling, decode) -> bool:
    if not sampling.end_strings:
        return False
    assert decode is not None, "end strings need decode"
    longest = max(len(end.encode()) for end in sampling.end_strings)
    tail = decode(tokens[-longest - 1 :])  # a token is at least one byte long
    return any(tail.endswith(end) for end in sampling.end_strings)
