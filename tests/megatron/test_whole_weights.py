"""Weights that the ranks of a layout hold are put together on the first one, under transformers' names."""

from pathlib import Path

import forks
import pytest
import tiny
import torch
from twins import stored_tensors

pytestmark = pytest.mark.usefixtures("one_process")
LAYOUTS = {"tp2": (2, 1), "pp2": (1, 2), "dp2": (1, 1)}


def gather(starts: Path, out: Path) -> None:
    """What this rank is given of each model in each layout of two."""
    from aligner_lib.megatron import parallel
    from aligner_lib.rollouts.policy import hf_weights

    for layout, (tp, pp) in LAYOUTS.items():
        parallel.initialize(tp, pp)
        for name in ("untied", "tied"):
            found = {
                key: part.clone() for key, part in hf_weights(tiny.new_engine(name, start=starts / name))
            }
            torch.save(found, out / f"{layout}-{name}-{parallel.rank()}.pt")
        parallel.barrier()
        parallel.parallel_state.destroy_model_parallel()


@pytest.fixture(scope="module")
def gathered(starts, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("gathered")
    forks.run_ranks(2, gather, starts, out, folder=out)
    return out


@pytest.mark.parametrize("name", ["untied", "tied"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_rank_has_every_weight_to_the_bit_and_the_others_none(gathered, starts, layout, name):
    expected = stored_tensors(starts / name)
    first, second = (torch.load(gathered / f"{layout}-{name}-{rank}.pt") for rank in (0, 1))
    assert first.keys() == expected.keys() and not second
    assert all(torch.equal(first[key], tensor) for key, tensor in expected.items())


def test_a_name_that_the_model_has_not_is_refused(starts):
    from aligner_lib.megatron.whole_weights import WholeWeights

    whole = WholeWeights(tiny.new_engine("tied", starts / "tied").module)
    assert "decoder.final_layernorm.weight" in whole.names
    with pytest.raises(KeyError, match=r"no weight output_layer\.weight"):
        whole.read("output_layer.weight")
