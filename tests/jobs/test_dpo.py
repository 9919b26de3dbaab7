"""Direct preference optimisation on the smoke model: a policy learns from pairs."""

import math

import pytest
import torch
from smoke_jobs import checkpoint_files, figures

from aligner_lib.config.compose import compose, notices
from aligner_lib.config.kinds import kinds
from aligner_lib.datasets.load import load_preferences
from aligner_lib.datasets.tokenizer import Tokenizer

LOSSES = ["dpo", "cdpo", "robust", "ipo", "simpo", "orpo"]


@pytest.fixture(scope="module")
def dpo(jobs):
    """A DPO run from beginning to end."""
    return jobs.run("dpo", "dpo")


def test_it_logs_the_metrics_that_its_kind_declares(dpo):
    logged = {name for record in dpo.metrics() for name in record} - {"step", "time"}
    assert dpo.status == "finished" and logged == kinds()["dpo"].metric_names()


def test_before_the_first_update_the_loss_is_ln_2_to_the_last_digit(dpo):
    before, first = dpo.metrics()[:2]
    for loss in (before["validation/loss"], first["train/loss"]):
        assert loss == torch.tensor(2.0).log().item()
    assert before["validation/acc"] == before["validation/rewards_chosen_mean"] == 0


def test_the_chosen_responses_gain_more_than_the_rejected_ones(dpo):
    last = dpo.metrics()[-1]
    assert last["validation/loss"] < math.log(2) - 0.02
    assert last["validation/acc"] > 0.6
    assert last["validation/rewards_chosen_mean"] > last["validation/rewards_rejected_mean"] + 0.05


def test_a_resumed_run_is_the_same_to_the_bit(jobs, dpo):
    jobs.run("dpo", "dpo_resumed", trainer__dpo__max_steps=6, model__optim__sched__max_steps=12)
    resumed = jobs.run("dpo", "dpo_resumed", model__optim__sched__max_steps=12)
    assert [r for r in figures(resumed) if r["step"] != 6] == [r for r in figures(dpo) if r["step"] != 6]
    assert checkpoint_files(resumed) == checkpoint_files(dpo)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_widens_the_margin(jobs, loss):
    run = jobs.run("dpo", f"dpo_{loss}", trainer__dpo__max_steps=6, model__dpo__preference_loss=loss)
    first, last = (
        record["validation/rewards_chosen_mean"] - record["validation/rewards_rejected_mean"]
        for record in (run.metrics()[0], run.metrics()[-1])
    )
    assert last > first
    assert run.metrics()[-1]["validation/loss"] < run.metrics()[0]["validation/loss"]


@pytest.mark.parametrize("change", [{"model__micro_batch_size": 2}, {"model__share_prefix": False}])
def test_neither_micro_batches_nor_sharing_change_a_figure(jobs, dpo, change):
    name = "dpo_" + next(iter(change)).rpartition("__")[2]
    run = jobs.run("dpo", name, trainer__dpo__max_steps=3, model__optim__sched__max_steps=12, **change)
    for ours, theirs in zip(figures(run)[1:4], figures(dpo)[1:]):
        for metric in ("train/loss", "train/grad_norm", "train/logprobs_chosen", "train/rewards_chosen_mean"):
            assert ours[metric] == pytest.approx(theirs[metric], rel=1e-4, abs=1e-6), metric


def test_a_weight_on_the_chosen_responses_keeps_them_likely(jobs, dpo):
    kept = jobs.run("dpo", "dpo_sft", model__dpo__sft_loss_weight=1.0)
    assert kept.metrics()[-1]["validation/logprobs_chosen"] > dpo.metrics()[-1]["validation/logprobs_chosen"]


def test_constants_of_another_loss_are_told(jobs):
    settings = jobs.settings("dpo", "x", model__dpo__label_smoothing=0.2, model__dpo__simpo_margin=1)
    told = notices("dpo", compose("dpo", settings, "smoke"), "smoke")
    assert any("label_smoothing=0.2: dpo takes all labels as they are" in line for line in told)
    assert any("simpo_margin=1.0: dpo has no such margin" in line for line in told)


# ---- data -----------------------------------------------------------------------------------------------------------


def test_responses_begin_behind_the_last_assistant(smoke, tmp_path):
    tokenizer = Tokenizer(smoke)
    file = tmp_path / "pairs.jsonl"
    turns = "User: One?\\n\\nAssistant: Two.\\n\\nUser: Three?\\n\\nAssistant:"
    lines = [
        f"{turns} Four.",
        f"{turns} No.",
        f"{turns} Five.",
        "User: Six?\\n\\nAssistant: No.",
        "Seven.",
        "Eight.",
    ]
    file.write_text("".join(f'{{"text": "{line}"}}\n' for line in lines))
    (pair,), report = load_preferences([file], tokenizer, 256)
    assert tokenizer.decode(pair.chosen[pair.chosen_start :]) == " Four."
    assert tokenizer.decode(pair.rejected[pair.rejected_start :]) == " No."
    assert pair.chosen[: pair.chosen_start] == pair.rejected[: pair.rejected_start]
    assert set(report.dropped) == {
        "chosen and rejected have different prompts",
        "no answer behind a last 'Assistant:'",
    }
