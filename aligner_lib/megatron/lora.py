"""Low-rank adapters on Megatron's linear layers: y = x Wᵀ + scale · (x Aᵀ) Bᵀ, with trained A and B and frozen W.

    T tokens, I inputs, O outputs, R rank; for weights, the part of this tensor-parallel rank

Under tensor parallelism, an adapter is split like its layer. If the layer's outputs are split (column-parallel: queries, keys
and values, the MLP's first product), every rank has all of A and its rows of B. If the inputs are split (row-parallel), every
rank has its columns of A and all of B. The ranks exchange only x Aᵀ, which has R numbers for each token.

Source: Hu et al. 2021 (arXiv:2106.09685); scale α/√R in place of α/R: Kalajdzievski 2023 (arXiv:2312.03732).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aligner_lib.megatron import cpu, parallel
from aligner_lib.megatron.masters import assign
from aligner_lib.megatron.model import add_gradient_for_recomputation
from aligner_lib.megatron.seeded import seed_default_generators, seeded_generator
from aligner_lib.models.adapters import A, Adapter, B

cpu.prepare()

from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

COLUMN_PARALLEL = ("linear_qkv", "linear_fc1")
ROW_PARALLEL = ("linear_proj", "linear_fc2")


@dataclass(frozen=True)
class LoRA:
    """The adapters that are trained in place of a model's weights."""

    layers: Mapping[str, Adapter]  # by the name of a linear layer in COLUMN_PARALLEL or ROW_PARALLEL
    dropout: float = 0.0  # of the adapters' inputs, in training
    seed: int = 0  # of A's initial values and of the dropout
    start: Path | None = None
    """A folder with the adapters' initial values. None: A is random and B is zero, so the adapters change nothing yet."""


def add_adapters(model, lora: LoRA) -> None:
    """Freeze a Transformer's weights, except a scalar head, and add adapters to its linear layers. They change nothing yet."""
    model.requires_grad_(False)
    if hasattr(model, "value_head"):
        model.value_head.requires_grad_(True)
    for name, linear in _linear_layers(model):
        if name in lora.layers:
            linear.__class__ = _with_adapter(type(linear))
            linear.add_adapter(name, lora.layers[name], lora.dropout)
    reset_adapters(model, lora)
    add_gradient_for_recomputation(model)


def reset_adapters(model, lora: LoRA) -> None:
    """Set the adapters to their initial values: A from N(0, 2 / (I + R)) (Glorot), the same in every layout, and B zero."""
    names = COLUMN_PARALLEL + ROW_PARALLEL
    for layer in model.decoder.layers:
        for name, linear in _linear_layers_of(layer):
            if name in lora.layers:
                # layers are counted over all stages
                linear.reset_adapter(seeded_generator(lora.seed, layer.layer_number, names.index(name)))


def seed_dropout(lora: LoRA, step: int, micro_batch: int) -> None:
    """Seed a micro batch's dropout with the LoRA seed, the optimizer step and the micro batch's number on this replica.

    Tensor-parallel ranks draw the same numbers, because in a layer with unsplit inputs each rank has all inputs.
    """
    seed_default_generators(lora.seed, step, micro_batch, parallel.dp_rank())


def _linear_layers(model) -> Iterator[tuple[str, nn.Module]]:
    for layer in model.decoder.layers:
        yield from _linear_layers_of(layer)


def _linear_layers_of(layer) -> Iterator[tuple[str, nn.Module]]:
    for block in (layer.self_attention, layer.mlp):
        yield from (
            (name, child) for name, child in block.named_children() if name in COLUMN_PARALLEL + ROW_PARALLEL
        )


@cache
def _with_adapter(linear: type) -> type:
    """A linear layer class of Megatron or Transformer Engine, extended by an adapter. The layer's weights keep their names."""
    return type(f"{linear.__name__}WithAdapter", (_AdapterMixin, linear), {})


class _AdapterMixin:
    """lora_a: [R, I], lora_b: [O, R], in the dtype of the layer's weight."""

    def add_adapter(self, name: str, adapter: Adapter, dropout: float) -> None:
        outputs, inputs = self.weight.shape
        self.adapter_scale, self.adapter_dropout = adapter.scale, dropout
        self.is_column_parallel = name in COLUMN_PARALLEL
        self.is_gated = name == "linear_fc1" and self.config.gated_linear_unit
        self.register_parameter(A, nn.Parameter(self.weight.new_empty(adapter.rank, inputs)))
        self.register_parameter(B, nn.Parameter(self.weight.new_empty(outputs, adapter.rank)))
        split, axis, whole = (B, 0, A) if self.is_column_parallel else (A, 1, B)
        set_tensor_model_parallel_attributes(getattr(self, split), True, axis, 1)
        # with sequence parallelism, each rank has the unsplit matrix's gradient only for its own tokens
        getattr(self, whole).sequence_parallel = self.config.sequence_parallel

    def reset_adapter(self, generator: torch.Generator) -> None:
        ranks = 1 if self.is_column_parallel else parallel.tp_size()
        rank, inputs = self.lora_a.shape
        whole = nn.init.xavier_normal_(torch.empty(rank, inputs * ranks), generator=generator)
        own_part = whole if ranks == 1 else whole.chunk(ranks, dim=1)[parallel.tp_rank()]
        assign(self.lora_a, own_part)
        assign(self.lora_b, torch.zeros(self.lora_b.shape))

    def forward(self, x: Tensor, *args, **kwargs):
        """As the layer's `forward`: x [..., I] → ([..., O], bias)."""
        output, bias = super().forward(x, *args, **kwargs)
        x = F.dropout(self._normed(x), self.adapter_dropout, self.training)
        low = self._between_ranks(F.linear(x, self.lora_a))  # [..., R]
        adapted = torch.addmm(
            output.flatten(0, -2), low.flatten(0, -2), self.lora_b.t(), alpha=self.adapter_scale
        )
        return adapted.view(output.shape), bias

    def _between_ranks(self, low: Tensor) -> Tensor:
        """x Aᵀ as B needs it: for all tokens if B's rows are split over ranks, summed over ranks if A's columns are split."""
        if self.is_column_parallel:
            if self.config.sequence_parallel:
                return gather_from_sequence_parallel_region(low)
            return copy_to_tensor_model_parallel_region(low)  # the gradient is summed
        if self.config.sequence_parallel:
            return reduce_scatter_to_sequence_parallel_region(low)
        return reduce_from_tensor_model_parallel_region(low)

    def _normed(self, x: Tensor) -> Tensor:
        """The input of the product with the weight. Some layers of Transformer Engine contain the norm before the product."""
        weight = getattr(self, "layer_norm_weight", None)
        if weight is None:
            return x
        weight = weight + 1 if self.zero_centered_gamma else weight
        if self.config.normalization == "RMSNorm":
            return F.rms_norm(x, weight.shape, weight, self.eps)
        return F.layer_norm(x, weight.shape, weight, self.layer_norm_bias, self.eps)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None
    ) -> dict:
        state = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        axis = {B: 0} if self.is_column_parallel else {A: 1}
        own = make_sharded_tensors_for_checkpoint(
            {A: self.lora_a, B: self.lora_b}, prefix, axis, sharded_offsets
        )
        if self.is_gated:  # the rank's rows come from two places: gate and up
            own[f"{prefix}{B}"] = apply_swiglu_sharded_factory(own[f"{prefix}{B}"], sharded_offsets)
        return state | own
