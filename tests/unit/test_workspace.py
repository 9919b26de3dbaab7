"""What a notebook's cell becomes: commands with the profile's files, on any resources."""

import json
from types import SimpleNamespace

import pytest

from aligner_lib.config.compose import compose, save
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.tutorial import Workspace
from cluster import Resources, RunBusy, State
from data.forms import instruction_in

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


def sft_run(lab: Workspace) -> None:
    """A run's file, as a finished SFT job of the profile leaves it."""
    folder = lab.run("sft").path
    folder.mkdir(parents=True)
    config = save(compose("sft", ["trainer.sft.max_steps=12"], "smoke"))
    info = {"kind": "sft", "profile": "smoke", "config": config, "heartbeat": {"time": 0, "step": 12}}
    (folder / "run.json").write_text(json.dumps(info))


def test_a_branch_is_one_job_with_the_parent_the_fork_and_the_changes(lab):
    sft_run(lab)
    plan = lab.branch("sft", at=4, **{"model.optim.lr": 0.5})
    assert f"branch {lab.run('sft').path}" in plan.text.replace(" \\\n", " ").replace("    ", " ")
    assert f"--run {lab.out}/runs/sft-at-4-lr-0.5" in plan.text and "model.optim.lr=0.5" in plan.text
    assert "max_steps" not in plan.text, "the job reads its parent's settings"
    assert f"{lab.out}/runs/other" in lab.branch("sft", at=4, name="other").text
    with pytest.raises(ConfigError, match="stpes"):
        lab.branch("sft", at=4, **{"trainer.sft.max_stpes": 3})


def test_the_sample_is_the_profiles(tmp_path, capsys):
    """A random model can't read an instruction: smoke's pairs are of manners."""
    prompts = {}
    for profile in ("smoke", "laptop"):
        lab = Workspace(tmp_path / profile, profile)
        folder = lab.preference_data()
        prompts[profile] = json.loads((folder / "test_prompts.jsonl").read_text().splitlines()[0])["text"]
        files = lab.conversations()["model.environments.conversations.args.prompts"]
        assert files["validation"] == str(folder / "test_prompts.jsonl")
    assert instruction_in(prompts["laptop"]) and not instruction_in(prompts["smoke"])


def test_another_data_set_is_formatted_anew(tmp_path, capsys):
    sample = Workspace(tmp_path, "smoke").sft_data() / "train.jsonl"
    written = sample.stat().st_mtime_ns
    assert Workspace(tmp_path, "smoke").sft_data() / "train.jsonl" == sample
    assert sample.stat().st_mtime_ns == written
    own = tmp_path / "own.jsonl"
    record = {"instruction": "Say A.", "context": "", "response": "A.", "category": "qa"}
    own.write_text("".join(json.dumps(record | {"context": f"number {i}"}) + "\n" for i in range(40)))
    Workspace(tmp_path, "smoke", dataset=str(own)).sft_data()
    assert "Say A." in sample.read_text()
    Workspace(tmp_path, "smoke").sft_data()
    assert "Say A." not in sample.read_text()


@pytest.mark.parametrize("kind", ["ppo", "dpo", "grpo"])
def test_a_run_that_is_missing_is_made_up_and_that_is_said(tmp_path, monkeypatch, capsys, kind):
    submitted = []
    job = SimpleNamespace(wait=lambda: submitted.append("waited for"))
    monkeypatch.setattr(Workspace, "submit", lambda self, *what: submitted.append(what) or job)
    lab = Workspace(tmp_path, "smoke")
    assert getattr(lab, f"{kind}_policy")() == tmp_path / "runs" / kind
    assert submitted == [(kind,), "waited for"]
    assert f"there is no {kind.upper()} run" in capsys.readouterr().out


def test_a_reward_model_that_was_trained_in_its_notebook_s_place_is_found_by_the_next_notebook(
    tmp_path, monkeypatch, capsys
):
    def submit(self, kind):
        (self.run(kind).path / "checkpoints" / "step_000001").mkdir(parents=True)
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(Workspace, "submit", submit)
    assert Workspace(tmp_path, "smoke").reward_model() == tmp_path / "runs" / "rm"
    assert "there is no reward model" in capsys.readouterr().out
    monkeypatch.setattr(Workspace, "submit", lambda *_: pytest.fail("another one is trained"))
    assert Workspace(tmp_path, "smoke").reward_model() == tmp_path / "runs" / "rm"
    assert "there is no reward model" not in capsys.readouterr().out


def test_settings_that_ask_for_two_processes_reach_the_command(tmp_path, monkeypatch):
    """Without resources. test_cli shows that such a command starts two processes, and notebook 09 that they train."""
    monkeypatch.setattr("cluster.submit", lambda commands, run, where, allocation: (commands, allocation))
    small = {f"model.data.{split}_ds.micro_batch_size": 4 for split in ("train", "validation")}
    commands, allocation = Workspace(tmp_path, "smoke").submit("sft", **{"trainer.devices": 2} | small)
    assert allocation is None and "trainer.devices=2" in commands["main"]


def test_a_cell_that_is_run_again_follows_the_job_that_still_goes_on(tmp_path, monkeypatch, capsys):
    """After a restart of the kernel; the message of a monitor that lost its kernel asks for it."""

    def busy(*_):
        raise RunBusy("it has a job that is RUNNING")

    job = SimpleNamespace(attach=lambda run: f"the job of {run.name}")
    monkeypatch.setattr("cluster.submit", busy)
    monkeypatch.setattr("cluster.Job", job)
    monkeypatch.setattr(Workspace, "commands", lambda *what, **settings: {})
    assert Workspace(tmp_path, "smoke").submit("sft") == "the job of sft"
    assert "sft is still running with its original settings" in capsys.readouterr().out


def test_another_profile_s_run_is_not_taken_for_this_one_s(tmp_path):
    run = tmp_path / "runs" / "sft"
    (run / "checkpoints" / "step_000001").mkdir(parents=True)
    (run / "run.json").write_text('{"profile": "smoke"}')
    assert Workspace(tmp_path, "smoke").policy() == run
    words = r"runs/sft is a run of the profile smoke, but this workspace has the profile laptop: choose"
    with pytest.raises(UserError, match=words):
        Workspace(tmp_path, "laptop").policy()


def test_what_begins_with_a_model_that_is_being_trained_waits_for_it(tmp_path, monkeypatch, capsys):
    """Notebook 05, submitted while 04's reward model is trained once more: what lies there is about to be set aside."""
    lab = Workspace(tmp_path, "smoke")

    def train():
        (lab.run("rm").path / "checkpoints" / "step_000001").mkdir(parents=True)

    job = SimpleNamespace(state=State.RUNNING, wait=train)
    monkeypatch.setattr("cluster.Job", SimpleNamespace(attach=lambda run: job), raising=False)
    monkeypatch.setattr(Workspace, "submit", lambda *_: pytest.fail("another one is trained"))
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


def test_with_lora_the_last_layers_rate_is_taken_three_times(smoke, tmp_path, monkeypatch):
    """They have about three times the rate of all layers already, and adapters sit in all of them."""
    for name in ("model", "policy", "reward_model"):
        monkeypatch.setattr(Workspace, name, lambda self: smoke)
    lab = Workspace(tmp_path, "laptop", where="print", lora=True)
    words = lab.commands("ppo")["main"]
    usual = compose("ppo", profile="laptop")
    assert usual.critic.model.num_layers_unfrozen and "num_layers_unfrozen" not in usual.model
    assert f"model.optim.lr={10 * usual.model.optim.lr:g}" in words
    assert f"critic.model.optim.lr={3 * usual.critic.model.optim.lr:g}" in words


def test_with_lora_every_model_that_a_job_trains_has_adapters(smoke, tmp_path, monkeypatch, capsys):
    """And ten times the learning rate, unless a cell gives one."""
    monkeypatch.setattr(Workspace, "reward_model", lambda self: smoke)
    lab = Workspace(tmp_path, "smoke", where="print", lora=True)
    words = lab.commands("ppo", **{"critic.model.optim.lr": 1e-4})["main"]
    for prefix in ("", "critic."):
        assert f"{prefix}model.peft.peft_scheme=lora" in words
        assert f"{prefix}model.peft.lora_tuning.target_modules=[all]" in words
    assert "model.optim.lr=0.01" in words
    assert "critic.model.optim.lr=0.0001" in words
    words = lab.commands("evaluate", **{"policy.restore_from_path": smoke})["main"]
    assert not any("peft" in word for word in words)
