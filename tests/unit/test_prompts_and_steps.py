"""How many prompts each environment has in a validation, how many steps a run has, and groups that stay whole."""

import re
from types import SimpleNamespace

import pytest

from aligner_lib.config.compose import compose, load, recorded, save
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.kinds.grpo.settings import rollouts_of_a_step
from aligner_lib.kinds.inputs import steps_of
from aligner_lib.kinds.policy_gradient import build
from aligner_lib.kinds.policy_gradient.settings import comparing_environments
from aligner_lib.rollouts.environments.pool import EnvironmentFailure
from aligner_lib.rollouts.tasks import _shares


@pytest.mark.parametrize(
    ("weights", "count", "shares"),
    [
        ((1, 1), 1, (1, 0)),
        ((1, 0.05), 8, (7, 1)),
        ((1, 1, 1), 128, (43, 43, 42)),
    ],
)
def test_a_validation_s_prompts_are_shared_out_and_none_is_lost(weights, count, shares):
    assert tuple(_shares(dict(enumerate(weights)), count).values()) == shares


def test_an_environment_without_an_end_needs_a_number_of_steps():
    by_epochs = SimpleNamespace(max_steps=-1, max_epochs=2)
    assert steps_of(by_epochs, 1024, 128) == 16 and steps_of(by_epochs, 3, 128) == 1
    assert steps_of(SimpleNamespace(max_steps=3, max_epochs=1), None, 32) == 3
    with pytest.raises(UserError, match="set max_steps"):
        steps_of(by_epochs, None, 32)


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ("max_steps=12", 12),  # three epochs of 64 samples in batches of 16
        ("max_steps=12 max_epochs=1", 4),
        ("max_steps=12 max_epochs=9", 12),
        ("max_epochs=2", 8),
        ("max_steps=-1", 4),
    ],
)
def test_a_run_ends_with_the_first_of_max_steps_and_max_epochs(given, steps, caplog):
    caplog.set_level("INFO")
    config = compose("sft", [f"trainer.sft.{text}" for text in given.split()])
    assert steps_of(config.trainer.sft, 64, 16) == steps
    assert ("max_steps=12 and max_epochs" in caplog.text) == (len(given.split()) == 2)
    assert config == compose("sft", [f"trainer.sft.{text}" for text in given.split()])
    assert load("sft", save(config)) == config


@pytest.mark.parametrize(("length", "max_epochs"), [(12, None), (4, 1)])
def test_max_epochs_in_a_record_is_read_only_if_it_ended_the_run(length, max_epochs):
    config = save(compose("sft", ["trainer.sft.max_steps=12", "trainer.sft.max_epochs=1"]))
    assert recorded({"config": config, "max_steps": length})["trainer"]["sft"]["max_epochs"] == max_epochs


@pytest.mark.parametrize(("objective", "rollouts"), [("rloo", 5), ("reinforce_pp", 1)])
def test_only_groups_that_are_compared_within_are_sampled_again(objective, rollouts):
    settings = [f"model.grpo.objective={objective}", "model.grpo.max_rollouts_per_step=5"]
    assert rollouts_of_a_step(compose("grpo", settings)) == rollouts


COMPARING_JUDGE = """
model.environments={judge:{args:{prompts:p,url:u,model:m,compare:true}},sums:{}}
"""
TWO_RESPONSES_ON_FOUR_DEVICES = """
model.grpo.objective=dapo trainer.devices=4 model.grpo.num_generations_per_prompt=2
model.grpo.num_prompts_per_step=2 model.global_batch_size=4 model.micro_batch_size=1
"""


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (
            "grpo",
            f"{COMPARING_JUDGE} model.grpo.rollout_micro_batch_size=6",
            "compare parts of a group: set model.grpo.rollout_micro_batch_size=6 to a multiple",
        ),
        ("ppo", COMPARING_JUDGE, "set model.ppo.num_generations_per_prompt to 2 or more"),
        ("evaluate", COMPARING_JUDGE, "set evaluation.num_generations_per_prompt to 2 or more"),
        (
            "evaluate",
            f"{COMPARING_JUDGE} evaluation.num_generations_per_prompt=3",
            "val_rollout_micro_batch_size=8 to a multiple of evaluation.num_generations_per_prompt=3",
        ),
        ("grpo", "model.environments={a:{use:sums,weight:0}}", "every model.environments.*.weight is 0"),
        ("grpo", TWO_RESPONSES_ON_FOUR_DEVICES, "num_generations_per_prompt=2 to a multiple of 4"),
    ],
)
def test_groups_that_would_be_cut_or_have_no_prompts_are_refused(kind, settings, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        compose(kind, settings.split())


def test_a_validation_leaves_out_judges_that_compare(monkeypatch, here):
    def given(used, split):
        tools, sizes = dict.fromkeys(used, ()), dict.fromkeys(used, 2)
        return SimpleNamespace(tools=lambda: tools, sizes=lambda: sizes, reset=fail)

    def fail(episodes):
        return [EnvironmentFailure(episode.environment, episode.seed, "raised", "") for episode in episodes]

    monkeypatch.setattr(build, "Environments", given)
    config = compose("grpo", COMPARING_JUDGE.split())
    source = build.task_source(config, None, not_validated=comparing_environments(config))
    assert list(source.environments["train"].sizes()) == ["judge", "sums"]
    assert [prompt.environment for prompt in source.validation(4)] == ["sums"] * 4
    assert build.task_source(config, None, not_validated=["judge", "sums"]).validation(4) == []
