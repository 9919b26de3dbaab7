"""trainer.precision: where the device computes in another one, the job says so and run.json records what was computed."""

import json

import pytest

from aligner_lib.config.compose import compose
from aligner_lib.jobs.runtime import log_notices, open_run
from aligner_lib.megatron import cpu
from aligner_lib.run_folder.explain.evidence import Evidence
from aligner_lib.run_folder.reader import RunFolder


@pytest.mark.parametrize(
    ("setting", "has_cuda", "computed"),
    [("bf16", False, "32"), ("32", False, "32"), ("bf16", True, "bf16"), ("32", True, "32")],
)
def test_a_job_says_and_records_the_precision_of_its_device(
    tmp_path, monkeypatch, caplog, setting, has_cuda, computed
):
    monkeypatch.setattr(cpu, "HAS_CUDA", has_cuda)
    monkeypatch.setattr("aligner_lib.jobs.runtime.OURS.propagate", True)
    config = compose(
        "ppo",
        [
            f"exp_manager.explicit_log_dir={tmp_path}",
            f"trainer.precision={setting}",
            "critic.trainer.precision=32",
        ],
    )
    with caplog.at_level("INFO", "aligner_lib"):
        log_notices("ppo", config, None)
    notices = {line for line in caplog.messages if "there is no CUDA device here" in line}
    assert len(notices) == (setting != computed)
    assert all(line.startswith("note: trainer.precision=bf16: ") for line in notices)
    with open_run("ppo", config, None, {}) as run:
        run.start(0)
    info = json.loads((tmp_path / "run.json").read_text())
    assert (info["precision"], info["config"]["trainer"]["precision"]) == (computed, setting)
    assert Evidence(RunFolder(tmp_path)).in_float32 == (computed == "32")


def test_a_run_of_before_precision_was_recorded_is_read_by_its_setting(tmp_path):
    config = compose("ppo", [f"exp_manager.explicit_log_dir={tmp_path}", "trainer.precision=bf16"])
    with open_run("ppo", config, None, {}) as run:
        run.start(0)
    file = tmp_path / "run.json"
    info = json.loads(file.read_text())
    del info["precision"]
    file.write_text(json.dumps(info))
    assert not Evidence(RunFolder(tmp_path)).in_float32


@pytest.mark.parametrize("remote", [False, True])
def test_a_critic_in_the_actors_job_is_named_and_a_remote_one_is_not(monkeypatch, caplog, remote):
    monkeypatch.setattr(cpu, "HAS_CUDA", False)
    monkeypatch.setattr("aligner_lib.jobs.runtime.OURS.propagate", True)
    elsewhere = ["remote_critic_rm.critic.ip=localhost"] if remote else []
    config = compose("ppo", ["trainer.precision=32", "critic.trainer.precision=bf16", *elsewhere])
    with caplog.at_level("INFO", "aligner_lib"):
        log_notices("ppo", config, None)
    notices = {line for line in caplog.messages if "there is no CUDA device here" in line}
    assert len(notices) == (not remote)
    assert all(line.startswith("note: critic.trainer.precision=bf16: ") for line in notices)
