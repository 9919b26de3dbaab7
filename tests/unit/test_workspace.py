"""What a notebook's cell becomes: commands with the profile's files, on any resources."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from aligner_lib.config.compose import compose, save
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.tutorial import Workspace, require_count, require_one_of
from aligner_lib.tutorial.workspace.earlier_runs import RequestedRun, _other_jobs
from cluster import Resources, RunBusy, State, record
from cluster.record import Record
from data.forms import instruction_in

FOUR = {f"model.data.{name}_ds.micro_batch_size": 4 for name in ("train", "validation")}
SFT_OF_12_STEPS = {
    "kind": "sft",
    "profile": "smoke",
    "config": save(compose("sft", ["trainer.sft.max_steps=12"], "smoke")),
    "heartbeat": {"time": 0, "step": 12},
}


def no_job(*_):
    pytest.fail("another job is submitted")


@pytest.fixture
def lab(smoke, tmp_path, capsys) -> Workspace:
    return Workspace(tmp_path, "smoke", where="print")


def make_checkpoint(run) -> None:
    (run / "checkpoints" / "step_000001").mkdir(parents=True)


def write_info(folder, **info) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(info))


@pytest.fixture
def a_job_is_running(monkeypatch):
    """Each run folder has a running job from its first submission on."""
    commands = {}

    def submit(of_components, run, *_):
        if run in commands:
            raise RunBusy("it already has a job, RUNNING")
        commands[run] = of_components

    def submit_sweep(*_, parallel):
        raise RunBusy("it already has a job, RUNNING")

    def attach(run):
        record = SimpleNamespace(components=commands.get(run))
        return SimpleNamespace(run=run, record=record, state=State.FINISHED)

    monkeypatch.setattr("cluster.submit", submit)
    monkeypatch.setattr("cluster.submit_sweep", submit_sweep)
    monkeypatch.setattr("cluster.sweep.Job", SimpleNamespace(attach=lambda run: f"the job of {run.name}"))
    monkeypatch.setattr("cluster.Job", SimpleNamespace(attach=attach))


def test_a_run_on_more_nodes_differs_in_its_resources_alone(lab):
    small = lab.submit("sft", **FOUR)
    large = lab.submit("sft", resources=Resources(nodes=2, tasks_per_node=2), **FOUR)
    assert (small.nodes, large.nodes, small.wait()) == (1, 2, None)
    changed = {line.strip(" \\") for line in set(large.text.splitlines()) - set(small.text.splitlines())}
    assert {"trainer.num_nodes=2", "trainer.devices=2", "#SBATCH --nodes=2"} <= changed
    assert not any("data" in line or "model" in line.split("=")[0] for line in changed)
    refused = "model.data.{}_ds.global_batch_size=16 .*: set a multiple of 32, or .*=8"
    with pytest.raises(ConfigError, match="; ".join(map(refused.format, ("train", "validation")))):
        lab.submit("sft", resources=Resources(nodes=2))


def test_own_data_need_no_download_and_hold_out_their_own_validation_data(tmp_path):
    """The profile `slurm` has its data from the hub, which this machine can't reach."""
    lab, own = Workspace(tmp_path, "slurm", where="print"), str(tmp_path / "own.jsonl")
    model = {"model.restore_from_path": str(tmp_path)}
    words = lab.commands("sft", **model, **{"model.data.train_ds.file_path": own})["main"]
    assert f"model.data.train_ds.file_path={own}" in words
    assert not any("validation_ds" in word for word in words)
    model = {"pretrained_checkpoint.restore_from_path": str(tmp_path)}
    words = lab.commands("rm", **model, **{"model.data.data_prefix": {"train": [own]}})["main"]
    assert any(own in word for word in words) and not (tmp_path / "data").exists()
    lab = Workspace(tmp_path / "smoke", "smoke", where="print")
    words = lab.commands("rm", **model, **{"model.data.data_prefix": {"validation": [own]}})["main"]
    keys = [word.partition("=")[0] for word in words if "data_prefix" in word]
    assert keys == ["model.data.data_prefix.train", "model.data.data_prefix"]
    models = model | {f"critic.{key}": value for key, value in model.items()}
    words = lab.commands("ppo", **models, **{"model.environments": {"sums": {}}})["main"]
    assert not any("data_prefix" in word for word in words)  # the prompts come from the environment


def test_without_resources_a_job_has_the_processes_and_gpus_of_its_profile(tmp_path, capsys, monkeypatch):
    """`slurm` trains on 8 GPUs, `gpu` on 1 and PPO on 2, `smoke` on none."""

    def lab(profile: str) -> Workspace:
        return Workspace(tmp_path, profile, where="print")

    sft = {"model.restore_from_path": "/m", "model.data.train_ds.file_path": "/d"}
    ppo = {f"{part}pretrained_checkpoint.restore_from_path": "/m" for part in ("", "critic.")}
    ppo |= {"model.data.data_prefix": {"train": ["/d"]}}
    for profile, kind, settings, gpus in (
        ("slurm", "sft", sft, 8),
        ("slurm", "sft", sft | {"trainer.devices": 4}, 4),
        ("gpu", "ppo", ppo, 2),
    ):
        plan = lab(profile).submit(kind, **settings)
        assert plan.gpus == gpus and f"#SBATCH --ntasks-per-node={gpus}\n" in plan.text
        assert f"trainer.devices={gpus}" in plan.text
    plan = lab("slurm").submit_ppo("remote", **ppo)
    assert plan.gpus == 16 and plan.text.count("#SBATCH --gres=gpu:8\n") == 2
    here = Workspace(tmp_path, "gpu", where="print:local")
    for visible, gpus in (("0,1,2", ["0,1", "0,1", "2"]), ("0,1", []), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        plan = here.submit_ppo("remote", **ppo, **{"critic.trainer.devices": 2})
        assert re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", plan.text) == gpus, (
            "two processes of the critic, one of the actor"
        )
    plan = lab("smoke").submit("sft", **{"trainer.devices": 2}, **FOUR)
    assert plan.gpus == 0 and "#SBATCH --ntasks-per-node=2\n" in plan.text
    config = save(compose("sft", profile="slurm"))
    write_info(tmp_path / "runs" / "sft", kind="sft", profile="slurm", config=config)
    plan = lab("slurm").branch("sft", at=4)
    assert plan.gpus == 8 and "#SBATCH --ntasks-per-node=1\n" in plan.text


def test_two_jobs_on_this_machine_need_pytriton_before_either_job_starts(smoke, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"PyTriton is not installed, so .* or train PPO as one job"):
        Workspace(tmp_path, "smoke").submit_ppo("remote")
    assert not (tmp_path / "runs").exists()


def test_a_sweep_has_a_run_for_each_value(lab):
    plan = lab.submit_sweep("sft", "model.optim.lr", [1e-3, 3e-3], parallel=1)
    assert "#SBATCH --array=0-1%1\n" in plan.text
    for value in ("0.001", "0.003"):
        assert f"--run {lab.out}/runs/sft-lr/lr-{value}" in plan.text
        assert f"model.optim.lr={value}" in plan.text
    with pytest.raises(ValueError, match=r"model\.optim\.lr=1e-05 occurs twice in the values"):
        lab.submit_sweep("sft", "model.optim.lr", [1e-5, 0.00001])
    with pytest.raises(ValueError, match="components critic, actor, but Slurm has no arrays"):
        lab.submit_sweep("ppo", "model.optim.lr", [1e-3], {"critic": Resources(), "actor": Resources()})


def test_a_site_s_values_hold_for_the_resources_of_every_job(smoke, tmp_path, capsys):
    site = {"account": "course", "sbatch": {"reservation": "tuesday"}}
    lab = Workspace(tmp_path, "smoke", where="print", site=site | {"partition": "batch"})
    share = Resources(partition="gpu", sbatch={"hold": True})
    text = lab.submit("sft", resources=share, **FOUR).text
    for flag in ("account=course", "reservation=tuesday", "partition=gpu", "hold"):
        assert f"#SBATCH --{flag}\n" in text
    write_info(lab.run("sft").path, **SFT_OF_12_STEPS)
    plans = (
        lab.submit_ppo("remote"),
        lab.branch("sft", at=4),
        lab.submit_sweep("rm", "model.optim.lr", [1, 2]),
    )
    assert [plan.text.count("--account=course\n") for plan in plans] == [2, 1, 1]


def test_a_branch_names_its_parent_and_changes(lab):
    folder = lab.run("sft").path
    write_info(folder, **SFT_OF_12_STEPS)
    plan = lab.branch("sft", at=4, **{"model.optim.lr": 0.5})
    assert f"branch {folder}" in plan.text.replace(" \\\n", " ").replace("    ", " ")
    assert f"--run {lab.out}/runs/sft-at-4-lr-0.5" in plan.text and "model.optim.lr=0.5" in plan.text
    assert "max_steps" not in plan.text, "the job reads its parent's settings"
    assert f"{lab.out}/runs/other" in lab.branch("sft", at=4, name="other").text
    two_gpus = Resources(gpus_per_node=2, tasks_per_node=1, partition="gpu", python="/there/python")
    text = lab.branch("sft", at=4, resources=two_gpus).text
    for flag in ("gres=gpu:2", "ntasks-per-node=1", "partition=gpu"):
        assert f"#SBATCH --{flag}\n" in text
    assert "/there/python -m aligner_lib branch" in text
    with pytest.raises(ValueError, match="ask for 2 tasks, but a branch is one task"):
        lab.branch("sft", at=4, resources=two_gpus.but(tasks_per_node=2))
    with pytest.raises(ConfigError, match="stpes"):
        lab.branch("sft", at=4, **{"trainer.sft.max_stpes": 3})
    with pytest.raises(UserError, match=r"would train .*other from step 0"):
        lab.branch("sft", at=4, name="other", **{"exp_manager.resume_if_exists": False})
    write_info(folder.parent / "tried" / "one", **SFT_OF_12_STEPS)
    plan = lab.branch(lab.run("tried/one"), at=4, **{"model.optim.lr": 0.5})
    assert f"--run {lab.out}/runs/tried/one-at-4-lr-0.5" in plan.text


def test_a_finished_branch_with_other_settings_is_set_aside(tmp_path, monkeypatch, capsys):
    lab, submitted = Workspace(tmp_path, "smoke"), []
    parent = {"run": str(lab.run("sft").path), "name": "sft", "step": 4, "created": None}
    finished = SFT_OF_12_STEPS | {"status": "finished"}
    for name, info in (("sft", SFT_OF_12_STEPS), ("b", finished | {"parent": parent}), ("own", finished)):
        write_info(lab.run(name).path, **info)
    monkeypatch.setattr("cluster.submit", lambda commands, run, *_: submitted.append(run.name))
    Workspace(tmp_path, "smoke", where="print:slurm").branch("sft", 4, "b", **{"model.seed": 8})
    for name, settings, is_kept in (
        ("b", {}, True),  # and after a printed branch with another seed
        ("own", {"model.seed": 7}, True),
        ("b", {"model.seed": 7}, False),
    ):
        lab.branch("sft", 4, name, **settings)
        assert submitted.pop() == name
        folder = lab.run(name).path
        assert (folder / "run.json").exists() == is_kept != (folder / "old-1").exists()
    assert "b was finished with other settings (model.seed 1234 → 7)" in capsys.readouterr().out
    write_info(lab.run("sft").path, **SFT_OF_12_STEPS, recorded={"commit": "", "seconds": 1})
    with pytest.raises(UserError, match=r"sft is a recorded run, .* can't be continued"):
        lab.branch("sft", 4, "c")


def losses(logprobs):
    return -logprobs


def test_a_cell_that_is_run_again_follows_its_running_job(
    a_job_is_running, smoke, tmp_path, monkeypatch, capsys
):
    """After a restart of the kernel; the message of a monitor that lost its kernel asks for it."""
    lab = Workspace(tmp_path, "smoke")
    for _ in range(2):
        job = lab.submit("sft", **{"model.seed": 7})
    assert job.run == lab.run("sft").path
    assert "sft is still running, and this cell follows it" in capsys.readouterr().out
    for settings, change in (
        ({"model.seed": 99}, r"model\.seed 7 → 99"),
        ({"model.seed": 7, "trainer.sft.max_steps": 999}, r"trainer\.sft\.max_steps \d+ → 999"),
        ({"model.seed": 7, "loss": losses}, r"functions\.loss"),
    ):
        with pytest.raises(
            RunBusy, match=rf"sft is still running, and this cell asks for .* \({change}\): wait"
        ):
            lab.submit("sft", **settings)
    (lab.run("sft").path / "functions" / "loss.py").write_text("the running job's")
    with monkeypatch.context() as context:
        context.setattr("cluster.submission.refuse_if_busy", Mock(side_effect=RunBusy("a job")))
        with pytest.raises(RunBusy, match=r"sft is still running, with other code for functions\.loss"):
            lab.submit("sft", loss=losses)
    write_info(lab.run("sft").path, **SFT_OF_12_STEPS)
    for _ in range(2):
        job = lab.branch("sft", 4, "b", **{"model.optim.lr": 0.5})
    assert job.run == lab.run("b").path
    with pytest.raises(
        RunBusy,
        match=r"b is still running, .* --at 4 → branch .* --at 6, model\.optim\.lr 0\.5 → 0\.1\): wait",
    ):
        lab.branch("sft", 6, "b", **{"model.optim.lr": 0.1})
    with pytest.raises(RunBusy):
        lab.submit_sweep("sft", "model.optim.lr", [1, 2])  # the member's job is not a sweep's
    (lab.run("sft-lr").path / "job").mkdir(parents=True)
    (lab.run("sft-lr").path / "job" / "sweep.json").write_text('{"members": ["lr-1"]}')
    assert lab.submit_sweep("sft", "model.optim.lr", [1, 2]).jobs == {"lr-1": "the job of lr-1"}


def test_a_cell_that_is_run_again_while_the_scheduler_is_silent_starts_no_second_job(smoke, tmp_path):
    lab = Workspace(tmp_path, "smoke")
    (lab.run("sft").path / "job").mkdir(parents=True)
    job = Record("local", "1", "sft", "job/001", {"main": ["true"]}, host="elsewhere")
    record.write(lab.run("sft").path, job)
    cure = (
        r"a job, UNKNOWN \(local 1: it was started on elsewhere, .*\): .*, remove .*/runs/sft/job/job\.json"
    )
    with pytest.raises(RunBusy, match=cure):
        lab.submit("sft", **FOUR)


def test_a_finished_ppo_begins_anew_with_its_critic_in_another_job(tmp_path):
    run = Workspace(tmp_path, "smoke").run("ppo")
    write_info(run.path, kind="ppo")
    commands = {"main": ["aligner", "ppo", "--run", str(run.path)]}
    whole = RequestedRun(commands, "smoke", {})
    commands = commands | {"critic": ["aligner", "serve-critic", "--run", str(run.path / "critic")]}
    split = RequestedRun(commands, "smoke", {})
    assert (_other_jobs(run, whole), _other_jobs(run, split)) == ([], ["critic"])
    (run.path / "critic").mkdir()
    assert (_other_jobs(run, whole), _other_jobs(run, split)) == (["critic"], [])


@pytest.mark.parametrize(("profile", "has_forms"), [("smoke", False), ("laptop", True)])
def test_the_sample_is_the_profile_s(tmp_path, capsys, profile, has_forms):
    """A random model can't read an instruction: smoke's pairs are of manners."""
    files = Workspace(tmp_path, profile).conversations()["model.environments.conversations.args.prompts"]
    first = json.loads(Path(files["validation"]).read_text().splitlines()[0])["text"]
    assert bool(instruction_in(first)) == has_forms


def test_another_data_set_or_an_edited_file_is_formatted_anew(tmp_path, capsys):
    sample = Workspace(tmp_path, "smoke").sft_data() / "train.jsonl"
    written = sample.stat().st_mtime_ns
    assert Workspace(tmp_path, "smoke").sft_data() / "train.jsonl" == sample
    assert sample.stat().st_mtime_ns == written
    own = tmp_path / "own.jsonl"
    record = {"instruction": "Say A.", "context": "", "response": "A.", "category": "qa"}
    own.write_text("".join(json.dumps(record | {"context": f"number {i}"}) + "\n" for i in range(40)))
    Workspace(tmp_path, "smoke", dataset=str(own)).sft_data()
    assert "Say A." in sample.read_text()
    own.write_text(own.read_text().replace("Say A.", "Say B."))
    Workspace(tmp_path, "smoke", dataset=str(own)).sft_data()
    assert "Say B." in sample.read_text()
    own.unlink()  # the formatted files are enough
    Workspace(tmp_path, "smoke", dataset=str(own)).sft_data()
    Workspace(tmp_path, "smoke").sft_data()
    assert "Say B." not in sample.read_text()


@pytest.mark.parametrize(
    ("model", "kind", "name"), [("reward_model", "rm", "reward model"), ("ppo_policy", "ppo", "PPO run")]
)
def test_a_missing_run_is_trained_with_a_message(tmp_path, monkeypatch, capsys, model, kind, name):
    submitted = []
    job = SimpleNamespace(wait=lambda: submitted.append("waited for"))
    monkeypatch.setattr(Workspace, "submit", lambda self, *what: submitted.append(what) or job)
    lab = Workspace(tmp_path, "smoke")
    assert getattr(lab, model)() == lab.run(kind).path and submitted == [(kind,), "waited for"]
    assert f"there is no {name}" in capsys.readouterr().out
    make_checkpoint(lab.run(kind).path)
    monkeypatch.setattr(Workspace, "submit", no_job)
    assert getattr(lab, model)() == lab.run(kind).path and capsys.readouterr().out == ""


def test_a_missing_run_is_not_trained_where_scripts_are_only_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(Workspace, "submit", no_job)
    lab = Workspace(tmp_path, "smoke", where="print")
    assert lab.ppo_policy() == lab.run("ppo").path


@pytest.mark.parametrize("status", ["stopped", "failed"])
def test_an_unfinished_run_is_used_with_a_note_and_leaves_no_results(tmp_path, capsys, status):
    lab, results = Workspace(tmp_path, "smoke"), tmp_path / "results" / "04.json"
    make_checkpoint(lab.run("rm").path)
    write_info(lab.run("rm").path, status=status, heartbeat={"time": 0, "step": 3}, max_steps=12)
    assert lab.reward_model() == lab.reward_model() == lab.run("rm").path
    stands = f"rm is unfinished ({status} after step 3 of 12), so"
    note = (
        f"note: {stands} its checkpoint of step 1 takes its place: run notebook 04 again to finish the run\n"
    )
    assert capsys.readouterr().out == note
    lab.record("02", {"rm": {"best_baseline": 0.5}})  # before the training
    lab.record("04", {"rm": {"val_acc": 0.5}})
    assert f"{stands} nothing is recorded: finish the run in notebook 04" in capsys.readouterr().out
    assert results.with_stem("02").exists() and not results.exists()
    write_info(lab.run("rm").path, status="finished")
    lab.record("04", {"rm": {"val_acc": 0.5}})
    assert results.exists() and lab.reward_model() and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("parameter", "value", "cure"),
    [
        ("out", "", r"name the folder for all output, such as out=\"runs/tutorial\""),
        ("out", 7, "name the folder"),
        ("lora", "false", "write True or False"),
        ("start", "late", "choose fresh or recorded"),
        ("change", "no_kl", "choose no-kl, high-lr or both"),
        ("prompts", 0, "write a whole number, at least 1"),
        ("prompts", "2.5", "write a whole number, at least 1"),
    ],
)
def test_a_notebook_s_parameter_with_an_unknown_value_is_refused(tmp_path, parameter, value, cure):
    with pytest.raises(ValueError, match=f"^{parameter}={value!r}: {cure}"):
        if parameter == "change":
            require_one_of(parameter, value, "no-kl", "high-lr", "both")
        elif parameter == "prompts":
            require_count(parameter, value)
        else:
            Workspace(**{"out": tmp_path, "profile": "smoke"} | {parameter: value})
    assert require_count("generations", "2") == 2


def test_a_run_of_another_profile_is_refused(tmp_path):
    run = tmp_path / "runs" / "sft"
    make_checkpoint(run)
    write_info(run, profile="smoke")
    assert Workspace(tmp_path, "smoke").policy() == run
    words = "runs/sft is a run of the profile smoke, but the workspace has the profile laptop: choose"
    with pytest.raises(UserError, match=words):
        Workspace(tmp_path, "laptop").policy()


def test_a_cell_waits_for_the_model_that_is_being_trained(tmp_path, monkeypatch, capsys):
    """Notebook 05, submitted while 04's reward model is trained once more: the old checkpoint is about to be set aside."""
    lab = Workspace(tmp_path, "smoke")
    job = SimpleNamespace(state=State.RUNNING, wait=lambda: make_checkpoint(lab.run("rm").path))
    monkeypatch.setattr("cluster.Job", SimpleNamespace(attach=lambda run: job), raising=False)
    monkeypatch.setattr(Workspace, "submit", no_job)
    assert lab.reward_model() == lab.run("rm").path
    assert "rm is still training. This cell needs its model and waits" in capsys.readouterr().out


NO_CONTROLLER, ONE_NODE = "echo no controller >&2; exit 1", "echo 'batch|2|1:00|(null)|up'"


@pytest.mark.parametrize(("sinfo", "where"), [(None, "local"), (NO_CONTROLLER, "local"), (ONE_NODE, "slurm")])
def test_auto_is_slurm_where_it_answers(tmp_path, monkeypatch, sinfo, where):
    if sinfo is not None:
        for name, line in {"sbatch": "exit 1", "sinfo": sinfo}.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Workspace(tmp_path, "smoke", where="auto").where == where


@pytest.fixture
def lora_commands(smoke, tmp_path, monkeypatch):
    """The words of a job's command in a workspace with LoRA, whose models are the smoke model."""
    for name in ("model", "policy", "reward_model"):
        monkeypatch.setattr(Workspace, name, lambda self: smoke)

    def commands(profile: str, kind: str, **settings) -> list[str]:
        return Workspace(tmp_path, profile, where="print", lora=True).commands(kind, **settings)["main"]

    return commands


def test_with_lora_every_trained_model_has_adapters_and_ten_times_the_rate(lora_commands, smoke, capsys):
    """A rate in the cell is kept."""
    words = lora_commands("smoke", "ppo", **{"critic.model.optim.lr": 1e-4})
    for prefix in ("", "critic."):
        assert f"{prefix}model.peft.peft_scheme=lora" in words
        assert f"{prefix}model.peft.lora_tuning.target_modules=[all]" in words
    assert "model.optim.lr=0.01" in words and "critic.model.optim.lr=0.0001" in words
    words = lora_commands("smoke", "evaluate", **{"policy.restore_from_path": smoke})
    assert not any("peft" in word for word in words)


def test_with_lora_a_critic_of_the_last_layers_has_three_times_the_rate(lora_commands):
    """The last layers alone have about three times the rate of all layers already, and adapters sit in all of them."""
    words, usual = lora_commands("laptop", "ppo"), compose("ppo", profile="laptop")
    assert usual.critic.model.num_layers_unfrozen and "num_layers_unfrozen" not in usual.model
    assert f"model.optim.lr={10 * usual.model.optim.lr:g}" in words
    assert f"critic.model.optim.lr={3 * usual.critic.model.optim.lr:g}" in words
