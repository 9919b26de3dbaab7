"""The losses of `aligner dpo`, as model.dpo.preference_loss names them. Imports no torch.

The functions are in `aligner_lib.algorithms.preference`. Settings, trainer and `aligner explain` read this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PreferenceLoss:
    """A loss that trains a policy on preferences."""

    place: str
    """"module:function". The function takes PairLogprobs, β and the constants, and returns float [B]; `dpo` and `kto` have
    other arguments."""
    constants: Mapping[str, Callable[[float], float]] = field(default_factory=dict)
    """The settings of model.dpo that the function takes after β, and the default of each, which may depend on β."""
    has_reference: bool = True
    """Whether the function takes log-ratios to the reference. Otherwise the function takes the policy's log-probabilities."""
    of_means: bool = False
    """Whether the log-probabilities are always means over tokens (in ipo by convention)."""
    begins_at_ln_2: bool = False
    """Whether the loss is ln 2 while the policy equals the reference."""
    may_be_negative: bool = False


LABEL_SMOOTHING = {"label_smoothing": lambda beta: 0.1}

LOSSES = {
    "dpo": PreferenceLoss("aligner_lib.algorithms.preference:dpo_loss", begins_at_ln_2=True),
    "cdpo": PreferenceLoss(
        "aligner_lib.algorithms.preference:conservative_dpo_loss", LABEL_SMOOTHING, begins_at_ln_2=True
    ),
    "robust": PreferenceLoss(
        "aligner_lib.algorithms.preference:robust_dpo_loss",
        LABEL_SMOOTHING,
        begins_at_ln_2=True,
        may_be_negative=True,
    ),
    "ipo": PreferenceLoss("aligner_lib.algorithms.preference:ipo_loss", of_means=True),
    "simpo": PreferenceLoss(
        "aligner_lib.algorithms.preference:simpo_loss",
        {"simpo_margin": lambda beta: beta / 2},
        has_reference=False,
        of_means=True,
    ),
    "orpo": PreferenceLoss("aligner_lib.algorithms.preference:orpo_loss", has_reference=False, of_means=True),
    "kto": PreferenceLoss("aligner_lib.algorithms.preference:kto_loss"),
}
