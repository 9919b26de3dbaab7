"""Log-probabilities of given tokens, with the vocabulary split over tensor-parallel ranks.

T tokens, V this rank's part of the vocabulary; B rows, S sequence, H hidden
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from aligner_lib.megatron.parallel import tp_group

ROWS_ON_CPU, ROWS_ON_GPU = 128, 4096
"""The number of tokens whose logits are computed at a time, if no backward pass needs the logits later."""


def selected_logprobs(
    model, tokens: Tensor, hidden: Tensor, mask: Tensor, temperature: float = 1.0, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (and entropies) of the tokens that mask selects; only their logits are computed.

    tokens: int64 [B, S]; hidden: float [S, B, H]; mask: bool [B, S − 1], where index i selects token i + 1.
    Logits are divided by temperature. Returns float32 [T] in nats, in row order, and the entropies, float32
    [T] in nats or None.
    """
    mask = mask.to(hidden.device)
    chosen, targets = hidden[:-1].transpose(0, 1)[mask], tokens[:, 1:].to(hidden.device)[mask]
    if torch.is_grad_enabled():
        logits = model.logits(chosen)
        if with_entropy:
            if temperature != 1.0:
                logits = logits.float() / temperature  # in bf16 the quotients would be rounded to 3 digits
            return logprobs_and_entropy(logits, targets, tp_group())
        return token_logprobs(logits, targets, tp_group(), temperature), None
    # without a backward pass no logits have to stay, so a part of them is enough at a time
    rows = ROWS_ON_CPU if hidden.device.type == "cpu" else ROWS_ON_GPU
    parts = [
        _logprobs_and_entropy_once(model.logits(some).float(), of_some, tp_group(), temperature, with_entropy)
        for some, of_some in zip(chosen.split(rows), targets.split(rows))
    ]
    logprobs, entropies = zip(*parts)
    return torch.cat(logprobs), torch.cat(entropies) if with_entropy else None


def token_logprobs(
    logits: Tensor, targets: Tensor, group: dist.ProcessGroup | None = None, temperature: float = 1.0
) -> Tensor:
    """Natural log-probability of each target. Overwrites the logits: do not read them afterwards.

    logits: float [T, V], this rank's part; targets: int64 [T], ids in the whole vocabulary; group: the tensor-parallel ranks;
    temperature: divisor of the logits. Returns float32 [T], differentiable once. Megatron's vocab-parallel cross entropy splits
    the softmax over ranks in the same way.
    """
    return _TokenLogprobs.apply(logits, targets, _split(group), temperature)


def logprobs_and_entropy(
    logits: Tensor, targets: Tensor, group: dist.ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """As `token_logprobs`, with the entropy of each position's distribution. The logits stay unchanged.

    Returns float32 [T] each, in nats, differentiable.
    """
    entropy = _Entropy.apply(logits, _split(group))
    return token_logprobs(logits.clone(), targets, group), entropy


def gather_vocab(logits: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The logits of the whole vocabulary on every rank: float [B, V] → [B, V × ranks].

    For sampling; no gradient.
    """
    group = _split(group)
    if group is None:
        return logits
    parts = [torch.empty_like(logits) for _ in range(group.size())]
    dist.all_gather(parts, logits.contiguous(), group=group)
    return torch.cat(parts, dim=-1)


class _TokenLogprobs(torch.autograd.Function):
    """log softmax at the target, without a copy of [T, V].

    One buffer holds the logits, then the probabilities, then the gradient.
    """

    @staticmethod
    def forward(ctx, logits, targets, group, temperature):
        buffer = logits.detach()
        buffer = buffer if buffer.dtype == torch.float32 else buffer.float()
        if temperature != 1.0:
            buffer.div_(temperature)
        rows = torch.arange(len(targets), device=targets.device)
        local, is_local = _local_targets(targets, buffer.shape[1], group)
        buffer.sub_(_reduce(buffer.amax(dim=1), dist.ReduceOp.MAX, group)[:, None])
        target_logits = _reduce(buffer[rows, local] * is_local, dist.ReduceOp.SUM, group)
        total = _reduce(buffer.exp_().sum(dim=1), dist.ReduceOp.SUM, group)
        ctx.save_for_backward(total, local, is_local)
        ctx.exponentials, ctx.dtype, ctx.temperature = buffer, logits.dtype, temperature
        return target_logits - total.log()

    @staticmethod
    def backward(ctx, grad):
        total, local, is_local = ctx.saved_tensors
        assert ctx.exponentials is not None, "the buffer serves one backward only"
        buffer, ctx.exponentials = ctx.exponentials, None
        grad = grad / ctx.temperature
        buffer.mul_((-grad / total)[:, None])  # -g · softmax
        buffer[torch.arange(len(local), device=local.device), local] += grad * is_local
        return buffer.to(ctx.dtype), None, None, None


class _Entropy(torch.autograd.Function):
    """H = −Σ p log p over the whole vocabulary; dH/dlogit = −p (log p + H)."""

    @staticmethod
    def forward(ctx, logits, group):
        shifted = logits.detach().float()
        shifted = shifted - _reduce(shifted.amax(dim=1), dist.ReduceOp.MAX, group)[:, None]
        total = _reduce(shifted.exp().sum(dim=1), dist.ReduceOp.SUM, group)
        logprobs = shifted - total.log()[:, None]
        entropy = -_reduce((logprobs.exp() * logprobs).sum(dim=1), dist.ReduceOp.SUM, group)
        ctx.save_for_backward(logprobs, entropy)
        ctx.dtype = logits.dtype
        return entropy

    @staticmethod
    def backward(ctx, grad):
        logprobs, entropy = ctx.saved_tensors
        return (-grad[:, None] * logprobs.exp() * (logprobs + entropy[:, None])).to(ctx.dtype), None


def _logprobs_and_entropy_once(
    logits: Tensor, targets: Tensor, group, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    """`logprobs_and_entropy` without gradients, in two buffers of [T, V]. Without an entropy, the second tensor is empty.

    With z the logits less their largest: H = log Σ eᶻ − Σ z eᶻ / Σ eᶻ.
    """
    group = _split(group)
    if temperature != 1.0:
        logits.div_(temperature)
    local, is_local = _local_targets(targets, logits.shape[1], group)
    logits.sub_(_reduce(logits.amax(dim=1), dist.ReduceOp.MAX, group)[:, None])
    rows = torch.arange(len(targets), device=targets.device)
    target_logits = _reduce(logits[rows, local] * is_local, dist.ReduceOp.SUM, group)
    exponentials = logits.exp() if with_entropy else logits.exp_()
    total = _reduce(exponentials.sum(dim=1), dist.ReduceOp.SUM, group)
    logprobs = target_logits - total.log()
    if not with_entropy:
        return logprobs, logprobs.new_empty(0)
    weighted = _reduce(torch.einsum("tv,tv->t", exponentials, logits), dist.ReduceOp.SUM, group)
    return logprobs, total.log() - weighted / total


def _split(group):
    """None if the vocabulary is not split over ranks."""
    return None if group is None or group.size() == 1 else group


def _reduce(tensor: Tensor, op, group) -> Tensor:
    if group is not None:
        dist.all_reduce(tensor, op=op, group=group)
    return tensor


def _local_targets(targets: Tensor, part: int, group) -> tuple[Tensor, Tensor]:
    """Targets as indices into this rank's part (0 for targets elsewhere), and 1.0 for targets in the part, else 0.0."""
    first = 0 if group is None else dist.get_rank(group) * part
    local = targets - first
    is_local = (local >= 0) & (local < part)
    return torch.where(is_local, local, torch.zeros_like(local)), is_local.float()
