"""Direct preference optimisation: its settings, metrics and charts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aligner_lib.config.kind import JobKind
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.config.peft import Peft
from aligner_lib.config.schema import (
    NO_TEST_SPLIT,
    ExpManager,
    Loop,
    Model,
    Optim,
    PretrainedCheckpoint,
    Sched,
    Trainer,
    above,
    at_least,
    one_of,
    packing_without_effect,
    setting,
    within,
)
from aligner_lib.config.training import (
    TRAINING_FUNCTIONS,
)
from aligner_lib.errors import ConfigError
from aligner_lib.kinds.pairs.settings import PairData

if TYPE_CHECKING:
    from omegaconf import DictConfig

WITHOUT_REFERENCE = ("simpo", "orpo")
OF_MEANS = ("ipo", "simpo", "orpo")  # take log-probabilities as means over tokens (ipo by convention)
WITH_SMOOTHING = ("cdpo", "robust")
LOSSES = ("dpo", "cdpo", "robust", "ipo", "simpo", "orpo", "kto")


@dataclass
class DPOLoss:
    """model.dpo: which loss, and its constants."""

    preference_loss: str = setting("dpo", one_of(*LOSSES))
    # β, the weight of the KL to the reference that the loss stands for; in simpo and orpo the weight of the margin
    ref_policy_kl_penalty: float = setting(0.2, above(0))
    # log-probabilities of a response are means over its tokens (length-normalised DPO); ipo, simpo and orpo always are
    preference_average_log_probs: bool = False
    # the share of labels that is taken to be turned, of cdpo and robust; None: 0.1
    label_smoothing: float | None = setting(None, within(0, 0.49))
    simpo_margin: float | None = setting(None, at_least(0))  # γ of simpo, in nats; None: half of β
    sft_loss_weight: float = setting(
        0.0, at_least(0)
    )  # of the chosen responses' cross-entropy, beside the loss
    desirable_loss_weight: float = setting(1.0, at_least(0))  # of kto, for responses labelled true …
    undesirable_loss_weight: float = setting(1.0, at_least(0))  # … and for those labelled false
    # compute the reference's log-probabilities once, before the first step, and keep them in the run folder: there is no
    # second set of weights then, nor anything to measure validation/kl with
    precompute_reference_logprobs: bool = False
    # held-out prompts that the policy answers at each validation, for validation/kl; 0: none
    num_val_samples: int = setting(16, at_least(0))
    # tokens of such an answer; None: half of encoder_seq_length
    val_response_length: int | None = setting(None, at_least(1))


@dataclass
class DPOModel(Model):
    """model of a DPO job."""

    data: PairData = field(default_factory=PairData)
    dpo: DPOLoss = field(default_factory=DPOLoss)
    peft: Peft = field(default_factory=Peft)
    optim: Optim = field(default_factory=lambda: Optim(lr=9e-7, sched=Sched(min_lr=9e-8)))


@dataclass
class DPOTrainerGroup(Trainer):
    """trainer of a DPO job."""

    dpo: Loop = field(default_factory=Loop)


FUNCTIONS = {"loss": "aligner_lib.algorithms.preference:dpo_loss"} | TRAINING_FUNCTIONS


@dataclass
class DPOConfig:
    """All settings of `aligner dpo`."""

    trainer: DPOTrainerGroup = field(default_factory=DPOTrainerGroup)
    # the SFT policy, which is also the reference
    pretrained_checkpoint: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    model: DPOModel = field(default_factory=DPOModel)
    exp_manager: ExpManager = field(default_factory=ExpManager)
    functions: dict[str, Any] = setting({})  # FILE.py by the names in FUNCTIONS: see docs/your-code.md


def takes_means(loss: DPOLoss) -> bool:
    """Whether the loss takes a response's log-probability as its mean over the tokens; else as the sum."""
    return loss.preference_loss in OF_MEANS or (
        loss.preference_average_log_probs and loss.preference_loss != "kto"
    )


def _without_effect(config: DictConfig) -> dict[str, str]:
    """Constants of another loss than the one that was chosen."""
    loss, found = config.model.dpo.preference_loss, NO_TEST_SPLIT | packing_without_effect(config)
    if loss not in WITH_SMOOTHING:
        found["model.dpo.label_smoothing"] = f"{loss} takes all labels as they are; cdpo and robust don't."
    if loss != "simpo":
        found["model.dpo.simpo_margin"] = f"{loss} has no such margin."
    if loss in OF_MEANS:
        found["model.dpo.preference_average_log_probs"] = f"{loss} takes means in any case."
    if loss == "kto":
        found["model.dpo.preference_average_log_probs"] = "kto takes sums over tokens."
        found["model.dpo.sft_loss_weight"] = "kto has no such term."
    else:
        labels = f"{loss} takes pairs; kto takes labels."
        found |= dict.fromkeys(
            ("model.dpo.desirable_loss_weight", "model.dpo.undesirable_loss_weight"), labels
        )
    if loss in WITHOUT_REFERENCE:
        found["model.dpo.precompute_reference_logprobs"] = f"{loss} has no reference."
    if loss in WITHOUT_REFERENCE or config.model.dpo.precompute_reference_logprobs:
        kept = "the reference's weights, which validation/kl is measured with, are not kept."
        found |= dict.fromkeys(("model.dpo.num_val_samples", "model.dpo.val_response_length"), kept)
    return found


def _check_loss(config: DictConfig) -> None:
    loss = config.model.dpo.preference_loss
    if "loss" in config.functions and loss != "dpo":
        raise ConfigError(
            f"functions.loss stands in for dpo_loss, and model.dpo.preference_loss={loss} is another one: leave one of the "
            "two out"
        )


KIND = JobKind(
    name="dpo",
    command="dpo",
    summary="Direct preference optimisation: a policy learns from pairs, without a reward model.",
    schema=DPOConfig,
    functions=FUNCTIONS,
    build="aligner_lib.kinds.dpo.build:prepare",
    models={"pretrained_checkpoint.restore_from_path": "policy"},
    data={
        "model.data.data_prefix.train": ["hh/train_comparisons.jsonl"],
        "model.data.data_prefix.validation": ["hh/test_comparisons.jsonl"],
    },
    checks=(_check_loss,),
    without_effect=_without_effect,
    stage=6,
    **declared_in(Path(__file__).parent),
)
