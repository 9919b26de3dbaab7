"""Adam's fused update against torch's plain one."""

import pytest
import tiny
import torch

from aligner_lib.megatron.engine import LossTerms

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]


def loss(model, batch, hidden):
    return LossTerms(model.values(hidden).square().sum(), hidden.shape[0])


def test_the_fused_update_is_the_plain_one(starts):
    fused, plain = (tiny.new_engine("scalar", starts / "scalar") for _ in range(2))
    groups = [group for engine in (fused, plain) for group in engine.optimizer.optimizer.param_groups]
    assert all(group["fused"] for group in groups)
    for group in plain.optimizer.optimizer.param_groups:
        group["fused"] = False
    before = [parameter.clone() for parameter in fused.module.parameters()]
    batches = tiny.Samples.draw(4, seed=0).micro_batches(2)
    for step in range(2):
        for engine in (fused, plain):
            engine.train_step(batches, loss, lr=1e-2 / (step + 1))
    for ours, torchs in zip(fused.module.parameters(), plain.module.parameters(), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-7)
    assert any(not torch.equal(now, was) for now, was in zip(fused.module.parameters(), before))
