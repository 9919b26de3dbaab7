"""What docs/decisions/families.md measured of families that are refused. A failing test reopens its decision."""

from importlib.metadata import version

import pytest
import torch

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]
OF_0_16 = pytest.mark.skipif(
    not version("megatron-core").startswith("0.16."),
    reason="measured of Megatron Core 0.16, which Python 3.11 has; a later release makes its layers of experts in another way",
)
CLOSE = 1e-4
HIDDEN, WIDTH, EXPERTS, CHOSEN = 32, 48, 8, 2


def experts_of_megatron(dispatcher: str):
    """A MoELayer of Megatron Core as in Mixtral, with experts one by one: grouped products need CUDA."""
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.transformer.moe.moe_layer import MoELayer
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        ffn_hidden_size=WIDTH,
        moe_ffn_hidden_size=WIDTH,
        num_moe_experts=EXPERTS,
        moe_router_topk=CHOSEN,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type=dispatcher,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        use_cpu_initialization=True,
    )
    spec = get_moe_module_spec(use_te=False, num_experts=EXPERTS, moe_grouped_gemm=False)
    return MoELayer(config, spec.submodules)


@pytest.fixture
def as_cuda():
    from aligner_lib.megatron import cpu

    with cpu.as_cuda():
        yield


@OF_0_16
def test_mixtral_s_experts_run_on_a_cpu_with_a_dispatcher_that_needs_equal_lengths(as_cuda, monkeypatch):
    """Without Transformer Engine, the router of Megatron Core 0.16.1 reads a name that does not exist."""
    from megatron.core.transformer.moe import moe_utils
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    sizes = {"hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_local_experts": EXPERTS}
    reference = MixtralSparseMoeBlock(MixtralConfig(**sizes, num_experts_per_tok=CHOSEN)).float()
    generator = torch.Generator().manual_seed(0)
    weights = dict(reference.named_parameters())
    for weight in weights.values():
        weight.data.normal_(0, 0.2, generator=generator)
    layer, tokens = experts_of_megatron("allgather"), torch.randn(17, 3, HIDDEN, generator=generator)
    layer.router.weight.data.copy_(weights["gate.weight"])
    for expert, fc1, fc2 in zip(
        layer.experts.local_experts, weights["experts.gate_up_proj"], weights["experts.down_proj"]
    ):
        expert.linear_fc1.weight.data.copy_(fc1)
        expert.linear_fc2.weight.data.copy_(fc2)
    with pytest.raises(NameError, match="te_general_gemm"):
        layer(tokens)
    monkeypatch.setattr(moe_utils, "te_general_gemm", None, raising=False)
    ours, _ = layer(tokens)
    theirs = reference(tokens.transpose(0, 1).contiguous())
    torch.testing.assert_close(ours, theirs.transpose(0, 1), atol=CLOSE, rtol=0)


@OF_0_16
def test_the_dispatcher_for_lengths_that_differ_needs_cuda(as_cuda, monkeypatch):
    """The engine's micro batches are as long as their longest sample, and Megatron then takes alltoall alone."""
    from megatron.core.transformer.moe import moe_utils

    monkeypatch.setattr(moe_utils, "te_general_gemm", None, raising=False)
    with pytest.raises(AttributeError, match="synchronize"):
        experts_of_megatron("alltoall")(torch.randn(17, 3, HIDDEN))
