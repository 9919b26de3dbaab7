"""Weights that the ranks of a layout hold are put together on the first one, under transformers' names."""

from dataclasses import replace
from pathlib import Path

import forks
import pytest
import tiny
import torch
from layouts import in_each_layout, train
from lora_layouts import LORA
from twins import stored_tensors

from aligner_lib.models.merge import merge

pytestmark = pytest.mark.usefixtures("one_process")
LAYOUTS = ("tp2", "pp2", "dp2")


def gather(starts: Path, adapted: Path, out: Path) -> None:
    """What this rank is given of each model in each layout of two."""
    from aligner_lib.megatron import parallel
    from aligner_lib.rollouts.policy import hf_weights

    for layout in in_each_layout(*LAYOUTS):
        engines = {
            "untied": tiny.new_engine("untied", starts / "untied"),
            "tied": tiny.new_engine("tied", starts / "tied"),
            "adapted": tiny.new_engine("tied", starts / "tied", lora=replace(LORA, start=adapted)),
        }
        for name, engine in engines.items():
            found = {key: part.clone() for key, part in hf_weights(engine)}
            torch.save(found, out / f"{layout}-{name}-{parallel.rank()}.pt")


@pytest.fixture(scope="module")
def expected(starts, tmp_path_factory) -> dict[str, Path]:
    """The model folders with what is to be found; `adapters`: what `adapted` is made of."""
    folder = tmp_path_factory.mktemp("adapted")
    engine = tiny.new_engine("tied", starts / "tied", lora=LORA)
    train(engine, "tied", range(2))
    engine.save(folder / "adapters")
    adapted = merge(folder / "adapters", folder / "merged")
    folders = {name: starts / name for name in ("untied", "tied")}
    return folders | {"adapted": adapted, "adapters": folder / "adapters"}


@pytest.fixture(scope="module")
def gathered(starts, expected, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("gathered")
    forks.run_ranks(2, gather, starts, expected["adapters"], out, folder=out)
    return out


@pytest.mark.parametrize("name", ["untied", "tied", "adapted"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_rank_has_every_weight_and_the_others_none(gathered, expected, layout, name):
    first, second = (torch.load(gathered / f"{layout}-{name}-{rank}.pt") for rank in (0, 1))
    tensors = stored_tensors(expected[name])
    assert first.keys() == tensors.keys() and not second
    rounding = 1e-6 if name == "adapted" else 0.0  # of one product, which is computed in other pieces here
    for key, tensor in tensors.items():
        torch.testing.assert_close(first[key], tensor, atol=rounding, rtol=0.0)


def test_adapters_change_what_is_found(gathered):
    tied, adapted = (torch.load(gathered / f"tp2-{name}-0.pt") for name in ("tied", "adapted"))
    changed = {key for key in tied if (tied[key] - adapted[key]).abs().max() > 1e-4}
    changed = {key.rpartition("layers.0.")[2] for key in changed}
    assert {"self_attn.q_proj.weight", "self_attn.o_proj.weight", "mlp.up_proj.weight"} < changed


def test_a_name_that_the_model_has_not_is_refused(starts):
    from aligner_lib.megatron.whole_weights import WholeWeights

    whole = WholeWeights(tiny.new_engine("tied", starts / "tied").module)
    assert "decoder.final_layernorm.weight" in whole.names
    with pytest.raises(KeyError, match=r"no weight output_layer\.weight"):
        whole.read("output_layer.weight")
