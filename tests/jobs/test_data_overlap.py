"""Validation samples that are training samples too are counted by their content, in every kind of job that reads data."""

from __future__ import annotations

import json
import logging
import re

import pytest
from smoke_jobs import SmokeJobs

from aligner_lib.config.compose import compose
from aligner_lib.config.kind import load
from aligner_lib.config.kinds import kind_of

LINES = {"sft": "train.jsonl", "rm": "train_comparisons.jsonl", "ppo": "train_prompts.jsonl"}
VALIDATION = {
    "sft": "model__data__validation_ds__file_path",
    "grpo": "model__environments__e__args__prompts__validation",
}
PAIRS = "model__data__data_prefix__validation"


def prepare(jobs: SmokeJobs, kind: str, name: str, **more: object) -> None:
    load(kind_of(kind).build)(compose(kind, jobs.settings(kind, name, **more), profile="smoke")).close()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("sft", {}),
        ("rm", {}),
        ("dpo", {}),
        ("dpo", {"model__dpo__preference_loss": "kto"}),
        ("ppo", {}),
        ("grpo", {}),
    ],
)
def test_a_copy_of_the_training_file_as_validation_is_warned_of(jobs, caplog, tmp_path, kind, more):
    """Under another name, with lines in another order."""
    of = {"dpo": "rm", "grpo": "ppo"}.get(kind, kind)
    size = 2 if of == "rm" else 1
    lines = (jobs.formatted / LINES[of]).read_text().splitlines()[: 8 * size]
    groups = [lines[i : i + size] for i in range(0, len(lines), size)]
    if more:  # labelled responses in place of pairs
        jobs = SmokeJobs(jobs.model, labelled(jobs.formatted, tmp_path), jobs.out, jobs.reward_model)
        lines = (jobs.formatted / LINES[of]).read_text().splitlines()[:8]
        groups = [[line] for line in lines]
    copy = tmp_path / "held-out.jsonl"
    copy.write_text("".join(f"{line}\n" for group in reversed(groups) for line in group))
    key = VALIDATION.get(kind, PAIRS)
    value = f"['{copy}']" if key == PAIRS else f"'{copy}'"
    with caplog.at_level(logging.WARNING):
        prepare(jobs, kind, "same", **more, **{key: value})
    what = "validation prompts of the environment e" if kind == "grpo" else "validation samples"
    assert re.search(rf"([48]) of \1 {what} are training samples, too", caplog.text)


def labelled(formatted, folder):
    """Responses with a label, in files of the same names as the pairs'."""
    for name in ("train", "test"):
        lines = (formatted / f"{name}_comparisons.jsonl").read_text().splitlines()
        texts = [json.loads(line)["text"].rpartition("\n\nAssistant:") for line in lines]
        records = [
            {"prompt": f"{prompt}\n\nAssistant:", "response": answer, "label": number % 2 == 0}
            for number, (prompt, _, answer) in enumerate(texts)
        ]
        (folder / f"{name}_comparisons.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder


@pytest.mark.parametrize("kind", ["sft", "rm", "ppo", "grpo"])
def test_other_samples_are_not_warned_of(jobs, caplog, kind):
    with caplog.at_level(logging.WARNING):
        prepare(jobs, kind, "others")
    assert "training samples, too" not in caplog.text
