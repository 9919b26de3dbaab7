"""Small functions of a model with hand-written gradients, which make few passes over memory.

On a CPU, the time outside matrix products is memory traffic. Autograd's backward passes for these functions read and write at
least twice as much as necessary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def widened(x: Tensor) -> Tensor:
    """bf16 → float32, for computations that need more than eight significant bits; float32 and float64 stay unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RMSNorm(torch.nn.RMSNorm):
    """x / √(mean x² + ε) · weight over the last dimension, computed in float32 (Zhang and Sennrich 2019, arXiv:1910.07467).

    zero_centered: multiply by (1 + weight) instead.
    """

    def __init__(self, size: int, eps: float, zero_centered: bool = False):
        super().__init__(size, eps)
        self.zero_centered = zero_centered

    def forward(self, x: Tensor) -> Tensor:
        """float [..., H] → [..., H] in the weight's dtype, which may be narrower than x's."""
        weight = widened(self.weight)
        if self.zero_centered:
            weight = 1 + weight
        return _RMSNorm.apply(widened(x), weight, self.eps).to(self.weight.dtype)


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        scale = mean_square.add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        normed, scale, weight = ctx.saved_tensors
        products = grad * normed
        along = (products @ weight).div_(len(weight)).unsqueeze(-1)  # mean of ∂L/∂normed · normed
        grad_x = torch.mul(grad, weight).addcmul_(normed, along, value=-1).mul_(scale)
        learns = ctx.needs_input_grad[1]
        return grad_x, products.reshape(-1, len(weight)).sum(0) if learns else None, None


class LayerNorm(torch.nn.LayerNorm):
    """(x − mean) / √(variance + ε) · weight + bias over the last dimension, computed in float32 (Ba et al. 2016,
    arXiv:1607.06450).

    zero_centered: multiply by (1 + weight) instead (NeMo's layernorm1p).
    """

    def __init__(self, size: int, eps: float, zero_centered: bool = False):
        super().__init__(size, eps)
        self.zero_centered = zero_centered

    def forward(self, x: Tensor) -> Tensor:
        """float [..., H] → [..., H] in the weight's dtype, which may be narrower than x's."""
        weight = widened(self.weight)
        if self.zero_centered:
            weight = 1 + weight
        normed = F.layer_norm(widened(x), self.normalized_shape, weight, widened(self.bias), self.eps)
        return normed.to(self.weight.dtype)


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) · up, where x holds gate and up side by side: float [..., 2 F] → [..., F].

    Source: Shazeer 2020 (arXiv:2002.05202).
    """
    return _SwiGLU.apply(x)


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx, x):
        gate, up = x.chunk(2, dim=-1)
        activated = F.silu(gate)
        ctx.save_for_backward(x, activated)
        return activated * up

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, activated = ctx.saved_tensors
        gate, up = x.chunk(2, dim=-1)
        grad_x = torch.empty_like(x)
        grad_gate, grad_up = grad_x.chunk(2, dim=-1)
        torch.mul(grad, activated, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        return grad_x


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, float [...] → [...] (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    return F.gelu(x, approximate="tanh")


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)², float [...] → [...] (So et al. 2021, arXiv:2109.08668)."""
    return F.relu(x).square()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions; the halves of a head's first R values are the pairs: float [..., D] → [..., D].

    cos, sin: float [..., R/2], broadcast against each half; no gradient. The other values of the head stay unchanged. Source:
    Su et al. 2021 (arXiv:2104.09864).
    """
    return _Rotate.apply(x, cos, sin)


class _Rotate(Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, -sin), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = torch.empty_like(x, memory_format=torch.contiguous_format)
    rotated = 2 * cos.shape[-1]
    turned[..., rotated:] = x[..., rotated:]
    (first, second), (turned_first, turned_second) = (t[..., :rotated].chunk(2, dim=-1) for t in (x, turned))
    torch.mul(first, cos, out=turned_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=turned_second).addcmul_(first, sin)
    return turned


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of an embedding table: ids int64 [...], weight float [V, H] → float [..., H].

    If Megatron accumulates the gradient in `main_grad`, each token's gradient is added to its row there. A separate gradient of
    the weight would be as large as the vocabulary at every micro batch.
    """
    if getattr(weight, "main_grad", None) is None:
        return F.embedding(ids, weight)
    return _Embedding.apply(ids, weight)


class _Embedding(Function):
    @staticmethod
    def forward(ctx, ids, weight):
        ctx.save_for_backward(ids)
        ctx.weight = weight
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        [ids], total = ctx.saved_tensors, ctx.weight.main_grad
        total.index_add_(0, ids.flatten(), grad.flatten(0, -2).to(total.dtype))
        return None, None


PART = 2048  # rows of a weight that are widened at a time, so that they stay in the processor's cache


def _widened_product(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ in float32: x float32 [T, H], whose values are exact in bf16, weight bf16 [V, H] → [T, V].

    Widening all of W takes longer than multiplying W by the few rows of a generation step. In parts, the widened numbers are
    still in the processor's cache when they are multiplied.
    """
    product = x.new_empty(len(x), len(weight))
    wide = x.new_empty(min(PART, len(weight)), x.shape[1])
    with _bf16_factors():
        for start in range(0, len(weight), PART):
            part = weight[start : start + PART]
            torch.mm(x, wide[: len(part)].copy_(part).t(), out=product[:, start : start + len(part)])
    return product


@contextmanager
def _bf16_factors() -> Iterator[None]:
    """Inside, a processor with bf16 units may round the factors of float32 products to bf16. Sums stay in float32.

    If the factors are exact in bf16, only the order of the summation changes, and the product takes half the time.
    """
    settings = torch.backends.mkldnn.matmul
    before, settings.fp32_precision = settings.fp32_precision, "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def float32_product(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ of bf16 factors, summed and returned in float32: x [..., H], weight [V, H] → [..., V].

    In bf16, a logit near 16 would be rounded to a multiple of 1/8. If Megatron accumulates the weight's gradient in
    `main_grad`, the gradient of this product is added there.
    """
    return _Float32Product.apply(x.flatten(0, -2), weight).view(*x.shape[:-1], -1)


class _Float32Product(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        ctx.weight = weight
        if x.is_cuda:
            return torch.mm(x, weight.t(), out_dtype=torch.float32)
        return _widened_product(x.float(), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        [x], weight = ctx.saved_tensors, ctx.weight
        grad = grad.to(x.dtype)
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return grad_x, None
        grad_weight = grad.t() @ x
        if (total := getattr(weight, "main_grad", None)) is None:
            return grad_x, grad_weight
        total.add_(grad_weight)
        return grad_x, None
