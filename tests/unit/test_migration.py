"""docs/migration.md keeps its word. test_named_settings.py shows the effect of each setting that a row names."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from aligner_lib.config.compose import compose
from aligner_lib.errors import ConfigError
from aligner_lib.kinds.own_files import GivenFiles, trainers_files

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")


def row(name: str) -> str:
    """The line of the page whose first cell names a setting."""
    (line,) = [
        line for line in PAGE.splitlines() if line.startswith("|") and f"{name}`" in line.split(" | ")[0]
    ]
    return line


def test_a_loss_that_is_not_here_is_refused():
    with pytest.raises(ConfigError, match="must be dpo or"):
        compose("dpo", ["model.dpo.preference_loss=rpo_sq"])
    assert "`rpo_sq`" in row("model.dpo.preference_loss")


@pytest.mark.parametrize(
    ("prompt", "converted"),
    [
        ("Why?", [{"role": "user", "content": "Why?"}]),
        # as the guide to DPO asks for
        (
            "<extra_id_1>User\nWhy?\n<extra_id_1>Assistant\n",
            "<extra_id_1>User\nWhy?\n<extra_id_1>Assistant\n",
        ),
    ],
)
def test_lines_with_both_responses_are_converted_as_the_page_says(tmp_path, monkeypatch, prompt, converted):
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path))
    line = {"prompt": prompt, "chosen_response": "a\n", "rejected_response": "b\n", "chosen_reward": 2}
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps(line) + "\n")
    given = {"train": GivenFiles("train", str(file))}
    (written,) = trainers_files(given, "pairs", compose("dpo").model.data)["train"]
    assert json.loads(written.read_text()) == {"prompt": converted, "chosen": "a\n", "rejected": "b\n"}
    assert "converts" in row("prompt") and "not read" in row("prompt")


@pytest.mark.parametrize(
    ("kind", "key", "value", "named"),
    [
        ("sft", "model.optim.lr", 5e-6, "SFT: `lr`, `min_lr"),
        ("sft", "model.optim.sched.min_lr", 0, "SFT: `lr`, `min_lr"),
        ("rm", "model.optim.sched.min_lr", 0, "reward model: `min_lr"),
        ("ppo", "model.optim.sched.constant_steps", 0, "constant_steps"),
        ("rm", "trainer.rm.val_check_interval", 10, "save_interval"),
        ("sft", "trainer.sft.save_interval", 10, "save_interval"),
        ("ppo", "model.ppo.num_val_samples", None, "num_val_samples"),
        ("ppo", "model.ppo.sampling_params.end_strings", [], "end_strings"),
    ],
)
def test_the_defaults_of_the_page_are_those_here(kind, key, value, named):
    here = row(named).rpartition(" | ")[2].strip(" |")
    words = {None: "all", "[]": "none"}.get(value if value is None else str(value))
    assert OmegaConf.select(compose(kind), key) == value
    assert words == here if words else value in map(float, here.split(", "))


def test_dpo_s_learning_rate_is_nemo_aligner_s():
    optim = compose("dpo").model.optim
    assert (optim.lr, optim.sched.min_lr) == (9e-6, 9e-7)
