"""The soak fails when it has shown nothing."""

import pytest

from benchmarks.soak import shortcoming

pytestmark = pytest.mark.remote_critic


@pytest.mark.parametrize(
    ("different", "faults", "reason"),
    [
        ([], 8, None),
        ([], 5, None),
        ([], 4, "4 faults have happened"),
        (["critic/weights/x"], 8, "1 tensors differ"),
    ],
)
def test_two_hundred_steps_with_a_fault_in_twenty(different, faults, reason):
    said = shortcoming(different, faults, steps=200, every=20)
    assert said == reason or said.startswith(reason)
