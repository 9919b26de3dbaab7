"""Adapters: they change nothing at first, they alone learn, and merged into the weights they say the same."""

import math
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from layouts import LAYERS, LORA, MORE_STEPS, STEPS, mapped, train
from tiny import ARCHITECTURE, Samples, loss_of, new_engine, randomize

from aligner_lib.megatron.engine import Engine, FrozenWeights
from aligner_lib.megatron.lora import LoRA, reset_adapters, seed_dropout
from aligner_lib.megatron.model import Numerics
from aligner_lib.models.adapters import Adapter, AdapterRecord
from aligner_lib.models.merge import merge
from aligner_lib.models.tensor_store import StoreReader

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]
CLOSE = 1e-5

each_model = pytest.mark.parametrize("name", ["tied", "scalar"])


def assert_close(got: list, expected: list) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=CLOSE, rel=CLOSE)


@each_model
def test_new_adapters_change_nothing(figures, name):
    """To the bit, so that policy and reference are equal at first."""
    assert figures["one"][f"{name}_lora"]["mapped"] == figures["one"][name]["mapped"]


# the middle three were equal when a seed lost its high bits
SEEDS = (0, 1234, 1490, 3026, 1234 + 2**32, 1234 + 2**63)


def test_a_is_drawn_by_layer_and_seed_and_b_is_zero(starts):
    engine, drawn, scaled = new_engine("untied", starts / "untied", lora=LORA), [], defaultdict(list)
    for seed in SEEDS:
        reset_adapters(engine.module, replace(LORA, seed=seed))
        for name, parameter in engine.module.named_parameters():
            if name.endswith("lora_b"):
                assert not parameter.any()
            elif name.endswith("lora_a"):
                scaled[name.split(".")[-2]].append(parameter / math.sqrt(2 / sum(parameter.shape)))
                drawn.append(tuple(parameter[0, :4].tolist()))
    for layer, parameters in scaled.items():
        assert torch.cat(parameters).std().item() == pytest.approx(1, rel=0.06), layer
    assert len(set(drawn)) == len(drawn) == len(SEEDS) * 4 * ARCHITECTURE.num_layers


@each_model
def test_adapters_and_a_scalar_head_are_all_that_learns(starts, name):
    engine = new_engine(name, starts / name, lora=LORA)
    before = {key: parameter.clone() for key, parameter in engine.module.named_parameters()}
    train(engine, name, range(2))
    after = dict(engine.module.named_parameters())
    trainable = {key for key in before if "lora_" in key or key.startswith("value_head.")}
    assert {key for key, parameter in after.items() if not torch.equal(parameter, before[key])} == trainable
    # the frozen ones have neither gradient nor moments
    held = [p for group in engine.optimizer.optimizer.param_groups for p in group["params"]]
    assert sum(p.numel() for p in held) == sum(before[key].numel() for key in trainable)
    for key, parameter in after.items():
        assert (getattr(parameter, "main_grad", None) is not None) == (key in trainable)
        assert parameter.grad is None


@each_model
def test_merged_weights_say_the_same_and_are_w_plus_scale_b_a(figures, measured, starts, name, tmp_path):
    """A model without adapters that is loaded from the checkpoint, and one from the folder that `merge` writes."""
    checkpoint, expected = measured / "one" / f"{name}_lora", figures["one"][f"{name}_lora"]["learnt"]
    assert max(abs(a - b) for a, b in zip(expected[0], figures["one"][name]["mapped"][0])) > 0.01
    assert_close(mapped(new_engine(name, checkpoint), name), expected)
    merged = merge(checkpoint, tmp_path / "merged")
    assert AdapterRecord.load(merged) is None
    assert_close(mapped(new_engine(name, merged), name), expected)
    own, base, after = (StoreReader(folder / "weights") for folder in (checkpoint, starts / name, merged))
    assert after.names() == base.names()
    for layer, adapter in LAYERS.items():
        block = "self_attention" if layer in ("linear_qkv", "linear_proj") else "mlp"
        path = f"decoder.layers.2.{block}.{layer}"
        a, b = (own.read_whole(f"{path}.lora_{half}") for half in "ab")
        assert a.shape[0] == b.shape[1] == adapter.rank
        change = adapter.scale * (b @ a)
        assert change.abs().max() > 1e-4
        expected = base.read_whole(f"{path}.weight") + change
        torch.testing.assert_close(after.read_whole(f"{path}.weight"), expected, atol=1e-6, rtol=0)
    for weight in ("embedding.word_embeddings.weight", "decoder.layers.1.mlp.linear_fc1.layer_norm_weight"):
        assert torch.equal(after.read_whole(weight), base.read_whole(weight))


FAMILIES = {
    "biases": replace(ARCHITECTURE, qkv_bias=True, qk_norm=True),
    "norms behind": replace(
        ARCHITECTURE, pre_norms=False, post_norms=True, qk_norm=True, qk_norm_over_heads=True
    ),
    "side by side": replace(
        ARCHITECTURE,
        **{"normalization": "layer", "activation": "gelu", "parallel_residual": True},
        **{"qkv_bias": True, "proj_and_mlp_bias": True},
    ),
    "no gate": replace(ARCHITECTURE, normalization="layer", activation="squared_relu"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_layers_are_adapted_alike(family, tmp_path):
    arch, generator = FAMILIES[family], torch.Generator().manual_seed(5)
    base, adapted, merged = (Engine(arch, Numerics(), lora=lora) for lora in (None, LORA, None))
    randomize(base.module, 4)
    base.save(tmp_path / "base")
    adapted.load(tmp_path / "base")
    for name, parameter in adapted.module.named_parameters():
        if name.endswith("lora_b"):
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    adapted.save(tmp_path / "checkpoint")
    merged.load(tmp_path / "checkpoint")
    before, expected = mapped(base, "untied"), mapped(adapted, "untied")
    assert max(abs(a - b) for a, b in zip(before[0], expected[0])) > 0.01
    for ours, theirs in zip(mapped(merged, "untied"), expected, strict=True):
        assert ours == pytest.approx(theirs, abs=CLOSE, rel=5 * CLOSE)  # large logits round more


def test_recomputed_layers_learn_and_drop_the_same(starts):
    lora, kinds = replace(LORA, dropout=0.3), (None, "selective", "full")
    engines = (
        new_engine("untied", starts / "untied", lora=lora, recompute_granularity=kind) for kind in kinds
    )
    plain, *recomputed = (train(engine, "untied", range(STEPS)) for engine in engines)
    for steps in recomputed:
        assert_close(steps, plain)


def test_a_shared_prefix_is_adapted_once_and_learnt_from_in_every_row(starts):
    samples, start = Samples.draw(4, seed=1), starts / "untied"
    samples.tokens[:, :3] = samples.tokens[0, :3]
    engines = [new_engine("untied", start, lora=LORA, share_prefix=shared) for shared in (True, False)]
    ours, theirs = (
        [engine.train_step([samples], loss_of("untied"), lr=1e-2) for _ in range(2)] for engine in engines
    )
    assert_close(ours, theirs)


def test_checkpoints_of_other_adapters_and_of_none_are_refused(starts, measured):
    adapters, other = measured / "one" / "tied_lora", LoRA(LAYERS | {"linear_qkv": Adapter(8, 2.0)})
    for lora, checkpoint, message in (
        (None, adapters, "but the settings say a model without adapters"),
        (other, adapters, r"linear_qkv \(rank 4, scale 2\).*linear_qkv \(rank 8, scale 2\)"),
        (LORA, measured / "one" / "tied", "holds a model without adapters"),
    ):
        with pytest.raises(ValueError, match=message):
            new_engine("tied", starts / "tied", lora=lora).load(checkpoint, with_optimizer=True)


def test_dropout_is_a_function_of_seed_and_step(starts, tmp_path, figures):
    lora, more = replace(LORA, dropout=0.3), range(STEPS, STEPS + MORE_STEPS)
    engine = new_engine("tied", starts / "tied", lora=lora)
    steps = train(engine, "tied", range(STEPS))
    first, second = figures["one"]["tied_lora"]["steps"][:2]
    assert steps[0]["loss"] == first["loss"]  # B is zero: there is nothing to be dropped yet
    assert steps[0]["grad_norm"] != pytest.approx(first["grad_norm"], rel=1e-2)
    assert steps[1]["loss"] != pytest.approx(second["loss"], abs=1e-6)
    engine.save(tmp_path / "checkpoint")
    torch.manual_seed(99)  # whatever else has drawn random numbers
    resumed = new_engine("tied", starts / "tied", lora=lora)
    resumed.load(tmp_path / "checkpoint", with_optimizer=True)
    assert train(resumed, "tied", more) == train(engine, "tied", more)
    assert mapped(engine, "tied") == mapped(engine, "tied")  # none outside of training


def test_another_seed_step_or_micro_batch_drops_others():
    def drawn(seed: int, step: int = 0, micro_batch: int = 0) -> tuple[float, ...]:
        seed_dropout(replace(LORA, seed=seed), step, micro_batch)
        return tuple(torch.rand(4).tolist())

    places = [(seed, step, micro_batch) for seed in SEEDS for step in (0, 7) for micro_batch in (0, 1)]
    assert len({drawn(*place) for place in places}) == len(places)
    assert drawn(*places[3]) == drawn(*places[3])


def numel_of_adapters(engine) -> int:
    return sum(weight.numel() for name, weight in engine.module.named_parameters() if "lora_" in name)


def test_the_reference_is_the_model_without_adapters_and_costs_only_theirs(starts):
    engine = new_engine("untied", starts / "untied", lora=LORA)
    reference, before = FrozenWeights(engine.module), mapped(engine, "untied")
    assert sum(weight.numel() for weight in reference.weights) == numel_of_adapters(engine)
    train(engine, "untied", range(STEPS))
    learnt = mapped(engine, "untied")
    with reference.swap_in():
        assert mapped(engine, "untied") == before == mapped(new_engine("untied", starts / "untied"), "untied")
    assert mapped(engine, "untied") == learnt != before
