"""Direct preference optimisation on the smoke model: a policy learns from pairs."""

import json
import math

import pytest
import torch
from smoke_jobs import checkpoint_files, figures, steps

from aligner_lib.config.compose import compose, notices
from aligner_lib.config.kinds import kinds
from aligner_lib.datasets.load import load_labelled, load_preferences
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.kinds.dpo.settings import LOSSES


@pytest.fixture(scope="module")
def kto(jobs):
    """A KTO run on the same pairs, taken apart."""
    return jobs.run("dpo", "kto", model__dpo__preference_loss="kto")


def logged(run) -> set[str]:
    return {name for record in run.metrics() for name in record} - {"step", "time"}


def test_it_logs_the_metrics_that_its_kind_declares(dpo, kto):
    """Those of kto's reference point with kto alone."""
    of_kto = {"train/reference_point", "validation/reference_point"}
    assert dpo.status == kto.status == "finished"
    assert logged(kto) == kinds()["dpo"].metric_names()
    assert logged(dpo) == logged(kto) - of_kto


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


def test_the_kl_to_the_reference_is_0_before_the_first_update_and_grows(dpo):
    at, kl = dpo.series("validation/kl")
    assert at == [0, 4, 8, 12]
    assert kl[0] == 0 < kl[-1]


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


# ---- precomputed log-probabilities ----------------------------------------------------------------------------------

PRECOMPUTED = {"model__dpo__precompute_reference_logprobs": True}


def without_kl(run) -> list[dict]:
    """Its figures without the one that needs the reference's weights."""
    return [{name: record[name] for name in record if name != "validation/kl"} for record in figures(run)]


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_precomputed_log_probabilities_are_the_reference_s_to_the_bit(jobs, request, loss):
    exchanged = request.getfixturevalue(loss)
    precomputed = jobs.run("dpo", f"{loss}_precomputed", model__dpo__preference_loss=loss, **PRECOMPUTED)
    assert without_kl(precomputed) == without_kl(exchanged)
    assert "validation/kl" not in logged(precomputed)
    assert checkpoint_files(precomputed) == checkpoint_files(exchanged)


def test_they_are_kept_with_the_run(jobs):
    """Gone on from they are read; for other samples they are computed anew."""
    name, file = "dpo_kept", "reference_logprobs.json"
    begun = jobs.run("dpo", name, **PRECOMPUTED, trainer__dpo__max_steps=2)
    assert "computed" in jobs.log(name).read_text()
    written = (begun.path / file).read_bytes()
    resumed = jobs.run("dpo", name, **PRECOMPUTED, trainer__dpo__max_steps=2)
    assert f"reference log-probabilities: from {resumed.path / file}" in jobs.log(name).read_text()
    assert (begun.path / file).read_bytes() == written
    further = jobs.run("dpo", name, **PRECOMPUTED, trainer__dpo__max_steps=3)
    assert steps(further) == [0, 1, 2, 3]
    before, after = json.loads(written), json.loads((begun.path / file).read_text())
    assert before["key"] == after["key"] and before["validation"] == after["validation"]
    assert (
        sum(pair is not None for pair in after["train"]) == 24 > sum(p is not None for p in before["train"])
    )
    jobs.run(
        "dpo", name, **PRECOMPUTED, trainer__dpo__max_steps=1,
        model__encoder_seq_length=150, exp_manager__resume_if_exists=False,
    )  # fmt: skip
    assert json.loads((begun.path / file).read_text())["key"] != before["key"]


def test_in_later_epochs_they_are_the_reference_s_but_for_rounding(jobs, tmp_path):
    """Micro batches are others then, and with them the order of sums."""
    few = tmp_path / "few.jsonl"
    few.write_text(
        "".join((jobs.formatted / "train_comparisons.jsonl").read_text().splitlines(keepends=True)[:40])
    )
    settings = {"trainer__dpo__max_steps": 5, "model__data__data_prefix__train": f"['{few}']"}
    exchanged = jobs.run("dpo", "dpo_epochs", **settings)
    precomputed = jobs.run("dpo", "dpo_epochs_precomputed", **settings, **PRECOMPUTED)
    assert exchanged.metrics()[-1]["train/epoch"] == 2
    for ours, theirs in zip(without_kl(precomputed), without_kl(exchanged)):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


# ---- KTO ------------------------------------------------------------------------------------------------------------


def test_kto_begins_at_a_half_with_a_reference_point_of_0(kto):
    """1 − σ(0), whatever the labels are."""
    before, first = kto.metrics()[:2]
    assert before["validation/loss"] == first["train/loss"] == 0.5
    assert before["validation/reference_point"] == before["validation/acc"] == 0
    assert kto.metrics()[-1]["validation/loss"] < 0.49
    assert kto.metrics()[-1]["validation/acc"] > 0.6


def test_kto_does_not_see_its_micro_batches(jobs, kto):
    """Its reference point is of the whole batch."""
    run = jobs.run(
        "dpo",
        "kto_small",
        model__dpo__preference_loss="kto",
        model__micro_batch_size=2,
        trainer__dpo__max_steps=4,
    )
    for ours, theirs in zip(figures(run)[1:4], figures(kto)[1:]):
        for metric in ("train/loss", "train/grad_norm", "train/reference_point", "train/rewards_chosen_mean"):
            assert ours[metric] == pytest.approx(theirs[metric], rel=1e-4, abs=1e-6), metric


def test_kto_takes_labels_without_pairs_and_weighs_them(jobs, tmp_path):
    """With a weight of 0 for undesirable responses the first loss is half of the desirable ones' share."""
    file = tmp_path / "labelled.jsonl"
    lines = [
        {"prompt": f"User: {number}?\n\nAssistant:", "response": f"{number}.", "label": number % 4 > 0}
        for number in range(16)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = jobs.run(
        "dpo", "kto_labelled", model__dpo__preference_loss="kto", model__dpo__undesirable_loss_weight=0,
        model__global_batch_size=16, trainer__dpo__max_steps=2,
        **{f"model__data__data_prefix__{split}": f"['{file}']" for split in ("train", "validation")},
    )  # fmt: skip
    first = run.metrics()[1]
    assert first["train/loss"] == 0.5 * 12 / 16
    assert first["train/consumed_samples"] == 16


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


def test_a_label_s_sample_has_the_next_response_to_another_prompt_beside_it(smoke, tmp_path):
    tokenizer = Tokenizer(smoke)
    file = tmp_path / "labelled.jsonl"
    lines = [
        ("A:", "one", True),
        ("A:", "two", False),
        ("B:" + " and" * 9, "three " * 9, True),
        ("C:", "four " * 60, True),  # too long
        ("C:", "five", 1),  # no label
        ("C:", " ", True),  # no response
    ]
    file.write_text(
        "".join(json.dumps({"prompt": p, "response": r, "label": label}) + "\n" for p, r, label in lines)
    )
    samples, report = load_labelled([file], tokenizer, max_length=50)
    own, unrelated = (
        [tokenizer.decode(sample.rows[side][sample.starts[side] :]) for sample in samples] for side in (0, 1)
    )
    assert [sample.desirable for sample in samples] == [True, False, True]
    assert own == [" one", " two", " " + "three " * 9]
    assert unrelated == [own[2], own[2], own[0]]  # the first one follows the last
    assert sum(report.dropped.values()) == 3


def test_an_unrelated_response_is_cut_to_the_longest_sample_s_length(smoke, tmp_path):
    tokenizer = Tokenizer(smoke)
    file = tmp_path / "labelled.jsonl"
    lines = [("A" * 20, "b"), ("A", "b" * 20)]
    file.write_text("".join(json.dumps({"prompt": p, "response": r, "label": True}) + "\n" for p, r in lines))
    samples, _ = load_labelled([file], tokenizer, max_length=25)
    assert len(samples) == 2 and max(len(row) for sample in samples for row in sample.rows) == 25


def test_pairs_taken_apart_alternate_and_keep_to_their_side(smoke, tmp_path):
    tokenizer = Tokenizer(smoke)
    file = tmp_path / "pairs.jsonl"
    texts = [f"User: {p}\n\nAssistant: {r}" for p in "XYZ" for r in (f"good {p}.", f"bad {p}.")]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    samples, _ = load_labelled([file], tokenizer, 64)
    own, unrelated = (
        [tokenizer.decode(sample.rows[side][sample.starts[side] :]) for sample in samples] for side in (0, 1)
    )
    assert own == [" good X.", " bad X.", " good Y.", " bad Y.", " good Z.", " bad Z."]
    assert unrelated == [" good Y.", " bad Y.", " good Z.", " bad Z.", " good X.", " bad X."]
    for sample in samples:
        (own, other), (start, _) = sample.rows, sample.starts
        assert own[:start] == other[:start]


def test_kto_wants_two_prompts(smoke, tmp_path):
    file = tmp_path / "one.jsonl"
    file.write_text('{"prompt": "A:", "response": "b", "label": true}\n' * 2)
    with pytest.raises(
        ValueError, match="have the same prompt: KTO compares with responses to other prompts"
    ):
        load_labelled([file], Tokenizer(smoke), 64)
