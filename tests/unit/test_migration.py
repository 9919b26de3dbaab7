"""docs/migration.md keeps its word: each override that it names, with the kind of job that it is for."""

import json
from pathlib import Path

import pytest

from aligner_lib.config.compose import compose, keys, notices
from aligner_lib.config.other_names import OTHER_NAMES
from aligner_lib.errors import ConfigError
from aligner_lib.kinds.own_files import GivenFiles, trainers_files

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
CALLBACK = "exp_manager.checkpoint_callback_params"


def row(name: str) -> str:
    """The line of the page whose first cell names a setting."""
    (line,) = [
        line for line in PAGE.splitlines() if line.startswith("|") and f"{name}`" in line.split(" | ")[0]
    ]
    return line


@pytest.mark.parametrize(
    "setting", ["ref_policy_kl_penalty=0.1", "preference_loss=dpo", "preference_loss=ipo"]
)
def test_equal_settings_are_taken_and_have_an_effect(setting):
    assert "same" in row(f"model.dpo.{setting.partition('=')[0]}")
    assert notices("dpo", compose("dpo", [f"model.dpo.{setting}"])) == []


@pytest.mark.parametrize("kind", ["sft", "rm", "dpo", "ppo", "grpo"])
@pytest.mark.parametrize(
    "name, value",
    [
        ("model.megatron_amp_O2", "True"),
        ("model.data.num_workers", "4"),
        (f"{CALLBACK}.save_nemo_on_train_end", "True"),
    ],
)
def test_a_name_only_is_taken_and_the_job_says_that_it_does_nothing(kind, name, value):
    config = compose(kind, [f"++{name}={value}"])
    told = [notice for notice in notices(kind, config) if f"{name}={value}" in notice]
    last = name if name.startswith("model") else name.rpartition(".")[2]
    assert told and ("name only" in row(last) or "names only" in row(last))


@pytest.mark.parametrize("loss", ["rpo_bwd_kl", "rpo_fwd_kl", "rpo_sq"])
def test_a_loss_that_is_not_here_is_refused(loss):
    with pytest.raises(ConfigError, match="it must be dpo or"):
        compose("dpo", [f"model.dpo.preference_loss={loss}"])
    assert f"`{loss}`" in row("model.dpo.preference_loss")


@pytest.mark.parametrize("name", ["preference_loss_weight", "gt_reward_scale"])
def test_a_setting_that_is_not_here_is_refused(name):
    with pytest.raises(ConfigError, match="there is no setting"):
        compose("dpo", [f"model.dpo.{name}=1"])
    assert "refused" in row(f"model.dpo.{name}")


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_nemo_reinforcers_number_of_printed_samples_names_the_kind_s_own_setting(kind):
    own = f"model.{kind}.num_val_samples"
    assert own in keys(kind) and own in OTHER_NAMES["logger.num_val_samples_to_print"]


def test_lines_with_both_responses_are_converted_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path))
    line = {"prompt": "Why?", "chosen_response": "a", "rejected_response": "b", "chosen_reward": 2}
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps(line) + "\n")
    given = {"train": GivenFiles("train", str(file))}
    (converted,) = trainers_files(given, "pairs", compose("dpo").model.data)["train"]
    turn = {"role": "user", "content": "Why?"}
    assert json.loads(converted.read_text()) == {"prompt": [turn], "chosen": "a", "rejected": "b"}
    assert "converts" in row("prompt") and "not read" in row("prompt")
