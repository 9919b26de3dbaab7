"""The settings of the runs that are longer than the tutorial's: a mistake in them is found before hours of training."""

import pytest

from aligner_lib.config.compose import compose, written
from aligner_lib.tutorial.workspace import longer_runs

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
