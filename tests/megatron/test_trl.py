"""What learns from preferences, against TRL's own trainers: the same loss and the same gradient of every weight.

TRL 1.16 computes each reference here: DPOTrainer dpo, length-normalised dpo, ipo and robust, KTOTrainer kto, and its
experimental CPOTrainer and ORPOTrainer simpo and orpo. It has no conservative loss any more; its `aot` sorts the margins
of a batch before it applies that formula, so on one pair at a time it is the same.
"""

from importlib import import_module
from statistics import fmean
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from twins import random_twins, stored_tensors

from aligner_lib.datasets.samples import LabelledSample, PreferenceSample
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.kinds.dpo.settings import DPOLoss

pytest.importorskip("trl", reason="TRL is not installed: ./lab test installs it")
pytestmark = pytest.mark.usefixtures("one_process")
CLOSE = 1e-5
BETA = 0.3


@pytest.fixture(scope="module")
def sides(smoke, tmp_path_factory):
    """Policy and reference, each a folder with the model as it is imported here and as transformers has it."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("policy", "reference")}
    for seed, folder in enumerate(folders.values()):
        random_twins(smoke, folder, seed)
    return SimpleNamespace(**folders, smoke=smoke, out=tmp_path_factory.mktemp("trl"))


def draw(lengths: list[int], seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, 96, (length,), generator=generator).tolist() for length in lengths]


def drawn_pairs(prompts: list[int], chosen: list[int], rejected: list[int]) -> list[dict]:
    """Pairs of so many tokens, under TRL's names."""
    parts = (draw(lengths, seed) for seed, lengths in enumerate((prompts, chosen, rejected)))
    return [dict(zip(("prompt_ids", "chosen_ids", "rejected_ids"), ids)) for ids in zip(*parts)]


PAIRS = drawn_pairs([6, 3, 9, 4], [5, 8, 3, 11], [7, 2, 6, 10])
# ORPO's cross-entropy is TRL's mean over all tokens behind the first one, of the prompt and of all pairs together; here it is
# each response's own, as in the paper. With prompts of a token and responses of one length both are the same.
SHORT_PROMPTS = drawn_pairs([1, 1, 1], [6, 6, 6], [4, 7, 5])


def as_pairs(pairs: list[dict]) -> list[PreferenceSample]:
    samples = []
    for pair in pairs:
        prompt, chosen, rejected = pair.values()
        samples.append(PreferenceSample(prompt + chosen, prompt + rejected, len(prompt), len(prompt)))
    return samples


# ---- both sides -----------------------------------------------------------------------------------------------------


class Computed(NamedTuple):
    loss: float  # the mean over pairs or responses
    gradients: dict[str, torch.Tensor]  # by transformers' names
    figures: dict[str, list[float]]  # accuracy and rewards of each batch, as the trainer reports them


def our_gradient(sides, samples: list, **settings) -> Computed:
    """What the trainer that `aligner dpo` makes computes from the samples."""
    from omegaconf import OmegaConf

    from aligner_lib.algorithms.preference_losses import LOSSES
    from aligner_lib.kinds.dpo.kto import KTOTrainer
    from aligner_lib.kinds.dpo.trainer import DPOTrainer
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.generate import Sampling
    from aligner_lib.megatron.model import Numerics
    from aligner_lib.models.architecture import Architecture
    from aligner_lib.rollouts.policy import Policy

    policy_folder, reference_folder = sides.policy / "imported", sides.reference / "imported"
    loss, tokenizer = DPOLoss(ref_policy_kl_penalty=BETA, **settings), Tokenizer(sides.smoke)
    engine = Engine(Architecture.load(policy_folder), Numerics())
    engine.load(reference_folder)
    policy = Policy(engine, tokenizer, Sampling(max_length=1), forward_micro_batch_size=4)
    engine.load(policy_folder)
    kind = KTOTrainer if loss.preference_loss == "kto" else DPOTrainer
    trainer = kind(
        engine, tokenizer, train=samples, validation=samples, lr_schedule=None, global_batch_size=len(samples),
        micro_batch_size=len(samples), validation_micro_batch_size=len(samples), seed=0,
        settings=OmegaConf.structured(loss), policy=policy if LOSSES[loss.preference_loss].has_reference else None,
    )  # fmt: skip
    (batch,) = trainer._micro_batches(samples, len(samples))
    terms = trainer.loss(engine.module, batch, engine.module(batch.tokens, batch.lengths))
    mean = terms.loss_sum / terms.count
    mean.backward()
    for parameter in engine.module.parameters():
        parameter.data.copy_(parameter.grad)  # so that what is stored as its weights are its gradients
    folder = sides.out / f"gradients-{len(list(sides.out.iterdir()))}"
    engine.save(folder)
    figures = {name: [(value / terms.count).item()] for name, value in terms.metrics.items()}
    return Computed(mean.item(), stored_tensors(folder), figures)


TRL_FIGURES = {
    "acc": "rewards/accuracies",
    "rewards_chosen_mean": "rewards/chosen",
    "rewards_rejected_mean": "rewards/rejected",
}


def trl_gradient(
    sides, config, trainer_of, batches: list[dict], reference=True, weights=None, **columns
) -> Computed:
    """The mean of TRL's loss over these batches, its gradients and figures. config and trainer_of: TRL's classes; weights:
    more settings; columns: of the rows that TRL tokenises when a trainer is made; what is compared is given as token ids."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy, *references = (
        AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32)
        for folder in (sides.policy, sides.reference)[: 1 + reference]
    )
    tokenizer = AutoTokenizer.from_pretrained(sides.smoke)
    tokenizer.pad_token = tokenizer.eos_token
    common = {"output_dir": str(sides.out / "trl"), "beta": BETA, "max_length": None, "report_to": "none"}
    common |= {"bf16": False, "use_cpu": True, "gradient_checkpointing": False}
    trainer = trainer_of(
        policy,
        *references,
        args=config(**common, **(weights or {})),
        train_dataset=Dataset.from_list([{"prompt": "A:", **columns}] * 2),
        processing_class=tokenizer,
    )
    policy.train()
    losses = [trainer.compute_loss(policy, batch) for batch in batches]
    mean = sum(losses) / len(losses)
    mean.backward()
    recorded = trainer._metrics["train"] if hasattr(trainer, "_metrics") else trainer._stored_metrics["train"]
    figures = {
        ours: [float(value) for value in recorded[theirs]]
        for ours, theirs in [*TRL_FIGURES.items(), ("kl", "kl")]
        if theirs in recorded
    }
    return Computed(mean.item(), {name: value.grad for name, value in policy.named_parameters()}, figures)


def assert_same(ours: Computed, theirs: Computed) -> None:
    assert ours.loss == pytest.approx(theirs.loss, rel=CLOSE)
    assert ours.gradients.keys() == theirs.gradients.keys()
    scale = torch.stack([gradient.norm() for gradient in theirs.gradients.values()]).norm()
    assert scale > 0.01
    for name, gradient in theirs.gradients.items():
        assert (ours.gradients[name] - gradient).norm() <= CLOSE * scale, name


def assert_same_figures(ours: Computed, theirs: Computed) -> None:
    for name in TRL_FIGURES:
        computed, expected = (fmean(side.figures[name]) for side in (ours, theirs))
        assert computed == pytest.approx(expected, rel=CLOSE), name


# ---- pairs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"preference_loss": "dpo"}, {"loss_type": "sigmoid"}),
        ({"preference_loss": "dpo", "preference_average_log_probs": True}, {"loss_type": "sigmoid_norm"}),
        ({"preference_loss": "ipo"}, {"loss_type": "ipo"}),
        ({"preference_loss": "robust", "label_smoothing": 0.2}, {"loss_type": "robust", "label_smoothing": 0.2}),
        ({"preference_loss": "cdpo", "label_smoothing": 0.2}, {"loss_type": "aot", "label_smoothing": 0.2}),
    ],
    ids=["dpo", "length-normalised", "ipo", "robust", "cdpo"],
)  # fmt: skip
def test_with_a_reference(sides, ours, theirs):
    """Of the losses of means TRL 1.16 reports sums as rewards: of one pair at a time their means are known from them."""
    from trl import DPOConfig, DPOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    collate = DataCollatorForPreference(pad_token_id=0)
    batches = [PAIRS] if theirs["loss_type"] in ("sigmoid", "robust") else [[pair] for pair in PAIRS]
    batches = [collate(batch) for batch in batches]
    expected = trl_gradient(sides, DPOConfig, DPOTrainer, batches, weights=theirs, chosen=" b", rejected=" c")
    computed, figures = our_gradient(sides, as_pairs(PAIRS), **ours), expected.figures
    if theirs["loss_type"] in ("ipo", "sigmoid_norm"):
        for side in ("chosen", "rejected"):
            sums = zip(figures[f"rewards_{side}_mean"], PAIRS, strict=True)
            figures[f"rewards_{side}_mean"] = [value / len(pair[f"{side}_ids"]) for value, pair in sums]
        sides_of_pairs = zip(figures["rewards_chosen_mean"], figures["rewards_rejected_mean"])
        figures["acc"] = [float(chosen > rejected) for chosen, rejected in sides_of_pairs]
    assert_same(computed, expected)
    assert_same_figures(computed, expected)


def padded(pairs: list[dict]) -> dict[str, torch.Tensor]:
    """A batch as CPO's and ORPO's trainers take it."""
    batch = {}
    for side in ("chosen", "rejected"):
        rows = [torch.tensor(pair["prompt_ids"] + pair[f"{side}_ids"]) for pair in pairs]
        labels = [row.clone() for row in rows]
        for label, pair in zip(labels, pairs):
            label[: len(pair["prompt_ids"])] = -100
        batch[f"{side}_input_ids"] = pad_sequence(rows, batch_first=True)
        batch[f"{side}_attention_mask"] = pad_sequence(list(map(torch.ones_like, rows)), batch_first=True)
        batch[f"{side}_labels"] = pad_sequence(labels, batch_first=True, padding_value=-100)
    return batch


@pytest.mark.parametrize(
    ("module", "name", "pairs", "ours", "theirs"),
    [
        ("cpo", "CPO", PAIRS, {"preference_loss": "simpo", "simpo_margin": 0.4},
         {"loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 0.4}),
        ("orpo", "ORPO", SHORT_PROMPTS, {"preference_loss": "orpo"}, {}),
    ],
    ids=["simpo", "orpo"],
)  # fmt: skip
def test_without_a_reference(sides, module, name, pairs, ours, theirs):
    trl = import_module(f"trl.experimental.{module}")
    classes = getattr(trl, f"{name}Config"), getattr(trl, f"{name}Trainer")
    batches, texts = [padded(pairs)], {"chosen": " b", "rejected": " c"}
    expected = trl_gradient(sides, *classes, batches, reference=False, weights=theirs, **texts)
    computed = our_gradient(sides, as_pairs(pairs), **ours)
    assert_same(computed, expected)
    assert_same_figures(computed, expected)


# ---- labels ---------------------------------------------------------------------------------------------------------


def test_kto(sides):
    """With weights, and a reference point that is not 0."""
    from trl import KTOConfig, KTOTrainer
    from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

    examples, samples = [], []
    for i, (pair, label) in enumerate(zip(PAIRS, [True, False, True, True])):
        prompt, response, other = pair["prompt_ids"], pair["chosen_ids"], PAIRS[i - 1]["rejected_ids"]
        example = {"prompt_ids": prompt, "completion_ids": response, "KL_completion_ids": other}
        examples.append(example | {"label": label})
        samples.append(LabelledSample(label, (prompt + response, prompt + other), (len(prompt),) * 2))
    weights = {"desirable_weight": 1.5, "undesirable_weight": 0.7}
    batches = [DataCollatorForUnpairedPreference(pad_token_id=0)(examples)]
    settings = weights | {"per_device_train_batch_size": 2}
    texts = {"completion": " b", "label": True}
    expected = trl_gradient(sides, KTOConfig, KTOTrainer, batches, weights=settings, **texts)
    assert expected.figures["kl"][0] > 0.01
    weights = {"desirable_loss_weight": 1.5, "undesirable_loss_weight": 0.7}
    assert_same(our_gradient(sides, samples, preference_loss="kto", **weights), expected)
