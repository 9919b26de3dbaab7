"""docs/migration.md keeps its word. test_named_settings.py shows the effect of each setting that a row names."""

import json
from pathlib import Path

import pytest

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
