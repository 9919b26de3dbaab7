"""Adapters: they change nothing at first, they alone learn, and merged into the weights they say the same."""

import json
import math
from collections import defaultdict
from dataclasses import replace

import forks
import lora_layouts
import pytest
import torch
from layouts import LAYOUTS, MORE_STEPS, STEPS, continued, mapped, train
from lora_layouts import LAYERS, LORA, NAMES
from tiny import ARCHITECTURE, MODELS, Samples, loss_of, new_engine, randomize

from aligner_lib.megatron.engine import Engine, FrozenWeights
from aligner_lib.megatron.lora import LoRA, reset_adapters, seed_dropout
from aligner_lib.megatron.model import Numerics
from aligner_lib.models.adapters import Adapter, AdapterRecord, open_weights
from aligner_lib.models.merge import merge
from aligner_lib.models.tensor_store import StoreReader

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]
CLOSE = 1e-5

each_model = pytest.mark.parametrize("name", MODELS)
each_of_layouts = pytest.mark.parametrize("name", NAMES)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(scope="module")
def measured(starts, tmp_path_factory):
    """Where one process (`one`) and every layout left their figures (NAME.json) and checkpoints (NAME/MODEL)."""
    out = tmp_path_factory.mktemp("lora")
    one = {name: lora_layouts.measure(name, starts / name, None, out / "one" / name) for name in MODELS}
    forks.write_json(out / "one.json", one)
    forks.run_ranks(2, lora_layouts.measure_all, starts, out / "one", out, folder=out)
    return out


@pytest.fixture(scope="module")
def figures(measured) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in measured.glob("*.json")}


def assert_close(got: list, expected: list) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=CLOSE, rel=CLOSE)


# ---- at the start ---------------------------------------------------------------------------------------------------


@each_model
def test_new_adapters_change_nothing_and_steps_are_real_ones(figures, starts, name):
    """To the bit, so that policy and reference are equal at first."""
    assert figures["one"][name]["untrained"] == mapped(new_engine(name, starts / name), name)
    steps = figures["one"][name]["steps"]
    assert len({round(step["loss"], 3) for step in steps}) == STEPS
    assert min(step["grad_norm"] for step in steps) > 0.05


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


def test_layers_that_are_not_named_have_none(starts):
    engine = new_engine("untied", starts / "untied", lora=LoRA({"linear_fc2": Adapter(2, 1.0)}))
    adapted = {name.split(".")[-2] for name, _ in engine.module.named_parameters() if "lora_" in name}
    assert adapted == {"linear_fc2"}


# ---- the function ---------------------------------------------------------------------------------------------------


@each_model
def test_merged_weights_say_the_same(figures, measured, name, tmp_path):
    """A model without adapters that is loaded from the checkpoint, and one from the folder that `merge` writes."""
    checkpoint, expected = measured / "one" / name, figures["one"][name]["mapped"]
    assert max(abs(a - b) for a, b in zip(expected[0], figures["one"][name]["untrained"][0])) > 0.01
    assert_close(mapped(new_engine(name, checkpoint), name), expected)
    merged = merge(checkpoint, tmp_path / "merged")
    assert AdapterRecord.load(merged) is None
    assert_close(mapped(new_engine(name, merged), name), expected)


def test_merged_weights_are_w_plus_scale_b_a(measured, starts, tmp_path):
    checkpoint = measured / "one" / "untied"
    own, base = StoreReader(checkpoint / "weights"), StoreReader(starts / "untied" / "weights")
    merged = StoreReader(merge(checkpoint, tmp_path / "merged") / "weights")
    assert merged.names() == base.names()
    for layer, adapter in LAYERS.items():
        block = "self_attention" if layer in ("linear_qkv", "linear_proj") else "mlp"
        path = f"decoder.layers.2.{block}.{layer}"
        a, b = (own.read_whole(f"{path}.lora_{half}") for half in "ab")
        assert a.shape[0] == b.shape[1] == adapter.rank
        expected = base.read_whole(f"{path}.weight") + adapter.scale * (b @ a)
        assert (expected - base.read_whole(f"{path}.weight")).abs().max() > 1e-4
        torch.testing.assert_close(merged.read_whole(f"{path}.weight"), expected, atol=1e-6, rtol=0)
    for name in ("embedding.word_embeddings.weight", "decoder.layers.1.mlp.linear_fc1.layer_norm_weight"):
        assert torch.equal(merged.read_whole(name), base.read_whole(name))


def test_adapters_on_adapters(starts, measured, tmp_path):
    """A run that starts from a checkpoint of adapters has their model as its base."""
    first = measured / "one" / "untied"
    second = new_engine("untied", first, lora=LoRA({"linear_fc1": Adapter(2, 1.0)}, seed=1))
    assert_close(mapped(second, "untied"), mapped(new_engine("untied", first), "untied"))
    train(second, "untied", range(STEPS))
    second.save(tmp_path / "second")
    assert_close(mapped(new_engine("untied", tmp_path / "second"), "untied"), mapped(second, "untied"))
    assert len(open_weights(tmp_path / "second").names()) == len(open_weights(starts / "untied").names())


FAMILIES = {
    "biases": replace(ARCHITECTURE, qkv_bias=True, qk_norm=True),
    "norms behind": replace(ARCHITECTURE, post_norms=True, zero_centered_norm=True, activation="geglu"),
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


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputed_layers_learn_and_drop_the_same(starts, dropout):
    plain, *recomputed = (
        train(
            new_engine(
                "untied", starts / "untied", lora=replace(LORA, dropout=dropout), recompute_granularity=kind
            ),
            "untied",
            range(STEPS),
        )
        for kind in (None, "selective", "full")
    )
    for steps in recomputed:
        assert_close(steps, plain)


def test_a_shared_prefix_is_adapted_once_and_learnt_from_in_every_row(starts):
    samples = Samples.draw(4, seed=1)
    samples.tokens[:, :3] = samples.tokens[0, :3]
    ours, theirs = (
        [engine.train_step([samples], loss_of("untied"), lr=1e-2) for _ in range(2)]
        for engine in (
            new_engine("untied", starts / "untied", lora=LORA, share_prefix=shared)
            for shared in (True, False)
        )
    )
    assert_close(ours, theirs)


# ---- layouts and checkpoints ----------------------------------------------------------------------------------------


@each_of_layouts
@each_layout
def test_every_layout_learns_what_one_process_does(figures, layout, name):
    ours, theirs = figures[layout][name], figures["one"][name]
    for kind in ("steps", "more_steps", "untrained", "mapped"):
        assert_close(ours[kind], theirs[kind])
    assert ours.get("greedy") == theirs.get("greedy")


@each_of_layouts
@each_layout
def test_a_checkpoint_goes_on_in_another_layout_and_is_whole(figures, measured, starts, layout, name):
    expected = figures["one"][name]["more_steps"]
    assert_close(figures[layout][name]["after_loading"], expected)  # of one process, in this layout
    assert_close(continued(name, measured / layout / name, starts / name, lora=LORA), expected)
    for part, halves in {"weights": [""], "optimizer": ["exp_avg.", "exp_avg_sq."]}.items():
        ours, theirs = (StoreReader(measured / where / name / part) for where in (layout, "one"))
        assert ours.names() == theirs.names()
        kinds = {tensor.rpartition(".")[2] if "lora_" in tensor else tensor for tensor in ours.names()}
        head = {f"{half}value_head.{kind}" for half in halves for kind in ("weight", "bias")}
        assert kinds == {"lora_a", "lora_b"} | (head if name == "scalar" else set())
        for tensor in ours.names():
            torch.testing.assert_close(ours.read_whole(tensor), theirs.read_whole(tensor), atol=5e-4, rtol=0)


@each_model
def test_in_one_process_a_checkpoint_goes_on_to_the_bit(figures, name):
    assert figures["one"][name]["after_loading"] == figures["one"][name]["more_steps"]


def test_checkpoints_of_other_adapters_and_of_none_are_refused(starts, measured, tmp_path):
    adapters, other = measured / "one" / "untied", LoRA(LAYERS | {"linear_qkv": Adapter(8, 2.0)})
    new_engine("untied", starts / "untied").save(tmp_path / "whole")
    for lora, checkpoint, message in (
        (None, adapters, "and the settings say a model without adapters"),
        (other, adapters, r"linear_qkv \(rank 4, scale 2\).*linear_qkv \(rank 8, scale 2\)"),
        (LORA, tmp_path / "whole", "holds a model without adapters"),
    ):
        with pytest.raises(ValueError, match=message):
            new_engine("untied", starts / "untied", lora=lora).load(checkpoint, with_optimizer=True)


# ---- dropout --------------------------------------------------------------------------------------------------------


def test_dropout_is_a_function_of_seed_and_step(starts, tmp_path, figures):
    lora = replace(LORA, dropout=0.3)
    engine = new_engine("untied", starts / "untied", lora=lora)
    steps = train(engine, "untied", range(STEPS))
    first, second = figures["one"]["untied"]["steps"][:2]
    assert steps[0]["loss"] == first["loss"]  # B is zero: there is nothing to be dropped yet
    assert steps[0]["grad_norm"] != pytest.approx(first["grad_norm"], rel=1e-2)
    assert steps[1]["loss"] != pytest.approx(second["loss"], abs=1e-6)
    engine.save(tmp_path / "checkpoint")
    torch.manual_seed(99)  # whatever else has drawn random numbers
    resumed = continued("untied", tmp_path / "checkpoint", starts / "untied", lora=lora)
    assert resumed == train(engine, "untied", range(STEPS, STEPS + MORE_STEPS))
    assert mapped(engine, "untied") == mapped(engine, "untied")  # none outside of training


def test_another_seed_step_or_micro_batch_drops_others():
    def drawn(seed: int, step: int = 0, micro_batch: int = 0) -> tuple[float, ...]:
        seed_dropout(replace(LORA, seed=seed), step, micro_batch)
        return tuple(torch.rand(4).tolist())

    places = [(seed, step, micro_batch) for seed in SEEDS for step in (0, 7) for micro_batch in (0, 1)]
    assert len({drawn(*place) for place in places}) == len(places)
    assert drawn(*places[3]) == drawn(*places[3])


# ---- a reference, and a reward model, beside them -------------------------------------------------------------------


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


def test_critic_and_reward_model_share_a_base(starts):
    """The reward model's half is the head and the adapters as they were."""
    from aligner_lib.models.reward_scale import RewardScale
    from aligner_lib.rollouts.critic import Critic

    samples = Samples.draw(4, seed=2)
    critic = Critic(new_engine("scalar", starts / "scalar", lora=LORA), 0.2, 2, 2, RewardScale(0.5, 2.0))
    critic.engine.start = starts / "scalar"
    reward_model = critic.reward_model()
    rewards, values = reward_model.score(samples).result(), critic.values(samples).result()
    for _ in range(2):
        critic._put_own_weights_in()
        critic.engine.train_step([samples], loss_of("scalar"), lr=1e-2)
    assert not torch.allclose(critic.values(samples).result(), values, atol=1e-3)
    assert torch.equal(reward_model.score(samples).result(), rewards)
    head = sum(parameter.numel() for parameter in critic.engine.module.value_head.parameters())
    kept = sum(weight.numel() for weight in reward_model.weights.weights)
    assert kept - head == numel_of_adapters(critic.engine)
    critic.load(None)
    assert torch.equal(critic.values(samples).result(), values)
