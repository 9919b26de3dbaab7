"""Float32 masters of bf16 weights: what they begin as, what is kept of them, and that the model moves with them."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import tiny
import torch
from layouts import BF16_RATE as RATE
from layouts import LAYOUTS
from simulated_accelerator import simulated_accelerator

from aligner_lib.megatron.masters import HALF_STEP, between_the_steps
from aligner_lib.models.stream import StoredArrays
from aligner_lib.models.tensor_store import Block, StoreReader, StoreWriter

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]


def weights_of(engine) -> dict[str, torch.Tensor]:
    """The parameters, as float32."""
    return {name: parameter.detach().float().clone() for name, parameter in engine.module.named_parameters()}


def masters_of(engine) -> dict[str, torch.Tensor]:
    """Of a single process, which updates whole parameters."""
    return {
        name: parameter.master.values.view(parameter.shape).clone()
        for name, parameter in engine.module.named_parameters()
        if hasattr(parameter, "master")
    }


def displacements(start, steps: int, rate: float, **numerics) -> list[torch.Tensor]:
    """After each optimizer step, by how much the parameters differ from those at the start: float32 [all parameters]."""
    engine = tiny.new_engine("untied", start, **numerics)
    before = weights_of(engine)
    moved = []
    for seed in range(steps):
        train_step(engine, seed, rate=rate)
        after = weights_of(engine)
        moved.append(torch.cat([(after[name] - before[name]).flatten() for name in before]))
    return moved


@pytest.fixture(scope="module")
def copies(starts, tmp_path_factory) -> dict[str, Path]:
    """The weights of starts / "untied" stored in bf16; and rounded to bf16 but stored in float32, so that the masters begin
    on bf16's grid."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("bf16", "grid")}
    store = StoreReader(starts / "untied" / "weights")
    for kind, folder in folders.items():
        tiny.MODELS["untied"].save(folder)
        writer = StoreWriter(folder / "weights")
        for name in store.names():
            values = store.read_whole(name).bfloat16()
            values = values.float() if kind == "grid" else values
            writer.add(Block.whole(name, values), values)
        writer.flush()
    return folders


def train_step(engine, seed: int = 0, samples: int = 7, rate: float = RATE) -> dict:
    batches = tiny.Samples.draw(samples, seed).micro_batches(3)
    return engine.train_step(batches, tiny.language_loss, rate)


def test_the_outermost_masters_of_one_lie_half_a_step_away():
    # above 1 bf16 goes in steps of 2⁻⁷ and float32 in steps of 2⁻²³; below 1 both steps are half as long
    masters = between_the_steps(torch.ones(3).bfloat16(), torch.tensor([HALF_STEP - 1, 0, 1 - HALF_STEP]))
    assert masters.tolist() == [1 + 2**-8 - 2**-23, 1, 1 - 2**-9 + 2**-24]


def test_masters_round_back_to_what_they_were_drawn_for():
    values = torch.cat([torch.randn(10_000).bfloat16(), torch.tensor([0.0, -0.0, 2.0**-60, -1.0]).bfloat16()])
    for offset in (HALF_STEP - 1, 1 - HALF_STEP):
        masters = between_the_steps(values, torch.full(values.shape, offset))
        assert torch.equal(masters.bfloat16(), values)
        assert masters[-4:-2].tolist() == [0, 0] and (masters != values)[:-4].all()


def test_masters_are_what_is_stored_in_float32_and_parameters_are_rounded_from_them(starts):
    engine = tiny.new_engine("untied", starts / "untied", bf16=True)
    exact, masters = weights_of(tiny.new_engine("untied", starts / "untied")), masters_of(engine)
    assert masters.keys() == exact.keys()
    for name, rounded in weights_of(engine).items():
        assert torch.equal(masters[name], exact[name])
        assert torch.equal(rounded, exact[name].bfloat16().float()) and not torch.equal(rounded, exact[name])


def test_masters_of_weights_stored_in_bf16_are_the_same_in_every_run_and_spread_evenly(copies):
    engines = [tiny.new_engine("untied", copies["bf16"], bf16=True) for _ in range(2)]
    masters, again = map(masters_of, engines)
    places = []
    for name, rounded in weights_of(engines[0]).items():
        assert torch.equal(masters[name], again[name])
        assert torch.equal(masters[name].bfloat16().float(), rounded)
        offsets = masters[name].view(torch.int32) - rounded.view(torch.int32)
        places.append(offsets.flatten() / HALF_STEP)
    places = torch.cat(places)  # uniform in (−1, 1): mean 0, variance 1/3
    assert abs(places.mean()) < 4 * (1 / 3 / len(places)) ** 0.5
    assert places.square().mean() == pytest.approx(1 / 3, rel=0.02)


def test_one_training_follows_on_another_without_rounding(starts, tmp_path):
    first = tiny.new_engine("untied", starts / "untied", bf16=True)
    train_step(first)
    first.save(tmp_path, with_optimizer=False)
    kept = masters_of(first)
    in_bf16, in_float32 = (tiny.new_engine("untied", tmp_path, bf16=bf16) for bf16 in (True, False))
    for following in (masters_of(in_bf16), weights_of(in_float32)):
        assert following.keys() == kept.keys()
        assert all(torch.equal(following[name], kept[name]) for name in kept)


@pytest.mark.parametrize("on_device", [False, True])
def test_resume_reproduces_the_next_steps_bit_for_bit(copies, tmp_path, on_device):
    with simulated_accelerator() if on_device else nullcontext():
        unbroken, stopped = (tiny.new_engine("untied", copies["bf16"], bf16=True) for _ in range(2))
        expected = [train_step(unbroken, seed, 4) for seed in range(3)]
        assert train_step(stopped, 0, 4) == expected[0]
        stopped.save(tmp_path)
        resumed = tiny.new_engine("untied", bf16=True)
        resumed.load(tmp_path, with_optimizer=True)
        assert [train_step(resumed, seed, 4) for seed in (1, 2)] == expected[1:]
        masters, kept = masters_of(resumed), masters_of(unbroken)
        assert all(torch.equal(masters[name].cpu(), value.cpu()) for name, value in kept.items())


def test_any_layout_writes_masters_that_one_process_and_an_export_read(measured):
    expected = StoreReader(measured / "one" / "bf16" / "weights")
    for layout in LAYOUTS:
        folder = measured / layout / "bf16"
        store, arrays = (reader(folder / "weights") for reader in (StoreReader, StoredArrays))
        assert store.names() == expected.names()
        for name in store.names():
            values = store.read_whole(name)
            assert values.dtype == torch.float32
            assert torch.equal(torch.from_numpy(arrays.read(name)), values)
            # Adam's first step is the rate in every weight, whose gradients are rounded differently in each layout
            torch.testing.assert_close(values, expected.read_whole(name), atol=2.5 * RATE, rtol=0)
            assert (values - expected.read_whole(name)).abs().median() < 0.01 * RATE
        resumed, norm = tiny.new_engine("tied", bf16=True), "decoder.final_layernorm.weight"
        resumed.load(folder, with_optimizer=True)
        assert torch.equal(masters_of(resumed)[norm], store.read_whole(norm))


def share(shown: torch.Tensor, expected: torch.Tensor) -> float:
    """How far `shown` reaches in the direction of `expected`, as a part of its length."""
    return (shown @ expected / (expected @ expected)).item()


def test_steps_show_in_full_and_go_where_those_of_float32_go(starts, copies):
    # each weight shows whole steps of the grid, so that single weights point the same way from updates of a step on
    [first] = displacements(starts / "untied", 1, RATE)
    expected = sum(displacements(starts / "untied", 3, 10 * RATE))
    for start in (starts / "untied", copies["bf16"]):
        [shown] = displacements(start, 1, RATE, bf16=True)
        assert share(shown, first) == pytest.approx(1, abs=0.1)
        shown = sum(displacements(start, 3, 10 * RATE, bf16=True))
        assert torch.cosine_similarity(shown, expected, dim=0) > 0.95
        assert share(shown, expected) == pytest.approx(1, abs=0.02)
    [shown] = displacements(copies["grid"], 1, RATE, bf16=True)
    assert share(shown, first) < 0.25  # so little would show if masters began on bf16's grid
