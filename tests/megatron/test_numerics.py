"""Precision and recomputation: what stays float32 under bf16, and memory that is given up for time."""

import pytest
import tiny
import torch

from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.model import Numerics
from benchmarks.activations import kept_bytes

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]

LAYERS, HIDDEN = tiny.ARCHITECTURE.num_layers, tiny.ARCHITECTURE.hidden_size
RECOMPUTATION = {
    "selective": Numerics(recompute_granularity="selective", recompute_method="uniform"),
    "full": Numerics(recompute_granularity="full"),
    "full, two layers a chunk": Numerics(
        recompute_granularity="full", recompute_method="uniform", recompute_num_layers=2
    ),
    "full, a block of one layer": Numerics(recompute_granularity="full", recompute_method="block"),
}


def engine_of(starts, name: str, numerics: Numerics) -> Engine:
    engine = Engine(tiny.MODELS[name], numerics, tiny.OPTIM, tiny.CLIP)
    engine.load(starts / name)
    return engine


def steps(engine: Engine, name: str, numbers: range = range(2)) -> list[dict]:
    return [
        engine.train_step(tiny.Samples.draw(4, seed).micro_batches(3), tiny.loss_of(name), 1e-3)
        for seed in numbers
    ]


@pytest.mark.parametrize("name", ["tied", "scalar"])
def test_recomputation_changes_no_step(starts, name):
    expected = steps(engine_of(starts, name, Numerics()), name)
    for kind, numerics in RECOMPUTATION.items():
        for ours, theirs in zip(steps(engine_of(starts, name, numerics), name), expected, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-6, rel=1e-6), kind


def test_recomputation_keeps_less(starts):
    batch = tiny.Samples.draw(8, seed=0)
    kept = {
        name: kept_bytes(engine_of(starts, "untied", numerics).module, batch.tokens, batch.lengths)
        for name, numerics in ({"none": Numerics()} | RECOMPUTATION).items()
    }
    assert kept["selective"] < 0.65 * kept["none"]
    assert kept["full"] < 0.1 * kept["none"]
    one_layer = 4 * int(batch.lengths.sum()) * HIDDEN  # float32, what goes into it
    assert kept["full"] > LAYERS * one_layer
    assert kept["full, two layers a chunk"] == kept["full"] - LAYERS / 2 * one_layer
    # three of four layers keep everything; layers share indices and angles, a thousandth of it
    outside = kept["full"] - LAYERS * one_layer
    three = 0.75 * (kept["none"] - outside)
    assert kept["full, a block of one layer"] == pytest.approx(outside + three + one_layer, rel=1e-3)


def test_the_setting_reaches_the_model(starts):
    from aligner_lib.config.compose import compose
    from aligner_lib.kinds.build_models import build_engine

    setting = "model.activations_checkpoint_granularity=selective"
    config = compose("sft", [setting, "model.activations_checkpoint_method=uniform"], profile="smoke")
    engine = build_engine(tiny.MODELS["untied"], config, starts / "untied")
    assert engine.module.config.recompute_granularity == "selective"


@pytest.mark.parametrize("offloads", [True, False])
def test_the_setting_of_adam_s_moments_reaches_the_critic(starts, offloads, monkeypatch):
    from aligner_lib.config.compose import compose
    from aligner_lib.kinds import build_models

    monkeypatch.setattr(build_models, "Tokenizer", lambda folder: None)  # these models have none
    config = compose("critic", [f"model.offload_adam_states={offloads}"], profile="smoke")
    critic, _ = build_models.build_critic(config, starts / "scalar", judges=False)
    assert critic.engine.offloads_adam is offloads


def test_a_chunk_that_leaves_layers_over_is_refused(starts):
    uneven = Numerics(recompute_granularity="full", recompute_num_layers=3)
    with pytest.raises(ValueError, match="activations_checkpoint_num_layers=3 does not divide the 4 layers"):
        engine_of(starts, "untied", uneven)


def test_rewards_are_added_up_in_float32_under_bf16():
    model = Engine(tiny.MODELS["scalar"], Numerics(bf16=True)).module
    torch.nn.init.ones_(model.value_head.weight)
    hidden = torch.zeros(2, HIDDEN, dtype=torch.bfloat16)
    hidden[:, 0], hidden[1, 1] = 256, 1
    assert model.values(hidden).tolist() == [256.0, 257.0]  # in bf16 both are 256


def test_a_head_in_float32_trains_and_goes_on_beside_layers_in_bf16(starts, tmp_path):
    engine = engine_of(starts, "scalar", Numerics(bf16=True))
    parameters = engine.module.named_parameters()
    in_float32 = {name for name, parameter in parameters if parameter.dtype == torch.float32}
    assert in_float32 == {"value_head.weight", "value_head.bias"}
    losses = [step["loss"] for step in steps(engine, "scalar")]
    expected = [step["loss"] for step in steps(engine_of(starts, "scalar", Numerics()), "scalar")]
    assert losses == pytest.approx(expected, rel=0.02) and losses != expected
    engine.save(tmp_path)
    again = Engine(tiny.MODELS["scalar"], Numerics(bf16=True), tiny.OPTIM, tiny.CLIP)
    again.load(tmp_path, with_optimizer=True)
    assert steps(again, "scalar", range(2, 4)) == steps(engine, "scalar", range(2, 4))
