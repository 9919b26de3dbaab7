"""The profile that everybody starts with: each job lets the machine choose its precision."""

import pytest
from omegaconf import OmegaConf

from aligner_lib.config.compose import compose, keys

SUMS = {"grpo": ["model.environments.sums.use=sums"]}


@pytest.mark.parametrize("kind", ["sft", "rm", "dpo", "ppo", "grpo", "evaluate", "critic", "reward_server"])
def test_the_machine_chooses_the_precision_of_each_model(kind):
    config = compose(kind, SUMS.get(kind, []), "laptop")
    precisions = {OmegaConf.select(config, key) for key in keys(kind) if key.endswith("trainer.precision")}
    assert precisions == {"auto"}
