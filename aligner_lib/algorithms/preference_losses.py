"""The losses of `aligner dpo`, as model.dpo.preference_loss names them. Imports no torch.

The functions are in `aligner_lib.algorithms.preference`. Settings, trainer and `aligner explain` read this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PreferenceLoss:
    """A loss that trains a policy on preferences."""

    place: str
    """"module:function". The function takes PairLogprobs, β and the constants, and returns float [B]; `dpo` and `kto` have
    other arguments."""
    constants: tuple[str, ...] = ()
    """The settings of model.dpo that the function takes after β."""
    has_reference: bool = True
    """Whether the function takes log-ratios to the reference. Otherwise the function takes the policy's log-probabilities."""
    of_means: bool = False
    """Whether the log-probabilities are always means over tokens (in ipo by convention)."""
    begins_at_ln_2: bool = False
    """Whether the loss is ln 2 while the policy equals the reference."""
    may_be_negative: bool = False


LOSSES = {
    "dpo": PreferenceLoss("aligner_lib.algorithms.preference:dpo_loss", begins_at_ln_2=True),
    "cdpo": PreferenceLoss(
        "aligner_lib.algorithms.preference:conservative_dpo_loss", ("label_smoothing",), begins_at_ln_2=True
    ),
    "robust": PreferenceLoss(
        "aligner_lib.algorithms.preference:robust_dpo_loss",
        ("label_smoothing",),
        begins_at_ln_2=True,
        may_be_negative=True,
    ),
    "ipo": PreferenceLoss("aligner_lib.algorithms.preference:ipo_loss", of_means=True),
    "simpo": PreferenceLoss(
        "aligner_lib.algorithms.preference:simpo_loss", ("simpo_margin",), has_reference=False, of_means=True
    ),
    "orpo": PreferenceLoss("aligner_lib.algorithms.preference:orpo_loss", has_reference=False, of_means=True),
    "kto": PreferenceLoss("aligner_lib.algorithms.preference:kto_loss"),
}
