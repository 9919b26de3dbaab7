"""The settings of the runs that are longer than the tutorial's: a mistake in them is found before hours of training."""

import pytest

from aligner_lib.config.compose import compose, written
from aligner_lib.tutorial.workspace import longer_runs
from aligner_lib.tutorial.workspace.longer_runs import (
    BROKEN,
    CHANGED,
    LEFT_TO_BREAK,
    PPO_ON_FORMS,
    TWELVE_STEPS,
)

JUDGED = {
    "model.environments.conversations.use": "reward_model",
    "model.environments.conversations.args.prompts": {"train": "train.jsonl", "validation": "test.jsonl"},
}
RUNS = {
    "SFT_FOR_FORMS": ("sft", {}),
    "RM_FOR_FORMS": ("rm", {}),
    "RM_FOR_SEEDS": ("rm", {}),
    "PPO_ON_FORMS": ("ppo", JUDGED),
    "PPO_FOR_SEEDS": ("ppo", JUDGED),
    "PPO_ON_SUMS": ("ppo", {}),
    "DPO_ON_FORMS": ("dpo", {}),
    "GRPO_ON_FORMS": ("grpo", {}),
    "GRPO_WITH_REWARD_MODEL": ("grpo", JUDGED | {"reward_model.rm_model_file": "rm"}),
    "ALL_HELD_OUT": ("evaluate", JUDGED),
    "SIXTEEN_ANSWERS": ("evaluate", JUDGED),
    "ANSWERS_FOR_PAIRS": ("evaluate", JUDGED),
    "LONG_PPO": ("ppo", JUDGED),
    "LONG_DPO": ("dpo", {}),
    "LONG_GRPO": ("grpo", {}),
    "HELD_OUT_OF_DRAWN": ("evaluate", JUDGED),
}


def composed(kind: str, settings: dict):
    return compose(kind, [f"{key}={written(value)}" for key, value in settings.items()], "laptop")


@pytest.mark.parametrize("name", RUNS)
def test_its_settings_are_those_of_its_kind(name):
    kind, beside = RUNS[name]
    config = composed(kind, getattr(longer_runs, name) | beside)
    assert config.model.encoder_seq_length >= 128


@pytest.mark.parametrize(
    ("changes", "others", "penalty", "rate"),
    [(BROKEN, PPO_ON_FORMS | LEFT_TO_BREAK, 0.03, 1.5e-4), (CHANGED, TWELVE_STEPS, 0.1, 3.75e-4)],
)
def test_changed_runs_differ_in_the_penalty_the_rate_or_both(changes, others, penalty, rate):
    usual = composed("ppo", others | JUDGED).model.optim.lr
    assert usual * 7.5 == pytest.approx(rate)
    changed = {}
    for name, settings in changes.items():
        config = composed("ppo", others | settings | JUDGED)
        changed[name] = (config.trainer.ppo.initial_policy_kl_penalty, config.model.optim.lr)
        assert config.trainer.ppo.max_init_policy_kl is None
    every = {"no-kl": (0.0, usual), "high-lr": (penalty, rate), "both": (0.0, rate)}
    assert changed == {name: every[name] for name in changes}
