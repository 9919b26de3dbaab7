"""Frozen weights beside a model that trains: the model gets its own back, in the memory where the optimizer writes."""

import pytest
import tiny
import torch

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]


def values(model, batch, hidden):
    return model.values(hidden).t()


def loss(model, batch, hidden):
    from aligner_lib.megatron.engine import LossTerms

    return LossTerms(model.values(hidden).sum(), hidden.shape[0])


@pytest.mark.parametrize("by_value", [False, True], ids=["as on a CPU", "as on a GPU"])
def test_a_model_still_learns_after_its_weights_were_exchanged(starts, by_value):
    from aligner_lib.megatron.engine import FrozenWeights

    engine = tiny.new_engine("scalar", starts / "scalar")
    frozen = FrozenWeights(engine.module)
    frozen.by_value = by_value
    places = [parameter.data_ptr() for parameter in engine.module.parameters()]
    batches = tiny.Samples.draw(4, seed=0).micro_batches(2)

    def numbers() -> torch.Tensor:
        return torch.cat([rows.flatten() for rows in engine.map(batches, values)])

    before = numbers()
    for _ in range(2):
        engine.train_step(batches, loss, lr=1e-2)
        learnt = numbers()
        assert not torch.allclose(learnt, before, atol=1e-3)
        with frozen.swap_in():
            assert torch.equal(numbers(), before)
        assert torch.equal(numbers(), learnt)
        assert [parameter.data_ptr() for parameter in engine.module.parameters()] == places
