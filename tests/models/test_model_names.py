"""Weight names and fusions, checked on matrices whose rows say where they come from."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny_llama import ARCH, random_weights

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.names import hf_shapes, to_hf, to_megatron, weights


def column(*rows: int) -> np.ndarray:
    return np.array(rows)[:, None]


def fused_rows(fusion: str, arch: Architecture, *parts: np.ndarray) -> list[int]:
    weight = next(weight for weight in weights(arch) if weight.fusion == fusion)
    return to_megatron(weight, parts, arch)[:, 0].tolist()


def test_query_key_value_rows_are_interleaved_by_group_and_the_gate_comes_before_up():
    # 4 heads of size 2 in 2 groups: each group holds its two query heads, its key and its value
    arch = Architecture(1, 1, 4, 2, 3, 5, 8, kv_channels=2)
    parts = column(0, 1, 2, 3, 4, 5, 6, 7), column(100, 101, 102, 103), column(200, 201, 202, 203)
    first, second = [0, 1, 2, 3, 100, 101, 200, 201], [4, 5, 6, 7, 102, 103, 202, 203]
    assert fused_rows("qkv", arch, *parts) == first + second
    assert fused_rows("gate_up", arch, column(1, 2, 3), column(7, 8, 9)) == [1, 2, 3, 7, 8, 9]
    # Phi-3 has the same parts in one matrix; its matrix of gate and up has Megatron's order already
    phi3 = dataclasses.replace(arch, family="phi3")
    assert fused_rows("stacked_qkv", phi3, np.concatenate(parts)) == first + second
    names = {weight.megatron.split(".", 3)[-1]: (weight.hf, weight.fusion) for weight in weights(phi3)}
    assert names["self_attention.linear_qkv.weight"][0] == ("model.layers.0.self_attn.qkv_proj.weight",)
    assert names["mlp.linear_fc1.weight"] == (("model.layers.0.mlp.gate_up_proj.weight",), "none")


SWITCHES = [
    {},
    {"family": "qwen3", "qk_norm": True, "tied_embeddings": True},
    {"family": "qwen2", "qkv_bias": True},
    {"family": "phi3"},
    {
        **{"family": "gpt_neox", "normalization": "layer", "activation": "gelu"},
        **{"qkv_bias": True, "proj_and_mlp_bias": True},
    },
    {"family": "gemma3", "post_norms": True, "qk_norm": True},
    {"family": "olmo2", "pre_norms": False, "post_norms": True, "qk_norm_over_heads": True, "qk_norm": True},
    {"family": "nemo_gpt", "normalization": "layer", "activation": "squared_relu"},
]


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: switches.get("family", "llama"))
def test_to_hf_undoes_to_megatron_for_arrays_and_tensors(switches):
    # 6 heads of size 2 in 3 groups
    arch = Architecture(1, 6, 6, 3, 10, 12, 8, 2, **switches)
    tensors = random_weights(arch)
    for weight in weights(arch):
        parts = [tensors[name] for name in weight.hf]
        fused = to_megatron(weight, parts, arch)
        of_torch = to_megatron(weight, [torch.from_numpy(part) for part in parts], arch)
        assert fused.shape == weight.shape
        np.testing.assert_array_equal(of_torch.numpy(), fused)
        shapes = hf_shapes(weight, arch)
        backs = to_hf(weight, fused, arch), to_hf(weight, of_torch, arch)
        for shape, array, tensor, part in zip(shapes, *backs, parts, strict=True):
            assert array.shape == shape
            np.testing.assert_array_equal(array, part)
            assert torch.equal(tensor, torch.from_numpy(part))


def test_a_scalar_head_is_a_classifiers_score_and_its_bias_has_no_counterpart():
    scalar = list(weights(dataclasses.replace(ARCH, head="scalar")))[-2:]
    names = {weight.megatron: weight.hf for weight in scalar}
    assert names == {"value_head.weight": ("score.weight",), "value_head.bias": ()}
    assert [hf_shapes(weight, ARCH) for weight in scalar] == [[(1, ARCH.hidden_size)], []]
    assert to_hf(scalar[1], np.zeros(1), ARCH) == ()
