"""What a notebook's cell becomes: commands with the profile's files, on any resources."""

import os

import pytest

from aligner_lib.errors import ConfigError
from aligner_lib.workspace import Workspace
from cluster import Resources

FOUR = {f"model.data.{name}_ds.micro_batch_size": 4 for name in ("train", "validation")}


@pytest.fixture
def lab(smoke, tmp_path, capsys) -> Workspace:
    return Workspace(tmp_path, "smoke", where="print")


def test_a_run_on_more_nodes_differs_in_its_resources_alone(lab):
    one = lab.submit("sft", **FOUR)
    four = lab.submit("sft", resources=Resources(nodes=2, tasks_per_node=2), **FOUR)
    assert (one.nodes, four.nodes) == (1, 2)
    changed = {line.strip(" \\") for line in set(four.text.splitlines()) - set(one.text.splitlines())}
    assert {"trainer.num_nodes=2", "trainer.devices=2", "#SBATCH --nodes=2"} <= changed
    assert not any("data" in line or "model" in line.split("=")[0] for line in changed)


def test_a_layout_that_does_not_fit_is_told_in_the_cell(lab):
    with pytest.raises(ConfigError, match="make it a multiple of 32"):
        lab.submit("sft", resources=Resources(nodes=2))


def test_a_sweep_has_a_run_for_each_value(lab):
    plan = lab.submit_sweep("sft", "model.optim.lr", [1e-3, 3e-3])
    assert "#SBATCH --array=0-1\n" in plan.text
    for value in ("0.001", "0.003"):
        assert f"--run {lab.out}/runs/sft-lr/lr-{value}" in plan.text
        assert f"model.optim.lr={value}" in plan.text


def test_without_slurm_auto_is_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Workspace(tmp_path, "smoke", where="auto").where == "local"
    (tmp_path / "sbatch").touch(mode=0o755)
    assert os.access(tmp_path / "sbatch", os.X_OK)
    assert Workspace(tmp_path, "smoke", where="auto").where == "slurm"
