"""What a notebook's cell becomes: commands with the profile's files, on any resources."""

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


@pytest.mark.parametrize(
    ("sinfo", "where"),
    [
        (None, "local"),
        ("echo no controller >&2; exit 1", "local"),
        ("echo 'batch|2|1:00|(null)|up'", "slurm"),
    ],
)
def test_auto_is_slurm_where_it_answers(tmp_path, monkeypatch, sinfo, where):
    if sinfo is not None:
        for name, line in {"sbatch": "exit 1", "sinfo": sinfo}.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Workspace(tmp_path, "smoke", where="auto").where == where
