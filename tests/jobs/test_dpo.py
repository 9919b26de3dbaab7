"""Direct preference optimisation on the smoke model: a policy learns from pairs. The losses: megatron/test_trl.py."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from smoke_jobs import ON_A_GPU, figures, first_steps, steps

from aligner_lib.algorithms.preference import PairLogprobs
from aligner_lib.algorithms.preference_losses import LOSSES, PreferenceLoss
from aligner_lib.config.compose import compose, notices
from aligner_lib.config.kinds import kinds
from aligner_lib.datasets.chat_template import use_template
from aligner_lib.datasets.load import load_labelled, load_preferences
from aligner_lib.datasets.samples import LabelledSample, content_hash
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.kinds.dpo.settings import check_constants
from aligner_lib.kinds.dpo.trainer import DPOTrainer
from aligner_lib.kinds.pairs.build import warn_about_equal_labels


@pytest.fixture(scope="module")
def kto(jobs):
    """A KTO run on DPO's pairs, taken apart."""
    return jobs.run("dpo", "kto", model__dpo__preference_loss="kto")


def logged(run) -> set[str]:
    return {name for record in run.metrics() for name in record} - {"step", "time"}


def test_it_logs_the_metrics_that_its_kind_declares(dpo, kto):
    """Those of kto's reference point with kto alone."""
    of_kto = {"train/reference_point", "validation/reference_point"}
    assert dpo.status == kto.status == "finished"
    assert logged(kto) == kinds()["dpo"].metric_names() - ON_A_GPU
    assert logged(dpo) == logged(kto) - of_kto


def test_the_loss_begins_at_ln_2_to_the_last_digit_and_the_chosen_responses_gain_most(dpo):
    before, first, *_, last = dpo.metrics()
    assert before["validation/loss"] == first["train/loss"] == torch.tensor(2.0).log().item()
    for name in ("acc", "rewards_chosen_mean", "kl"):
        assert before[f"validation/{name}"] == 0
    assert last["validation/loss"] < math.log(2) - 0.02
    assert last["validation/acc"] > 0.6
    assert last["validation/rewards_chosen_mean"] - last["validation/rewards_rejected_mean"] > 0.05
    assert dpo.series("validation/kl")[0] == [0, 4, 8, 12] and last["validation/kl"] > 0


def test_constants_of_another_loss_are_told(jobs):
    settings = jobs.settings("dpo", "x", model__dpo__label_smoothing=0.2, model__dpo__simpo_margin=1)
    lines = notices("dpo", compose("dpo", settings, "smoke"), "smoke")
    of_others = {"label_smoothing=0.2": "cdpo and robust", "simpo_margin=1.0": "simpo"}
    for constant, losses in of_others.items():
        assert any(f"{constant}: this is a constant of {losses} and not of dpo." in line for line in lines)


def test_a_constant_of_a_new_loss_needs_a_setting_and_may_follow_beta(monkeypatch):
    place = "aligner_lib.algorithms.preference:simpo_loss"
    monkeypatch.setitem(LOSSES, "own", PreferenceLoss(place, {"own_margin": lambda beta: 3 * beta}))
    with pytest.raises(TypeError, match="add the field own_margin to DPOLoss"):
        check_constants()
    settings = OmegaConf.create({"preference_loss": "own", "ref_policy_kl_penalty": 0.2, "own_margin": None})
    policy, reference = PairLogprobs(*torch.tensor([[-1.0], [-5.0]])), PairLogprobs(*torch.zeros(2, 1))
    # β · 4 − 3 β = 0.2
    losses = DPOTrainer._losses(SimpleNamespace(settings=settings), policy, reference)
    assert losses.tolist() == pytest.approx([math.log(1 + math.exp(-0.2))])


# ---- precomputed log-probabilities ----------------------------------------------------------------------------------

PRECOMPUTED = {"model__dpo__precompute_reference_logprobs": True}


def without_kl(run) -> list[dict]:
    """Its figures without the one that needs the reference's weights."""
    return [{name: record[name] for name in record if name != "validation/kl"} for record in figures(run)]


def test_precomputed_log_probabilities_are_the_reference_s_to_the_bit_and_kept_with_the_run(jobs, kto):
    """KTO's, which also reads the responses to other prompts. For other samples they are computed anew."""
    name, run = "kto_precomputed", jobs.run_folder("kto_precomputed")
    file, log = run.path / "reference_logprobs.json", jobs.log(name)
    settings = PRECOMPUTED | {"model__dpo__preference_loss": "kto"}

    def after(steps: int, **more) -> dict:
        jobs.run("dpo", name, **settings | first_steps("dpo", steps) | more)
        return json.loads(file.read_text())

    before = after(1)
    assert "reference log-probabilities: computed" in log.read_text()
    further = after(2)
    assert steps(run) == [0, 1, 2]
    for ours, theirs in zip(figures(run), without_kl(kto)):
        assert ours.items() >= theirs.items()  # ours has validated after its last step, too
    assert (further["key"], further["validation"]) == (before["key"], before["validation"])
    known = [sum(pair is not None for pair in record["train"]) for record in (before, further)]
    assert known == [8, 16]
    assert after(2) == further
    assert f"reference log-probabilities: from {file}" in log.read_text()
    anew = after(1, model__encoder_seq_length=150, exp_manager__resume_if_exists=False)
    assert anew["key"] != before["key"]


def test_in_later_epochs_they_are_the_reference_s_but_for_rounding(jobs, tmp_path):
    """Micro batches are others then, and with them the order of sums. The loss has the chosen responses' likelihood in it."""
    few = tmp_path / "few.jsonl"
    lines = (jobs.formatted / "train_comparisons.jsonl").read_text().splitlines(keepends=True)
    few.write_text("".join(lines[:16]))
    settings = {"trainer__dpo__max_steps": 2, "model__data__data_prefix__train": f"['{few}']"}
    settings["model__dpo__sft_loss_weight"] = 1.0
    exchanged = jobs.run("dpo", "dpo_epochs", **settings)
    precomputed = jobs.run("dpo", "dpo_epochs_precomputed", **settings, **PRECOMPUTED)
    assert exchanged.metrics()[-1]["train/epoch"] == 2
    for ours, theirs in zip(figures(precomputed), without_kl(exchanged), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    first, second = exchanged.metrics()[1:]
    # the cross-entropy of a token of a random model's 1024; it falls although the policy learns from the difference
    assert first["train/loss"] == pytest.approx(math.log(2) + math.log(1024), abs=0.3)
    assert second["train/logprobs_chosen"] > first["train/logprobs_chosen"]


# ---- KTO ------------------------------------------------------------------------------------------------------------


def test_kto_begins_at_a_half_with_a_reference_point_of_0(kto):
    """1 − σ(0), whatever the labels are."""
    before, first = kto.metrics()[:2]
    assert before["validation/loss"] == first["train/loss"] == 0.5
    assert before["validation/reference_point"] == before["validation/acc"] == 0
    assert kto.metrics()[-1]["validation/loss"] < 0.49
    assert kto.metrics()[-1]["validation/acc"] > 0.6


def test_kto_takes_labels_without_pairs_and_weighs_them(jobs, jsonl):
    """With a weight of 0 for undesirable responses the first loss is half of the desirable ones' share."""
    file = jsonl(
        {"prompt": f"User: {number}?\n\nAssistant:", "response": f"{number}.", "label": number % 4 > 0}
        for number in range(16)
    )
    settings = {f"model__data__data_prefix__{split}": f"['{file}']" for split in ("train", "validation")}
    settings |= {"model__dpo__preference_loss": "kto", "model__dpo__undesirable_loss_weight": 0}
    settings |= {"model__global_batch_size": 16, "trainer__dpo__max_steps": 1}
    run = jobs.run("dpo", "kto_labelled", **settings)
    first = run.metrics()[1]
    assert first["train/loss"] == 0.5 * 12 / 16
    assert first["train/consumed_samples"] == 16


# ---- data -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def jsonl(tmp_path):
    """jsonl(records): a file of them."""

    def write(records):
        file = tmp_path / "samples.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        return file

    return write


def labelled(*samples: tuple[str, str, object]):
    return [{"prompt": prompt, "response": response, "label": label} for prompt, response, label in samples]


def test_responses_begin_behind_the_last_assistant(smoke, jsonl):
    tokenizer = Tokenizer(smoke)
    turns = "User: One?\n\nAssistant: Two.\n\nUser: Three?\n\nAssistant:"
    texts = [f"{turns} {end}" for end in ("Four.", "No.", "Five.")]
    texts += ["User: Six?\n\nAssistant: No.", "Seven.", "8."]
    (pair,), report = load_preferences([jsonl({"text": text} for text in texts)], tokenizer, 256)
    assert tokenizer.decode(pair.chosen[pair.chosen_start :]) == " Four."
    assert tokenizer.decode(pair.rejected[pair.rejected_start :]) == " No."
    assert pair.chosen[: pair.chosen_start] == pair.rejected[: pair.rejected_start]
    reasons = {"chosen and rejected have different prompts", "no answer behind a last 'Assistant:'"}
    assert set(report.dropped) == reasons


def own_and_unrelated(tokenizer, samples) -> list[list[str]]:
    """The responses on both sides: a prompt's own, and the one to another prompt."""
    return [
        [tokenizer.decode(sample.rows[side][sample.starts[side] :]) for sample in samples] for side in (0, 1)
    ]


def test_a_label_s_sample_has_the_next_response_to_another_prompt_beside_it(smoke, jsonl):
    tokenizer = Tokenizer(smoke)
    records = labelled(
        ("A:", "one", True),
        ("A:", "two", False),
        ("B:" + " and" * 9, "three " * 9, True),
        ("C:", "four " * 60, True),  # too long
        ("C:", "five", 1),  # no label
        ("C:", " ", True),  # no response
    )
    samples, report = load_labelled([jsonl(records)], tokenizer, max_length=50)
    own, unrelated = own_and_unrelated(tokenizer, samples)
    assert [sample.desirable for sample in samples] == [True, False, True]
    assert own == ["one", "two", ("three " * 9).strip()]
    assert unrelated == [own[2], own[2], own[0]]  # the first one follows the last
    assert sum(report.dropped.values()) == 3
    file = jsonl(labelled(("A" * 20, "b", True), ("A", "b" * 20, True)))
    samples, _ = load_labelled([file], tokenizer, max_length=40)
    lengths = [len(row) for sample in samples for row in sample.rows]
    assert len(lengths) == 4 and max(lengths) == 40, "an unrelated response is cut"


def test_a_label_s_content_is_found_again_in_a_file_of_another_order(smoke, jsonl):
    """Its unrelated response is another one there; the warning about overlap compares contents."""
    records = labelled(("A:", "one", True), ("B:", "two", False), ("C:", "three", True))
    hashes = []
    for lines in (records, records[::-1]):
        samples, _ = load_labelled([jsonl(lines)], Tokenizer(smoke), max_length=50)
        hashes.append(set(map(content_hash, samples)))
    assert hashes[0] == hashes[1] and len(hashes[0]) == 3


def test_a_prompt_s_text_is_one_turn_of_a_label_as_of_a_pair(smoke, jsonl):
    """The text quotes a conversation, whose turns are no turns of the sample."""
    tokenizer = use_template(Tokenizer(smoke), "tokenizer")
    prompts = ["User: One?\n\nAssistant: Two.", "Three?"]
    labels, _ = load_labelled([jsonl(labelled(*((prompt, "A", True) for prompt in prompts)))], tokenizer, 128)
    pairs, _ = load_preferences(
        [jsonl({"prompt": prompt, "chosen": "A", "rejected": "B"} for prompt in prompts)], tokenizer, 128
    )
    assert [label.rows[0] for label in labels] == [pair.chosen for pair in pairs]
    assert "User: One?\n\nAssistant: Two." in tokenizer.decode(labels[0].rows[0])


def test_pairs_taken_apart_alternate_and_keep_to_their_side(smoke, jsonl):
    tokenizer = Tokenizer(smoke)
    texts = [f"User: {p}\n\nAssistant: {r}" for p in "XYZ" for r in (f"good {p}.", f"bad {p}.")]
    samples, _ = load_labelled([jsonl({"text": text} for text in texts)], tokenizer, 64)
    own, unrelated = own_and_unrelated(tokenizer, samples)
    assert own == [" good X.", " bad X.", " good Y.", " bad Y.", " good Z.", " bad Z."]
    assert unrelated == [" good Y.", " bad Y.", " good Z.", " bad Z.", " good X.", " bad X."]
    for sample in samples:
        (row, other), (start, _) = sample.rows, sample.starts
        assert row[:start] == other[:start]


def test_kto_wants_two_prompts(smoke, jsonl):
    words = r"have the same prompt: KTO compares with .*; of held-out .* \(--validation-fraction of `aligner data`\) or"
    with pytest.raises(ValueError, match=words):
        load_labelled([jsonl(labelled(("A:", "b", True), ("A:", "b", True)))], Tokenizer(smoke), 64)


@pytest.mark.parametrize(
    ("labels", "warned"),
    [((True, False), ""), ((False, False), "all 2 training responses have the label false")],
)
def test_kto_warns_of_labels_that_are_all_equal(caplog, labels, warned):
    warn_about_equal_labels([LabelledSample(label, ([1], [2]), (0, 0)) for label in labels])
    assert bool(caplog.text) == bool(warned) and warned in caplog.text
