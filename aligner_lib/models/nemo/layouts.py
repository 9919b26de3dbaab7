"""The names of a GPT's weights in old and new NeMo archives, and in Megatron Core, whose names the model folders use.

Old names come from NeMo's own GPT (`mcore_gpt: False`), with Apex's or Transformer Engine's layers. New names are Megatron
Core's. In new names, a norm has its own name or the name of the next matrix. Each layer has a number, or the weights of all
layers are a single tensor with an additional dimension (`decoder.layers.mlp.linear_fc1.weight`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.names import Weight, weights
from aligner_lib.models.nemo.stored import Piece, StoredTensor, layer_of
from aligner_lib.models.stream import CARRIERS

# with the first prefix, NeMo kept the parameters in half precision (megatron_amp_O2)
PREFIXES = ("model.module.", "model.")
NO_WEIGHTS = re.compile(r".*(_extra_state(/.*)?|rotary_pos_emb\.inv_freq|rotary_emb\.inv_freq)")
OUTSIDE = {
    "language_model.embedding.word_embeddings.weight": "embedding.word_embeddings.weight",
    "language_model.output_layer.weight": "output_layer.weight",
    "word_embeddings.weight": "output_layer.weight",  # the last pipeline stage's copy of a tied embedding
    "rm_head.weight": "value_head.weight",
    "rm_head.bias": "value_head.bias",
}
STACK = re.compile(r"(?:language_model\.encoder|decoder)\.(?P<inside>.*)")
LAYER = re.compile(r"layers\.(?:(?P<number>\d+)\.)?(?P<module>.*?)(?P<part>weight|bias)(?P<half>_w|_v)?")
MODULES = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "self_attention.query_key_value.": "self_attention.linear_qkv.",
    "self_attention.dense.": "self_attention.linear_proj.",
    "post_attention_layernorm.": "mlp.linear_fc1.layer_norm_",
    "mlp.dense_h_to_4h.": "mlp.linear_fc1.",
    "mlp.dense_4h_to_h.": "mlp.linear_fc2.",
    # Transformer Engine's layer
    "self_attention.layernorm_qkv.layer_norm_": "self_attention.linear_qkv.layer_norm_",
    "self_attention.layernorm_qkv.": "self_attention.linear_qkv.",
    "self_attention.proj.": "self_attention.linear_proj.",
    "layernorm_mlp.layer_norm_": "mlp.linear_fc1.layer_norm_",
    "layernorm_mlp.fc1_": "mlp.linear_fc1.",
    "layernorm_mlp.fc2_": "mlp.linear_fc2.",
    # Megatron Core's local layer
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}
# the up projection, if NeMo stores gate and up separately (`activation: swiglu`)
SECOND_HALF = "mlp.dense_h_to_4h_2."
HALVES = ("_w", "_v")  # gate and up, if Megatron's checkpoint stores them separately


def megatron_name(name: str) -> str | None:
    """Megatron's name of an archive's tensor; None for a tensor computed from the settings. Unknown names stay unchanged.

    The names of separately stored gate and up matrices end with `_w` and `_v`.
    """
    if NO_WEIGHTS.fullmatch(name):
        return None
    for prefix in PREFIXES:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    if name in OUTSIDE:
        return OUTSIDE[name]
    if (stack := STACK.fullmatch(name)) is None:
        return name
    if (match := LAYER.fullmatch(stack["inside"])) is None:
        return f"decoder.{stack['inside']}"
    module, half = match["module"], match["half"] or ""
    if module == SECOND_HALF:
        module, half = "mlp.linear_fc1.", "_v"
    number = "" if match["number"] is None else f"{int(match['number'])}."
    return f"decoder.layers.{number}{MODULES.get(module, module)}{match['part']}{half}"


def layer_number(name: str) -> int:
    """The layer's number in a Megatron name; -1 for a weight outside of the layers."""
    match = re.match(r"decoder\.layers\.(\d+)\.", name)
    return int(match[1]) if match else -1


def with_layer(name: str, number: int) -> str:
    """A Megatron name with another layer's number."""
    return re.sub(r"(?<=^decoder\.layers\.)\d+", str(number), name)


def by_megatron_name(tensors: dict[str, StoredTensor], num_layers: int) -> dict[str, StoredTensor]:
    """An archive's tensors under the names of a model folder, with stacks of layers separated and halves joined.

    Raises ValueError for two tensors with the same name.
    """
    named: dict[str, StoredTensor] = {}
    for stored, tensor in tensors.items():
        if (of_all := megatron_name(stored)) is None:
            continue
        for name, of_layer in _layers(of_all, tensor, num_layers):
            if name in named:
                raise ValueError(f"{of_layer.name} and {named[name].name} are the same weight, {name}")
            named[name] = of_layer
    for name in [name for name in named if name.endswith(HALVES[1])]:
        whole, up = name.removesuffix(HALVES[1]), named.pop(name)
        gate = named.pop(whole + HALVES[0], None) or named.pop(whole, None)
        if gate is None or gate.dtype != up.dtype or gate.shape != up.shape:
            raise ValueError(f"{up.name} has no other half, or the other half has another dtype or shape")
        named[whole] = _stacked(gate, up)
    return named


def check_fits(named: dict[str, StoredTensor], arch: Architecture) -> list[tuple[Weight, StoredTensor]]:
    """The weights of a model, each with its tensor.

    Raises ValueError for a missing weight, for a tensor that does not belong to the model, for a tensor with another shape, and
    for a tensor without floating-point numbers.
    """
    for tensor in named.values():
        if tensor.dtype not in CARRIERS:
            raise ValueError(f"{tensor.name} is {tensor.dtype}; weights must be {', '.join(CARRIERS)}")
    named, plan = dict(named), list(weights(arch))
    # a reward model never uses its output layer
    extra_output = (
        None if arch.head == "lm" and not arch.tied_embeddings else named.pop("output_layer.weight", None)
    )
    if extra_output is not None and arch.head == "lm":
        _check_tied(extra_output, named.get("embedding.word_embeddings.weight"))
    expected = {weight.megatron for weight in plan}
    if missing := sorted(expected - named.keys()):
        raise ValueError(f"{len(missing)} weights are missing, the first: {', '.join(missing[:3])}")
    if leftover := sorted(named.keys() - expected):
        shown = ascii(", ".join(leftover[:3]))[1:-1][:200]
        raise ValueError(f"{len(leftover)} weights do not belong to the model, the first: {shown}")
    for weight in plan:
        tensor = named[weight.megatron]
        if tensor.shape != weight.shape:
            raise ValueError(
                f"{tensor.name} has shape {list(tensor.shape)}; model_config.yaml says {list(weight.shape)}"
            )
    return [(weight, named[weight.megatron]) for weight in plan]


def stacked_weights(arch: Architecture) -> Iterable[tuple[str, list[Weight]]]:
    """For each Megatron name without a layer number, the weights of all layers with this name, in order."""
    groups: dict[str, list[Weight]] = {}
    for weight in weights(arch):
        groups.setdefault(re.sub(r"^(decoder\.layers\.)\d+\.", r"\1", weight.megatron), []).append(weight)
    return groups.items()


def _layers(name: str, tensor: StoredTensor, num_layers: int) -> list[tuple[str, StoredTensor]]:
    """A stack of layers, separated into one tensor for each layer; any other tensor unchanged."""
    stacked = name.startswith("decoder.layers.") and layer_number(name) < 0
    if not stacked:
        return [(name, tensor)]
    if not tensor.shape or tensor.shape[0] != num_layers:
        raise ValueError(
            f"{tensor.name} has shape {list(tensor.shape)}; model_config.yaml says num_layers={num_layers}"
        )
    inside = name.removeprefix("decoder.layers.")
    return [(f"decoder.layers.{layer}.{inside}", layer_of(tensor, layer)) for layer in range(num_layers)]


def _stacked(first: StoredTensor, second: StoredTensor) -> StoredTensor:
    """Two tensors of the same shape, joined: the rows of the second tensor follow the rows of the first."""
    rows = first.shape[0]
    start = (0,) * len(first.shape)
    pieces = (Piece(start, first.shape, first.read), Piece((rows, *start[1:]), second.shape, second.read))
    return StoredTensor(first.name, first.dtype, (2 * rows, *first.shape[1:]), pieces)


def _check_tied(output: StoredTensor, embedding: StoredTensor | None) -> None:
    """Raises ValueError when the last pipeline stage's copy of a tied embedding differs from the embedding."""
    if (
        embedding is None
        or output.shape != embedding.shape
        or not np.array_equal(output.read(), embedding.read())
    ):
        raise ValueError(
            f"model_config.yaml ties {output.name} to the embedding (share_embeddings_and_output_weights), but the two differ"
        )
