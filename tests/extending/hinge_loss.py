"""A preference loss: a pair whose margin is above 1 / β has no gradient. Source: Liu et al. 2023 (arXiv:2309.06657)."""

from aligner_lib.algorithms.preference_losses import LOSSES, PreferenceLoss


def hinge_loss(ratios, beta):
    """max(0, 1 − β h), where h is the margin of the log-ratios: float [B]."""
    return (1 - beta * ratios.margin).clamp(min=0)


LOSSES["hinge"] = PreferenceLoss("hinge_loss:hinge_loss")
