"""On the simulated accelerator a model says and learns what it does on the CPU."""

from unittest.mock import patch

import pytest
import tiny
import torch
from simulated_accelerator import DEVICE, TO_CPU, DeviceTensor, simulated_accelerator

from aligner_lib.megatron import cpu
from aligner_lib.megatron.generate import Sampling, generate

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]


@pytest.fixture
def copies():
    with simulated_accelerator() as copies:
        yield copies


def test_generation_there_gives_the_cpu_s_responses(starts, copies):
    with pytest.raises(RuntimeError, match="lies on the CPU"):
        torch.ones(3, device=DEVICE) + torch.ones(3)

    def answers(sampling: Sampling) -> list[list[int]]:
        module = tiny.new_engine("untied", starts / "untied").module
        prompts = [[5, 6, 7], [8], list(range(20, 40))]
        return [response.tokens for response in generate(module, prompts, [0, 1, 2], sampling, stop_ids=[3])]

    drawn = Sampling(max_length=8, min_length=2, temperature=1.2, top_k=30, top_p=0.95)
    there = answers(drawn)
    with patch.object(cpu, "DEVICE", torch.device("cpu")):
        assert there == answers(drawn)
    # at each of 8 tokens ids and log-probabilities of 3 rows, float64; and when one or two leave, where the others begin
    read = [copy.bytes for copy in copies.seen if copy.direction == TO_CPU]
    assert max(read) == 2 * 3 * 8 and len(read) <= 8 + 2


def test_a_model_trains_saves_and_goes_on_there_as_on_the_cpu(starts, tmp_path):
    """With recomputed layers; in bf16 see test_masters.py."""

    def steps(engine, numbers: range) -> list[dict]:
        batches = {seed: tiny.Samples.draw(3, seed).micro_batches(2) for seed in numbers}
        return [engine.train_step(batches[seed], tiny.language_loss, 1e-3) for seed in numbers]

    on_cpu = steps(tiny.new_engine("tied", starts / "tied", recompute_granularity="full"), range(3))
    with simulated_accelerator():
        engine = tiny.new_engine("tied", starts / "tied", recompute_granularity="full")
        assert all(isinstance(parameter, DeviceTensor) for parameter in engine.module.parameters())
        on_device = steps(engine, range(1))
        engine.save(tmp_path)
        resumed = tiny.new_engine("tied", recompute_granularity="full")
        resumed.load(tmp_path, with_optimizer=True)
        on_device += steps(resumed, range(1, 3))
    for ours, theirs in zip(on_device, on_cpu, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5)  # attention is summed in another order there
