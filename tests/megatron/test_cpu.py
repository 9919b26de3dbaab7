"""What a process on a CPU does differently: its threads, and parts of torch that it replaces."""

from types import SimpleNamespace

import pytest
import torch

from aligner_lib.megatron import cpu


@pytest.mark.parametrize(
    ("hidden_sizes", "threads"),
    [([96], [1]), ([256, 64], [1, 1]), ([576], [4]), ([96, 576], [1, 4]), ([576, 96], [4, 4])],
)
def test_a_process_has_one_thread_until_its_first_wide_model(monkeypatch, hidden_sizes, threads):
    """Then it has the number of threads that it had before the first narrow model."""
    before, counted = torch.get_num_threads(), []
    torch.set_num_threads(4)
    monkeypatch.setattr(cpu, "_widest", 0)
    for hidden_size in hidden_sizes:
        cpu.fit_threads(hidden_size)
        counted.append(torch.get_num_threads())
    torch.set_num_threads(before)
    assert counted == threads


def test_a_group_of_one_rank_calls_no_collective():
    calls, whole = [], torch.arange(4.0)
    collect = cpu._unless_alone(lambda output, input, **_: calls.append(output))
    collect(whole[:2], whole, group=SimpleNamespace(size=lambda: 1))
    assert calls == []
    collect(whole[:2], whole, group=SimpleNamespace(size=lambda: 2))
    assert len(calls) == 1


def test_no_rows_pass_through_as_no_rows():
    """Of a micro batch without a token in the loss, for instance."""
    forward = cpu._quick_with_few_rows(None)
    with torch.no_grad():
        assert forward(None, torch.ones(0, 1, 4), torch.ones(7, 4)).shape == (0, 1, 7)


def test_megatron_has_no_real_triton(one_process):
    """PyTorch's CPU build has no Triton, which Megatron 0.19 imports without a condition."""
    from megatron.core.inference.contexts import fused_kv_append_kernel

    assert not hasattr(fused_kv_append_kernel.triton, "__file__")
