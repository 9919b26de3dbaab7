"""Models on Megatron Core: a transformer body with a head for logits, or with a scalar head for one number per token.

B batch, S sequence, H hidden, V vocabulary (this rank's part), T selected tokens
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from aligner_lib.models.architecture import Architecture
from aligner_lib.megatron import cpu, parallel
from aligner_lib.megatron.attention import FusedSelfAttention
from aligner_lib.megatron.frozen_outputs import FrozenOutputs
from aligner_lib.megatron.kernels import LayerNorm, RMSNorm, float32_product, gelu_tanh, squared_relu
from aligner_lib.megatron.unpadding import Unpadding

from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

NORMALIZATIONS = {"rms": "RMSNorm", "layer": "LayerNorm"}
ACTIVATIONS = {
    **{"swiglu": nn.functional.silu, "geglu": gelu_tanh},
    **{"squared_relu": squared_relu, "gelu": nn.functional.gelu, "gelu_tanh": gelu_tanh},
}


@dataclass(frozen=True)
class Numerics:
    """Precision, recomputation and sharing: these settings change memory, speed and rounding, not the computed function."""

    bf16: bool = False  # weights and products are bf16; norms, logits and a scalar head stay float32
    recompute_granularity: str | None = None  # 'selective': recompute attention; 'full': recompute layers
    # with 'full': recompute all layers ('uniform', also None) or the first layers of each pipeline stage ('block')
    recompute_method: str | None = None
    recompute_num_layers: int | None = None  # layers in a recomputed chunk, or in the block; None: 1
    sequence_parallel: bool = False  # tensor-parallel ranks split the tokens between their matrix products
    share_prefix: bool = True  # rows of a micro batch that begin alike compute their common prefix once
    cuda_graphs: bool = False  # on a GPU, generation repeats a recorded step

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, and of activations in products with weights: bfloat16 or float32."""
        return torch.bfloat16 if self.bf16 else torch.float32

    @property
    def residual_dtype(self) -> torch.dtype:
        """The dtype of the residual stream, to which every layer adds its output, within and between pipeline stages.

        In bf16 every layer would round the whole sum, and generation and training would round the sum differently. Only
        Transformer Engine needs a bf16 stream, because its layers accept no other dtype than their weights'.
        """
        return self.dtype if has_transformer_engine() else torch.float32


class Transformer(GPTModel):
    """Megatron's GPTModel without its head: returns hidden states; `logits` and `values` apply the head.

    Computing logits only for selected tokens saves a fifth of SmolLM2's arithmetic, and most of its memory.
    """

    def __init__(self, architecture: Architecture, numerics: Numerics, config: TransformerConfig):
        self.architecture, self.shares_prefixes = architecture, numerics.share_prefix
        self.captures_steps = numerics.cuda_graphs
        self.frozen_outputs: FrozenOutputs | None = None
        super().__init__(
            config=config,
            transformer_layer_spec=_block_spec(architecture),
            vocab_size=architecture.vocab_size,
            max_sequence_length=architecture.max_position_embeddings,
            pre_process=parallel.is_first_stage(),
            post_process=parallel.is_last_stage(),
            share_embeddings_and_output_weights=architecture.head == "lm" and architecture.tied_embeddings,
            position_embedding_type="none",  # the attention applies rotary positions itself
        )
        self.windows = {layer.self_attention.window for layer in self.decoder.layers}
        if architecture.embedding_scale != 1.0 and self.pre_process:
            # rounded like the embeddings
            scale = torch.tensor(architecture.embedding_scale, dtype=numerics.dtype).item()
            self.embedding.register_forward_hook(lambda module, _, embedded: embedded * scale)
        if architecture.parallel_residual:
            for layer in self.decoder.layers:
                _make_parallel(layer)
        if architecture.post_norms:
            for layer in self.decoder.layers:
                _add_norm(layer.self_attention.linear_proj)
                _add_norm(layer.mlp.linear_fc2)
        if architecture.residual_scale != 1.0:
            for layer in self.decoder.layers:
                _scale_output(layer.self_attention.linear_proj, architecture.residual_scale)
                _scale_output(layer.mlp.linear_fc2, architecture.residual_scale)
        if config.fp32_residual_connection:
            for layer in self.decoder.layers:  # Megatron casts the sum to the dtype of the added output
                for linear in (layer.self_attention.linear_proj, layer.mlp.linear_fc2):
                    linear.register_forward_hook(lambda module, _, out: (out[0].float(), *out[1:]))
        if config.gradient_accumulation_fusion and self.share_embeddings_and_output_weights:
            tied = self.shared_embedding_or_output_weight()  # None on a stage between the first and the last
            if tied is not None:
                # our embedding adds its gradient itself, row by row, so Megatron need not return zeros for the addition
                tied.zero_out_wgrad = False
        if config.sequence_parallel and self.post_process:
            # the output layer gets the tokens of all ranks, because forward has gathered them
            self.output_layer.sequence_parallel, self.output_layer.allreduce_dgrad = False, True
        if architecture.head == "scalar" and self.post_process:
            self.output_layer = None
            self.value_head = nn.Linear(architecture.hidden_size, 1, device=cpu.DEVICE)
            nn.init.zeros_(self.value_head.weight)  # all rewards are zero, so the first loss is ln 2
            nn.init.zeros_(self.value_head.bias)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, cache=None) -> Tensor:
        """tokens int64 [B, S] → hidden states [S, B, H] after the final norm, in the model's dtype.

        lengths: int64 [B], the number of real tokens in each row: padding is then not computed, and a common prefix of rows is
        computed once. None: all tokens are real, as with a cache, whose mask excludes padding. A pipeline stage before the last
        returns its own output.
        """
        if cache is not None:
            cache.prepare(tokens.shape[1], self.windows)
        if lengths is None:
            return self._hidden(tokens, None, cache)
        shared = tokens if self.shares_prefixes else None
        ranks = parallel.tp_size() if self.config.sequence_parallel else 1
        unpadding = Unpadding(lengths, tokens.shape[1], shared, multiple=ranks)
        frozen = self.frozen_outputs
        kept = None if frozen is None else frozen.of(tokens, lengths)
        if kept is not None:
            with frozen.in_place_of_layers():
                hidden = self._hidden(tokens, unpadding, decoder_input=unpadding.remove(kept)[:, None])
        else:
            hidden = self._hidden(unpadding.remove(tokens)[None], unpadding)
            if frozen is not None:
                frozen.keep(tokens, lengths, unpadding.restore)
        return unpadding.restore(hidden[:, 0]).transpose(0, 1) if self.post_process else hidden

    def _hidden(self, tokens: Tensor, unpadding: Unpadding | None, cache=None, decoder_input=None) -> Tensor:
        """tokens int64 [B, S] → hidden states [S, B, H]. decoder_input: layer inputs that replace the embeddings."""
        hidden = super().forward(
            tokens,
            None,
            attention_mask=None,
            decoder_input=decoder_input,
            inference_context=cache,
            packed_seq_params=unpadding,
        )
        if not self.post_process:
            return hidden
        if self.config.sequence_parallel:  # from here on, every rank computes the same
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return hidden

    def _postprocess(self, hidden_states, *_, **__):
        return hidden_states

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden float [..., H] → logits float32 [..., V] of this tensor-parallel rank's part of the vocabulary."""
        weight = (
            self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        )
        if hidden.dtype == torch.bfloat16:
            weight = self.output_layer.weight if weight is None else weight
            logits = float32_product(copy_to_tensor_model_parallel_region(hidden), weight)
        else:
            logits = self.output_layer(hidden, weight=weight)[0]
        if self.architecture.logits_divisor != 1.0:
            logits = logits / self.architecture.logits_divisor
        cap = self.architecture.logits_softcap
        return logits if cap is None else (logits / cap).tanh() * cap

    def values(self, hidden: Tensor) -> Tensor:
        """hidden float [..., H] → float32 [...]: each token's reward or value, computed in float32."""
        return self.value_head(hidden.float()).squeeze(-1)

    def freeze_below(self, num_layers_unfrozen: int) -> None:
        """Train only the last layers and the modules after them. The frozen part below has no backward pass.

        Raises ValueError when a pipeline stage would train nothing.
        """
        layers, stages = self.architecture.num_layers, parallel.pp_size()
        most_frozen = layers // stages - 1  # the first stage has the embedding and the lowest layers
        frozen = max(layers - num_layers_unfrozen, 0)
        if frozen > most_frozen:
            raise ValueError(
                f"num_layers_unfrozen={num_layers_unfrozen} of {layers} layers on {stages} pipeline stages: each "
                f"stage must train a layer, so set num_layers_unfrozen to at least {layers - most_frozen}"
            )
        if self.pre_process:
            self.embedding.requires_grad_(False)
            add_gradient_for_recomputation(self)
        for layer in self.decoder.layers:
            if layer.layer_number <= frozen:  # counted from 1, over all stages
                layer.requires_grad_(False)
        # not with recomputation, which finds layers by index, nor with sequence parallelism, where a rank has a part of the
        # tokens
        recomputes = self.config.recompute_granularity == "full"
        if frozen and stages == 1 and not recomputes and not self.config.sequence_parallel:
            self.frozen_outputs = FrozenOutputs(self.decoder, frozen)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None
    ) -> dict:
        """Megatron's sharded state dict with a key for each layer, as the importer writes."""
        metadata = {
            **(metadata or {}),
            "non_homogeneous_layers": True,
        }
        if self.architecture.head == "lm" or not self.post_process:
            return super().sharded_state_dict(prefix, sharded_offsets, metadata)
        return _scalar_sharded_state_dict(self, prefix, metadata)


def build_model(architecture: Architecture, numerics: Numerics, trains: bool = False) -> Transformer:
    """A model with random weights, sharded for this rank.

    trains: the model will be wrapped in Megatron's DistributedDataParallel. Without CUDA, its linear layers then add their
    gradients directly to the wrapper's buffers, so the model alone has no backward pass. (On CUDA, an extension would be
    necessary.)

    Raises ValueError when the parallelism, or recomputation's chunks, do not divide the architecture.
    """
    _check_layout(architecture)
    _check_recomputation(architecture, numerics)
    with cpu.as_cuda():
        model = Transformer(architecture, numerics, _transformer_config(architecture, numerics, trains))
    model.to(device=cpu.DEVICE, dtype=numerics.dtype)
    if hasattr(model, "value_head"):
        model.value_head.float()  # float32 even under bf16: rewards close to each other must not become equal
    return model


def add_gradient_for_recomputation(model: Transformer) -> None:
    """Let the output of frozen embeddings require a gradient, if whole layers are recomputed.

    Recomputation would otherwise give no gradient to a layer whose input requires no gradient.
    """
    if model.config.recompute_granularity == "full" and model.pre_process:
        model.embedding.register_forward_hook(
            lambda *call: call[-1].requires_grad_() if torch.is_grad_enabled() else None
        )


def has_transformer_engine() -> bool:
    """Whether Transformer Engine is installed, with CUDA to run on."""
    from megatron.core.extensions import transformer_engine

    return cpu.HAS_CUDA and transformer_engine.HAVE_TE


class _Norm:
    """Builds the architecture's norm with the signature of Megatron's specs: a config, a size and an epsilon.

    The norm is Transformer Engine's if installed. Otherwise the norm comes from `kernels`, because torch's norms can be neither
    zero-centered nor shared by sequence-parallel ranks.
    """

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_):
        if has_transformer_engine():
            from megatron.core.extensions.transformer_engine import TENorm

            return TENorm(config=config, hidden_size=hidden_size, eps=eps)
        kind = RMSNorm if config.normalization == "RMSNorm" else LayerNorm
        norm = kind(hidden_size, eps, config.layernorm_zero_centered_gamma)
        for parameter in norm.parameters():
            # each rank has only its own tokens' gradient
            parameter.sequence_parallel = config.sequence_parallel
        return norm


class _Cast(nn.Module):
    """Replaces a norm before attention or MLP: casts the residual stream to the dtype of the weights, as a norm does."""

    def __init__(self, config: TransformerConfig, *_, **__):
        super().__init__()
        self.dtype = config.params_dtype

    def forward(self, x: Tensor) -> Tensor:
        """float [..., H] → [..., H]."""
        return x.to(self.dtype)


def _add_norm(linear: nn.Module) -> None:
    """Add a norm to the output of a row-parallel layer."""
    config = linear.config
    linear.post_layernorm = _Norm(config, config.hidden_size, config.layernorm_epsilon)
    linear.register_forward_hook(lambda module, _, out: (module.post_layernorm(out[0]), *out[1:]))


def _make_parallel(layer: nn.Module) -> None:
    """Let the norm before the MLP read the input of the layer, in place of the attention's result."""
    inputs = []
    layer.register_forward_pre_hook(
        lambda _, args, named: inputs.append(args[0] if args else named["hidden_states"]), with_kwargs=True
    )
    layer.pre_mlp_layernorm.register_forward_pre_hook(lambda *_: inputs.pop())


def _scale_output(linear: nn.Module, scale: float) -> None:
    """Multiply the output of a row-parallel layer by a number."""
    linear.register_forward_hook(lambda module, _, out: (out[0] * scale, *out[1:]))


def _block_spec(architecture: Architecture) -> TransformerBlockSubmodules:
    """Megatron's specification of this pipeline stage's layers."""
    # Transformer Engine's layers contain the norm before their product
    if has_transformer_engine() and architecture.pre_norms:
        spec = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=architecture.qk_norm)
    else:
        spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=architecture.qk_norm)
        spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = (
            _Norm if architecture.pre_norms else _Cast
        )
    attention = spec.submodules.self_attention
    attention.module, attention.params = (
        FusedSelfAttention,
        {**attention.params, "architecture": architecture},
    )
    if architecture.qk_norm:
        attention.submodules.q_layernorm = attention.submodules.k_layernorm = _Norm
    layers = architecture.num_layers // parallel.pp_size()
    return TransformerBlockSubmodules(layer_specs=[spec] * layers, layer_norm=_Norm)


def _transformer_config(architecture: Architecture, numerics: Numerics, trains: bool) -> TransformerConfig:
    return TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        num_attention_heads=architecture.num_attention_heads,
        num_query_groups=architecture.num_query_groups,
        kv_channels=architecture.kv_channels,
        ffn_hidden_size=architecture.ffn_hidden_size,
        normalization=NORMALIZATIONS[architecture.normalization],
        layernorm_zero_centered_gamma=architecture.zero_centered_norm,
        layernorm_epsilon=architecture.norm_epsilon,
        qk_layernorm=architecture.qk_norm,
        gated_linear_unit=architecture.gated,
        activation_func=ACTIVATIONS[architecture.activation],
        add_bias_linear=architecture.proj_and_mlp_bias,
        add_qkv_bias=architecture.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=parallel.tp_size(),
        pipeline_model_parallel_size=parallel.pp_size(),
        sequence_parallel=numerics.sequence_parallel and parallel.tp_size() > 1,
        pipeline_dtype=numerics.residual_dtype,
        variable_seq_lengths=True,  # a micro batch is as long as its longest sample
        # there are no experts, but Megatron rejects the default with variable lengths
        moe_token_dispatcher_type="alltoall",
        bf16=numerics.bf16,
        fp32_residual_connection=numerics.bf16 and numerics.residual_dtype == torch.float32,
        params_dtype=numerics.dtype,
        use_cpu_initialization=not cpu.HAS_CUDA,
        masked_softmax_fusion=False,
        bias_activation_fusion=architecture.activation == "swiglu",
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=trains and not cpu.HAS_CUDA,
        calculate_per_token_loss=True,
        **_recomputation(numerics),
    )


def _recomputation(numerics: Numerics) -> dict[str, str | int | None]:
    """Megatron accepts a method and a number of layers only with full recomputation, not with selective recomputation."""
    full = numerics.recompute_granularity == "full"
    return {
        "recompute_granularity": numerics.recompute_granularity,
        "recompute_method": (numerics.recompute_method or "uniform") if full else None,
        "recompute_num_layers": (numerics.recompute_num_layers or 1) if full else None,
    }


def _check_layout(architecture: Architecture) -> None:
    tp, pp = parallel.tp_size(), parallel.pp_size()
    for name in ("num_attention_heads", "num_query_groups", "ffn_hidden_size", "vocab_size"):
        if getattr(architecture, name) % tp:
            raise ValueError(
                f"tensor_model_parallel_size={tp} does not divide the model's {name}={getattr(architecture, name)}"
            )
    if architecture.num_layers % pp:
        raise ValueError(
            f"pipeline_model_parallel_size={pp} does not divide num_layers={architecture.num_layers}"
        )


def _check_recomputation(architecture: Architecture, numerics: Numerics) -> None:
    layers, chunk = architecture.num_layers // parallel.pp_size(), numerics.recompute_num_layers or 1
    if numerics.recompute_granularity != "full":
        return
    if chunk > layers or (numerics.recompute_method != "block" and layers % chunk):
        raise ValueError(
            f"activations_checkpoint_num_layers={chunk} does not divide the {layers} layers of a pipeline stage: set "
            "activations_checkpoint_num_layers to 1"
        )


def _scalar_sharded_state_dict(model: Transformer, prefix: str, metadata: dict) -> dict:
    """The sharded state dict of a scalar model: GPTModel's own requires an output layer."""
    from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

    state = {}
    for name, module in model.named_children():
        if name in ("embedding", "decoder"):
            state |= module.sharded_state_dict(f"{prefix}{name}.", metadata=metadata)
    head = model.value_head.state_dict(prefix=f"{prefix}value_head.", keep_vars=True)
    return state | make_sharded_tensors_for_checkpoint(head, "", {})
