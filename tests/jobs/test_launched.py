"""A notebook's job starts as many processes as its settings say; that they learn what one does, notebook 09 shows."""

from aligner_lib.tutorial import Workspace

BOUND_S = 120


def test_settings_that_ask_for_two_processes_get_them(tmp_path):
    lab = Workspace(tmp_path, "smoke")
    small = {f"model.data.{split}_ds.micro_batch_size": 4 for split in ("train", "validation")}
    lab.submit("sft", **{"trainer.devices": 2, "trainer.sft.max_steps": 1} | small).wait(BOUND_S)
    run = lab.run("sft")
    assert run.info["config"]["trainer"]["devices"] == 2  # which one process alone refuses: test_failures
    assert run.status == "finished"
