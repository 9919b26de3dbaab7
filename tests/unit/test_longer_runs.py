"""The settings of the runs that are longer than the tutorial's: a mistake in them is found before hours of training."""

import pytest

from aligner_lib.config.compose import compose, written
from aligner_lib.tutorial.workspace import longer_runs

ENVIRONMENT = "model.environments.conversations"
JUDGED = {
    f"{ENVIRONMENT}.use": "reward_model",
    f"{ENVIRONMENT}.args.prompts": {"train": "train.jsonl", "validation": "test.jsonl"},
}
RUNS = {
    "sft": "SFT_FOR_FORMS",
    "rm": "RM_FOR_FORMS RM_FOR_SEEDS",
    "ppo": "PPO_ON_FORMS PPO_FOR_SEEDS PPO_ON_SUMS LONG_PPO",
    "dpo": "DPO_ON_FORMS LONG_DPO",
    "grpo": "GRPO_ON_FORMS GRPO_WITH_REWARD_MODEL LONG_GRPO",
    "evaluate": "ALL_HELD_OUT SIXTEEN_ANSWERS ANSWERS_FOR_PAIRS HELD_OUT_OF_DRAWN",
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in RUNS for name in RUNS[kind].split()])
def test_its_settings_are_those_of_its_kind(kind, name):
    settings = getattr(longer_runs, name)
    if kind in ("ppo", "grpo", "evaluate") and "model.environments" not in settings:
        settings = settings | JUDGED | ({"reward_model.rm_model_file": "rm"} if kind == "grpo" else {})
    config = compose(kind, [f"{key}={written(value)}" for key, value in settings.items()], "laptop")
    assert config.model.encoder_seq_length >= 128
