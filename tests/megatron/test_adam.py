"""Adam's fused update against torch's plain one, and what a step imports."""

import subprocess
import sys

import pytest
import tiny
import torch

from aligner_lib.megatron import cpu
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


@pytest.mark.skipif(cpu.HAS_CUDA, reason="a GPU's jobs compile")
def test_a_step_imports_no_compiler():
    """torch's AdamW would import torch._dynamo, which is a tenth of a job's start."""
    program = """
import sys
import torch
from aligner_lib.megatron import cpu
cpu.prepare()
import megatron.core.optimizer
weight = torch.nn.Parameter(torch.tensor([1.0]))
adam = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
adam.zero_grad()
(3 * weight).backward()
adam.step()
adam.load_state_dict(adam.state_dict())
print(weight.item(), weight.requires_grad, *sorted(sys.modules.keys() & {"torch._dynamo", "wandb", "torch.utils.tensorboard"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    value, trainable, *imported = done.stdout.split()
    assert float(value) == pytest.approx(0.9) and trainable == "True", (
        "Adam's first step is the learning rate"
    )
    assert imported == []
