"""A notebook's job starts as many processes as its settings say."""

import pytest

from aligner_lib.tutorial.workspace import Workspace

BOUND_S = 120


@pytest.mark.megatron
def test_two_processes_that_the_settings_ask_for_learn_what_one_does(tmp_path):
    lab = Workspace(tmp_path, "smoke")
    small = {f"model.data.{split}_ds.micro_batch_size": 4 for split in ("train", "validation")}
    losses = {}
    for devices in (1, 2):
        name = f"on{devices}"
        lab.submit("sft", name, **{"trainer.devices": devices, "trainer.sft.max_steps": 2} | small).wait(
            BOUND_S
        )
        losses[devices] = [
            record["train/loss"] for record in lab.run(name).metrics() if "train/loss" in record
        ]
    assert len(losses[2]) == 2
    assert losses[2] == pytest.approx(losses[1], rel=1e-5)
