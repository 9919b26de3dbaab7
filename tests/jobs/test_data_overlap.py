"""Validation samples that are training samples too are counted by their content, in every kind of job that reads data."""

import logging
import re

import pytest
from smoke_jobs import prepare_smoke_job

PREFIX = "model.data.data_prefix.validation"
# kind: the file of training samples, lines of a sample, the setting of the validation's file
DATA = {
    "sft": ("train.jsonl", 1, "model.data.validation_ds.file_path"),
    "dpo": ("train_comparisons.jsonl", 2, PREFIX),
    "ppo": ("train_prompts.jsonl", 1, PREFIX),
    "grpo": ("train_prompts.jsonl", 1, "model.environments.e.args.prompts.validation"),
}


@pytest.mark.parametrize("kind", DATA)
def test_a_copy_of_the_training_file_as_validation_is_warned_of(jobs, caplog, tmp_path, kind):
    """Under another name, with lines in another order."""
    name, size, key = DATA[kind]
    lines = (jobs.formatted / name).read_text().splitlines()[: 8 * size]
    groups = [lines[i : i + size] for i in range(0, len(lines), size)]
    copy = tmp_path / "held-out.jsonl"
    copy.write_text("".join(f"{line}\n" for group in reversed(groups) for line in group))
    validation = {key: f"['{copy}']" if key == PREFIX else f"'{copy}'"}
    with caplog.at_level(logging.WARNING):
        prepare_smoke_job(kind, jobs.settings(kind, "same", **validation)).close()
    samples = "validation prompts of the environment e" if kind == "grpo" else "validation samples"
    assert re.search(rf"([48]) of \1 {samples} are training samples, too", caplog.text)


@pytest.mark.parametrize("kind", ["sft", "dpo", "ppo", "grpo"])
def test_other_samples_are_not_warned_of(jobs, request, kind):
    request.getfixturevalue(kind)
    assert "training samples, too" not in jobs.log(kind).read_text()
