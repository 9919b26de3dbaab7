"""The number of threads of a process with narrow models."""

import pytest
import torch

from aligner_lib.megatron import cpu


@pytest.fixture(autouse=True)
def process_with_four_threads(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr(cpu, "_widest", 0)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("hidden_sizes", "threads"),
    [([96], [1]), ([256, 64], [1, 1]), ([576], [4]), ([96, 576], [1, 4]), ([576, 96], [4, 4])],
)
def test_a_process_has_one_thread_until_its_first_wide_model(hidden_sizes, threads):
    counted = []
    for hidden_size in hidden_sizes:
        cpu.fit_threads(hidden_size)
        counted.append(torch.get_num_threads())
    assert counted == threads


@pytest.mark.parametrize("hidden_sizes", [[576], [96, 576]])
def test_a_number_that_a_user_has_set_is_kept_with_wide_models(hidden_sizes):
    torch.set_num_threads(3)
    for hidden_size in hidden_sizes:
        cpu.fit_threads(hidden_size)
    assert torch.get_num_threads() == 3
