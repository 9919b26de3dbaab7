"""Faults that no check of `explain` was made for: what it says of recorded runs names the fault, or no cause at all.

Made by `python -m benchmarks.unseen_faults --pack tests/unit/unseen`, which says what each run is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aligner_lib.run_folder.explain import Explanation, explain
from widgets.recordings.recording_file import PACKED
from widgets.recordings.replay import Recording

RECORDED = Path(__file__).parent / "unseen"
HEALTHY = sorted(path.name.removesuffix(PACKED) for path in RECORDED.glob("healthy-*"))
CAUSES = {
    "ppo-prompt-tokens": "prompt_trained",
    "ppo-advantages-negated": "advantage_sign",
    "ppo-returns-without-values": "returns",
    "ppo-not-normalised": "not_normalised",
    "ppo-penalty-missing": "kl_penalty",
    "ppo-penalty-summed": "kl_penalty",
    "grpo-group-advantages-negated": "advantage_sign",
    "grpo-prompt-tokens": "prompt_trained",
    "grpo-no-baseline": "no_baseline",
    "grpo-kl-negated": "kl_loss_sign",
    "sft-ascent": "loss_sign",
    "sft-rate-zero": "rate_zero",
    "rm-pair-swapped": "pair_swapped",
    "rm-pair-linear": "pair_loss",
    "rm-turned-validation": "validation_turned",
    "dpo-dpo-swapped": "pair_swapped",
    "dpo-dpo-without-beta": "pair_loss",
    "dpo-dpo-without-reference": "pair_loss",
}
NOT_SEEN = ("ppo-ratio-inverted", "ppo-rewards-shuffled", "ppo-critic-frozen", "sft-only-prompts")


def recorded(name: str) -> Explanation:
    return explain(Recording(RECORDED / f"{name}{PACKED}", speed=float("inf")))


@pytest.mark.parametrize("name", CAUSES)
def test_the_fault_is_the_only_cause_that_fits(name):
    explanation = recorded(name)
    assert [diagnosis.cause.name for diagnosis in explanation.likeliest] == [CAUSES[name]]
    assert f"1. {explanation.cause.title}" in str(explanation) and "Unknown cause" not in str(explanation)


@pytest.mark.parametrize("name", NOT_SEEN)
def test_a_fault_that_the_figures_do_not_show_accuses_nothing_else(name):
    assert recorded(name).diagnoses == []


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_with_unusual_settings_is_not_accused(name):
    explanation = recorded(name)
    assert explanation.off == [] and explanation.diagnoses == []


def test_every_recorded_run_is_listed():
    names = {path.name.removesuffix(PACKED) for path in RECORDED.iterdir()}
    assert names == {*CAUSES, *NOT_SEEN, *HEALTHY} and len(names) >= 30
