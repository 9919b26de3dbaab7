"""where="print": a script is printed, and no run is removed, replaced or waited for."""

import json

import pytest

from aligner_lib.config.compose import compose, save
from aligner_lib.tutorial import Workspace
from aligner_lib.tutorial.workspace import recorded_runs
from cluster import Resources

CONFIG = save(compose("sft", profile="smoke"))


@pytest.fixture
def lab(smoke, tmp_path, monkeypatch, capsys) -> Workspace:
    """A workspace with a run `sft` of twelve steps, and with a recording of that name."""
    lab = Workspace(tmp_path, "smoke", where="print", start="recorded")
    lab.run("sft").path.mkdir(parents=True)
    info = {"kind": "sft", "profile": "smoke", "config": CONFIG, "heartbeat": {"time": 0, "step": 12}}
    (lab.run("sft").path / "run.json").write_text(json.dumps(info | {"status": "finished"}))
    (lab.run("sft").path / "checkpoints" / "step_000012").mkdir(parents=True)
    monkeypatch.setattr(recorded_runs, "recorded", lambda *_: pytest.fail("a recorded run is looked for"))
    return lab


def test_a_printed_job_installs_no_recorded_run(lab):
    assert "aligner_lib sft" in lab.submit("sft").text
    assert lab.policy() == lab.run("sft").path
    assert [path.name for path in (lab.out / "runs").iterdir()] == ["sft"]


def test_a_printed_job_neither_waits_for_a_running_job_nor_replaces_its_run(lab, monkeypatch, capsys):
    monkeypatch.setattr(
        "cluster.submission.refuse_if_busy", lambda *_: pytest.fail("the running job is in the way")
    )
    monkeypatch.setattr("cluster.Job.attach", lambda *_: pytest.fail("waits for the running job"))
    assert "resume_if_exists=false" in lab.submit("sft", **{"model.seed": 7}).text
    assert "the printed job would begin anew and set the old files aside" in capsys.readouterr().out
    lab.policy()


def test_a_branch_has_a_gpu_for_each_process_of_its_own_settings_and_one_node(lab, tmp_path):
    run = tmp_path / "runs" / "large"
    run.mkdir(parents=True)
    config = save(compose("sft", profile="slurm"))
    (run / "run.json").write_text(json.dumps({"kind": "sft", "profile": "slurm", "config": config}))
    cluster = Workspace(tmp_path, "slurm", where="print")
    assert cluster.branch("large", at=4).gpus == 8
    assert cluster.branch("large", at=4, **{"trainer.devices": 4}).gpus == 4
    four = Resources(tasks_per_node=1, gpus_per_node=4)
    for resources in (None, four):
        with pytest.raises(ValueError, match=r"trainer\.num_nodes=2: a branch is one task on one node"):
            cluster.branch("large", at=4, resources=resources, **{"trainer.num_nodes": 2})
    assert cluster.branch("large", at=4, resources=four).gpus == 4
