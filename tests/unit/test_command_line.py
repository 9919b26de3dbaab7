"""Command lines: values in the grammar of overrides, layouts from resources, PPO as one job or two."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aligner_lib.config.compose import parse_override, written
from aligner_lib.errors import ConfigError
from aligner_lib.jobs.command_line import job_commands
from cluster import Resources

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp")), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | TEXT
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.sampled_from("ab"), SCALARS)


@given(VALUES)
def test_a_written_value_is_read_as_itself(value):
    assert parse_override(f"key={written(value)}") == ("key", value)


def test_quotes_stand_only_where_they_are_needed():
    texts = {"/runs/lr=1": "'/runs/lr=1'", "null": "'null'", "it's": r"'it\'s'"}
    assert {value: written(value) for value in texts} == texts
    assert written(Path("/runs/sft-1")) == written("/runs/sft-1") == "/runs/sft-1"
    assert written({"train": ["/a.jsonl"]}) == "{train: [/a.jsonl]}"
    rubric = {"Right, short (or: both = fine).": 2}
    assert parse_override(f"key={written(rubric)}") == ("key", rubric)
    with pytest.raises(ConfigError, match="write a rubric as a list"):
        parse_override("key=" + written({"The answer's tone.": 2}))


def test_the_number_of_processes_comes_from_the_resources():
    share = Resources(nodes=2, gpus_per_node=4)
    (words,) = job_commands("sft", "/runs/sft", {"model.seed": 7}, {"main": share}).values()
    assert words[:6] == [sys.executable, "-m", "aligner_lib", "sft", "--run", "/runs/sft"]
    assert words[6:] == ["trainer.num_nodes=2", "trainer.devices=4", "model.seed=7"]
    (words,) = job_commands("ppo", "/runs/ppo", {}, {"main": Resources(tasks_per_node=2)}).values()
    assert words[6:] == ["trainer.num_nodes=1", "trainer.devices=2"]  # the critic is in the same processes
    (words,) = job_commands("sft", "/runs/sft", {}, None, "smoke").values()
    assert words[4:] == ["--profile", "smoke", "--run", "/runs/sft"]


def test_ppo_and_grpo_on_two_components_are_two_jobs():
    resources = {"critic": Resources(nodes=2, gpus_per_node=8), "actor": Resources(gpus_per_node=8)}
    settings = {"model.optim.lr": 1e-6, "critic.pretrained_checkpoint.restore_from_path": "/runs/rm"}
    commands = job_commands("ppo", "/runs/ppo", settings, resources)
    whole = {"model.optim.lr": 1e-6, "critic.pretrained_checkpoint": {"restore_from_path": "/runs/rm"}}
    assert job_commands("ppo", "/runs/ppo", whole, resources)["actor"] == commands["actor"]
    here = "trainer.num_nodes=1 trainer.devices=8"
    assert {name: " ".join(words[3:]) for name, words in commands.items()} == {
        "critic": "serve-critic --run /runs/ppo/critic trainer.num_nodes=2 trainer.devices=8 "
        "pretrained_checkpoint.restore_from_path=/runs/rm trainer.ppo.port=0",
        "actor": f"ppo --run /runs/ppo {here} remote_critic_rm.critic.run=/runs/ppo/critic model.optim.lr=1e-06",
    }
    resources = {"reward_model": Resources(gpus_per_node=1), "actor": Resources(gpus_per_node=8)}
    settings = {"reward_model.rm_model_file": "/runs/rm", "reward_model.inference.port": 7777}
    settings |= {"model.environments.hh.use": "reward_model"}
    commands = job_commands("grpo", "/runs/grpo", settings, resources)
    server = "/runs/grpo/reward_model"
    assert {name: " ".join(words[3:]) for name, words in commands.items()} == {
        "reward_model": f"serve-rm --run {server} trainer.num_nodes=1 trainer.devices=1 rm_model_file=/runs/rm "
        "inference.port=7777",
        "actor": f"grpo --run /runs/grpo {here} remote_rm.run={server} model.environments.hh.use=reward_model",
    }


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("sft", {"trainer.devices": 4}, "2 × 8 processes, but trainer.devices=4: .* with tasks_per_node=4"),
        ("sft", {"trainer.num_nodes": 1, "trainer.devices": 8}, "trainer.num_nodes=1: .* with nodes=1"),
        ("ppo", {"critic.trainer.devices": 2}, "1 × 1 processes, but critic.trainer.devices=2: .* with tasks_per_node=2"),
    ],
)  # fmt: skip
def test_settings_that_contradict_the_resources_are_refused(kind, settings, words):
    large = Resources(nodes=2, gpus_per_node=8)
    shares = {"main": large} if kind == "sft" else {"actor": large, "critic": Resources()}  # in any order
    with pytest.raises(ConfigError, match=words):
        job_commands(kind, "/runs/x", settings, shares)


def test_components_without_a_model_or_without_use_are_refused():
    judge, model = {"model.environments.hh.use": "reward_model"}, {"reward_model.rm_model_file": "/runs/rm"}
    shares = {"reward_model": Resources(), "actor": Resources()}
    for own in ({}, {"reward_model.rm_model_file": None}, {"reward_model.rm_model_file": ""}):
        with pytest.raises(
            ConfigError, match=r"^reward_model\.rm_model_file has no value, .*: name a run folder"
        ):
            job_commands("grpo", "/runs/x", judge | own, shares, "smoke")
    with pytest.raises(ConfigError, match=r"programs judge, and no reward model does; choose .* one_node"):
        job_commands("grpo", "/runs/x", model, shares, "smoke")


def test_unknown_components_and_settings_are_refused():
    with pytest.raises(ValueError, match="sft has no components"):
        job_commands("sft", "/runs/sft", {}, {"critic": Resources(), "actor": Resources()})
    with pytest.raises(ConfigError, match="did you mean"):
        job_commands("sft", "/runs/sft", {"model.optim.lrate": 1})
