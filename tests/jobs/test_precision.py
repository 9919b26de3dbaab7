"""trainer.precision: bf16 where the machine has units for it, else float32; the job says so, and run.json records it."""

import logging
from types import SimpleNamespace

import pytest
import torch

from aligner_lib.config.compose import compose
from aligner_lib.jobs.runtime import OURS, choose_precision, log_notices, open_run
from aligner_lib.megatron import cpu, precision
from aligner_lib.run_folder.explain.evidence import Evidence
from aligner_lib.run_folder.reader import RunFolder

WITHOUT_UNITS = "this machine has neither a GPU nor a CPU with units for bf16"


@pytest.fixture
def machine(monkeypatch):
    """Lets the job run on a machine with a GPU or none, and with units for bf16 or none."""

    def set_up(has_cuda: bool, has_units: bool) -> None:
        monkeypatch.setattr(cpu, "HAS_CUDA", has_cuda)
        monkeypatch.setattr(precision, "has_bf16_units", lambda: has_units)

    return set_up


@pytest.fixture
def logged():
    """The library's log lines. An earlier job of the process may have cut off caplog's handler, which is at the root."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    before = OURS.level
    OURS.addHandler(handler)
    OURS.setLevel(logging.INFO)
    yield lines
    OURS.removeHandler(handler)
    OURS.setLevel(before)


def job_in(folder, precision_setting: str, *more: str):
    """A PPO job's settings in a run folder."""
    return compose(
        "ppo", [f"exp_manager.explicit_log_dir={folder}", f"trainer.precision={precision_setting}", *more]
    )


def begin(config) -> None:
    with open_run("ppo", config, None, {}) as run:
        run.start(0)
        (run.path / "checkpoints" / "step_000001").mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize(
    ("setting", "has_cuda", "has_units", "computed"),
    [
        ("bf16", False, False, "32"),
        ("bf16", False, True, "bf16"),
        ("bf16", True, False, "bf16"),  # a GPU computes it in any case
        ("32", True, True, "32"),
    ],
)
def test_a_job_says_and_records_the_precision_of_its_machine(
    tmp_path, machine, logged, setting, has_cuda, has_units, computed
):
    machine(has_cuda, has_units)
    config = job_in(tmp_path, setting, "critic.trainer.precision=32")
    log_notices("ppo", config, None)
    notices = [line for line in logged if WITHOUT_UNITS in line]
    assert len(notices) == (setting != computed)
    assert all(line.startswith("note: trainer.precision=bf16: ") for line in notices)
    begin(config)
    info = RunFolder(tmp_path).info
    assert (info["precision"], info["config"]["trainer"]["precision"]) == (computed, setting)
    assert Evidence(RunFolder(tmp_path)).in_float32 == (computed == "32")


@pytest.mark.parametrize(
    ("has_cuda", "has_units", "seconds", "computed", "why"),
    [
        (False, False, {}, "32", "neither a GPU nor a CPU with units for bf16 is here"),
        (True, True, {}, "bf16", "as there is a GPU"),
        (False, True, {"bf16": 0.0012, "32": 0.001}, "bf16", "1.2 ms in bf16 and 1.0 ms in float32 here"),
        (False, True, {"bf16": 0.004, "32": 0.001}, "32", "4.0 ms in bf16 and 1.0 ms in float32 here"),
    ],
)
def test_auto_takes_the_faster_precision_says_why_and_keeps_it_in_a_resumed_run(
    tmp_path, machine, monkeypatch, logged, has_cuda, has_units, seconds, computed, why
):
    machine(has_cuda, has_units)
    monkeypatch.setattr(precision, "probe", lambda: seconds)
    config, resumed = (job_in(tmp_path, "auto", "critic.trainer.precision=auto") for _ in range(2))
    choose_precision("ppo", config)
    choice = "trainer.precision=auto, critic.trainer.precision=auto: "
    [line] = [message for message in logged if message.startswith(choice)]
    assert why in line
    assert config.trainer.precision == config.critic.trainer.precision == computed
    begin(config)
    assert RunFolder(tmp_path).info["precision"] == computed
    monkeypatch.setattr(precision, "faster_precision", lambda: {"bf16": "32", "32": "bf16"}[computed])
    choose_precision("ppo", resumed)
    assert resumed.trainer.precision == computed


def test_auto_on_a_machine_without_the_units_of_the_run_s_begin_warns_and_a_run_begun_anew_does_not(
    tmp_path, machine, logged
):
    machine(has_cuda=True, has_units=True)
    begin(job_in(tmp_path, "bf16"))
    machine(has_cuda=False, has_units=False)
    for more, warned in (((), True), (("exp_manager.resume_if_exists=False",), False)):
        logged.clear()
        config = job_in(tmp_path, "auto", *more)
        choose_precision("ppo", config)
        assert config.trainer.precision == "32" and "float32, since neither" in logged[-1]
        assert ["this run began in bf16" in line for line in logged[:-1]] == [True] * warned
    (tmp_path / "checkpoints" / "step_000001").rmdir()
    logged.clear()
    choose_precision("ppo", job_in(tmp_path, "auto"))
    assert not any("this run began" in line for line in logged), "without a checkpoint the run begins anew"


def test_the_probe_times_both_precisions_in_turn_so_that_a_busy_machine_slows_down_both(monkeypatch):
    clock, rounds = [0.0], []

    def layer_like(dtype):
        def compute():
            rounds.append(dtype)
            clock[0] += {torch.bfloat16: 1.0, torch.float32: 2.0}[dtype]

        return compute

    monkeypatch.setattr(precision, "_layer_like", layer_like)
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert precision.probe.__wrapped__() == {"bf16": 1.0, "32": 2.0}
    assert rounds == [torch.bfloat16, torch.float32] * (1 + precision.FEWEST_ROUNDS)


@pytest.mark.parametrize("remote", [False, True])
def test_a_critic_in_the_actors_job_is_named_and_a_remote_one_is_not(tmp_path, machine, logged, remote):
    machine(has_cuda=False, has_units=False)
    elsewhere = ["remote_critic_rm.critic.ip=localhost"] if remote else []
    log_notices("ppo", job_in(tmp_path, "32", "critic.trainer.precision=bf16", *elsewhere), None)
    notices = [line for line in logged if WITHOUT_UNITS in line]
    assert len(notices) == (not remote)
    assert all(line.startswith("note: critic.trainer.precision=bf16: ") for line in notices)
