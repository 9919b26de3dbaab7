"""Direct preference optimization: settings, metrics and charts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from aligner_lib.algorithms.preference_losses import LOSSES
from aligner_lib.config.kind import JobKind, TrainedModel
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.config.schema import (
    NO_GENERATION,
    NO_TEST_SPLIT,
    Loop,
    Optim,
    Sched,
    Trainer,
    above,
    at_least,
    conversion_without_effect,
    one_of,
    packing_without_effect,
    setting,
    within,
)
from aligner_lib.config.training import TRAINING_FUNCTIONS, AdaptableModel, ContinuedTrainingConfig
from aligner_lib.errors import ConfigError
from aligner_lib.kinds.pairs.settings import PAIR_FILES, START, PairData

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class DPOLoss:
    """model.dpo: the loss and its constants."""

    preference_loss: str = setting("dpo", one_of(*LOSSES))
    """The loss (see docs/configuration.md). kto learns from labels of single responses, all others from pairs."""
    ref_policy_kl_penalty: float = setting(0.2, above(0))
    """β, the weight of the KL to the reference in the objective from which the loss is derived; in simpo and orpo, the weight
    of the margin."""
    preference_average_log_probs: bool = False
    """Use the mean of a response's log-probabilities over its tokens (length-normalized DPO); ipo, simpo and orpo always do."""
    label_smoothing: float | None = setting(None, within(0, 0.49))
    """The fraction of labels that cdpo and robust assume to be wrong; null: 0.1."""
    simpo_margin: float | None = setting(None, at_least(0))
    """γ of simpo, in nats; null: half of β."""
    sft_loss_weight: float = setting(0.0, at_least(0))
    """The weight of the chosen responses' cross-entropy, which is added to the loss."""
    desirable_loss_weight: float = setting(1.0, at_least(0))
    """kto: the weight of responses with the label true."""
    undesirable_loss_weight: float = setting(1.0, at_least(0))
    """kto: the weight of responses with the label false."""
    precompute_reference_logprobs: bool = False
    """Compute the reference's log-probabilities once, before the first step, and keep them in the run folder. The job then has
    no second set of weights, so validation/kl can't be measured."""
    num_val_samples: int = setting(16, at_least(0))
    """The number of held-out prompts to which the policy responds in each validation, for validation/kl; 0: none."""
    val_response_length: int | None = setting(None, at_least(1))
    """The maximal length of these responses in tokens; null: half of encoder_seq_length."""


@dataclass
class DPOModel(AdaptableModel):
    """model of a DPO job."""

    data: PairData = field(default_factory=PairData)
    dpo: DPOLoss = field(default_factory=DPOLoss)
    optim: Optim = field(default_factory=lambda: Optim(lr=9e-6, sched=Sched(min_lr=9e-7)))


@dataclass
class DPOTrainerGroup(Trainer):
    """trainer of a DPO job."""

    dpo: Loop = field(default_factory=Loop)


def check_constants() -> None:
    """Raise TypeError for a constant of a preference loss that no setting of model.dpo has."""
    settings = {setting.name for setting in fields(DPOLoss)}
    for name, loss in LOSSES.items():
        for constant in loss.constants.keys() - settings:
            raise TypeError(
                f"the preference loss {name} takes the constant {constant}, which is no setting of model.dpo: add the field "
                f"{constant} to DPOLoss in aligner_lib/kinds/dpo/settings.py, with the default None"
            )


check_constants()

FUNCTIONS = {"loss": LOSSES["dpo"].place} | TRAINING_FUNCTIONS


@dataclass
class DPOConfig(ContinuedTrainingConfig):
    """All settings of `aligner dpo`."""

    trainer: DPOTrainerGroup = field(default_factory=DPOTrainerGroup)
    model: DPOModel = field(default_factory=DPOModel)


def takes_means(loss: DPOLoss) -> bool:
    """Whether the loss takes the mean of a response's log-probabilities over tokens; otherwise the loss takes their sum."""
    return LOSSES[loss.preference_loss].of_means or (
        loss.preference_average_log_probs and loss.preference_loss != "kto"
    )


def measures_kl(loss: DPOLoss) -> bool:
    """Whether the policy responds to held-out prompts in each validation, for validation/kl."""
    keeps_reference = LOSSES[loss.preference_loss].has_reference and not loss.precompute_reference_logprobs
    return keeps_reference and loss.num_val_samples > 0


def _without_effect(config: DictConfig) -> dict[str, str]:
    """The settings without effect, with the reasons. They include the constants of all losses except the chosen loss."""
    loss, chosen = config.model.dpo.preference_loss, LOSSES[config.model.dpo.preference_loss]
    unused = (
        NO_TEST_SPLIT
        | packing_without_effect(config, "model.micro_batch_size")
        | conversion_without_effect(config)
    )
    for name in {name for other in LOSSES.values() for name in other.constants} - chosen.constants.keys():
        takers = " and ".join(taker for taker, other in LOSSES.items() if name in other.constants)
        unused[f"model.dpo.{name}"] = f"this is a constant of {takers} and not of {loss}."
    if chosen.of_means:
        unused["model.dpo.preference_average_log_probs"] = f"{loss} takes means in any case."
    if loss == "kto":
        unused["model.dpo.preference_average_log_probs"] = "kto takes sums over tokens."
        unused["model.dpo.sft_loss_weight"] = "kto has no such term."
    else:
        labels = f"{loss} takes pairs; kto takes labels."
        unused |= dict.fromkeys(
            ("model.dpo.desirable_loss_weight", "model.dpo.undesirable_loss_weight"), labels
        )
    if not chosen.has_reference:
        unused["model.dpo.precompute_reference_logprobs"] = f"{loss} has no reference."
    if not chosen.has_reference or config.model.dpo.precompute_reference_logprobs:
        kept = "the reference's weights, which validation/kl is measured with, are not kept."
        unused |= dict.fromkeys(("model.dpo.num_val_samples", "model.dpo.val_response_length"), kept)
    elif config.model.dpo.num_val_samples == 0:
        unused["model.dpo.val_response_length"] = (
            "num_val_samples=0: the policy writes no responses in a validation."
        )
    if measures_kl(config.model.dpo):
        # the micro batches of its responses are not packed
        unused.pop("model.micro_batch_size", None)
    else:
        unused |= NO_GENERATION
    return unused


def _check_loss(config: DictConfig) -> None:
    loss = config.model.dpo.preference_loss
    if "loss" in config.functions and loss != "dpo":
        raise ConfigError(
            f"functions.loss replaces dpo_loss, but model.dpo.preference_loss={loss} selects another loss: leave "
            "either setting out"
        )


def _trains(config: DictConfig) -> tuple[TrainedModel, ...]:
    """A language model that reads both texts of a pair. The reference reads the same texts. KTO learns from single responses;
    its policy and its reference also score an unrelated response for each."""
    model, loss = config.model, config.model.dpo.preference_loss
    texts = 1 if loss == "kto" else 2
    micro_batch, batch = texts * model.micro_batch_size, texts * model.global_batch_size
    scored = 0 if not LOSSES[loss].has_reference else 3 if loss == "kto" else 1
    return (TrainedModel("sft", model.encoder_seq_length, micro_batch, batch, scored=scored),)


KIND = JobKind(
    name="dpo",
    command="dpo",
    summary="Direct preference optimisation: a policy learns from pairs, without a reward model.",
    schema=DPOConfig,
    trains=_trains,
    functions=FUNCTIONS,
    build="aligner_lib.kinds.dpo.build:prepare",
    models=START,
    data=PAIR_FILES,
    checks=(_check_loss,),
    without_effect=_without_effect,
    stage=6,
    **declared_in(Path(__file__).parent),
)
