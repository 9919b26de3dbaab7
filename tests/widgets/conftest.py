import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fake_trainer


@pytest.fixture(scope="session")
def healthy(tmp_path_factory):
    """The folder of a PPO run that went well."""
    path = tmp_path_factory.mktemp("runs") / "healthy"
    fake_trainer.train(path, "ppo", steps=60)
    return path


@pytest.fixture(scope="session")
def gaming(tmp_path_factory):
    """The folder of a PPO run with a KL coefficient of 0, which games its reward model."""
    path = tmp_path_factory.mktemp("runs") / "gaming"
    fake_trainer.train(path, "ppo", steps=60, kl_coef=0.0, seed=1)
    return path
