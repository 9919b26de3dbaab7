"""The objective of a policy gradient as seven switches, and the named algorithms as settings of the switches. Imports no torch.

Papers differ in seven choices, and each choice is a switch: baseline, scale, aggregation, ratio, clipping, normaliser and KL.
The part on which all papers agree is written once, in `policy_gradient`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Objective:
    """The objective that training maximises. The defaults are GRPO (Shao et al. 2024, arXiv:2402.03300).

    Raises ValueError for a switch with an unknown value.
    """

    baseline: str = "group_mean"
    """One of BASELINES."""
    scale: str = "group_std"
    """One of SCALES."""
    aggregation: str = "sum_then_normalize"
    """One of AGGREGATIONS."""
    ratio: str = "token"
    """One of RATIOS."""
    clipping: str = "pessimistic"
    """One of CLIPPINGS."""
    clip_low: float = 0.2
    """The ratio is clipped to [1 − clip_low, 1 + clip_high]."""
    clip_high: float = 0.2
    normalizer: str = "responses"
    """One of NORMALIZERS."""
    kl: str = "k3"
    """One of KLS."""

    def __post_init__(self):
        for switch, choices in SWITCHES.items():
            if (value := getattr(self, switch)) not in choices:
                raise ValueError(f"{switch}={value!r}: choose from {', '.join(choices)}")

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL to the reference is a term of the loss, with a gradient of its own."""
        return self.kl in ("k1", "k2", "k3")

    @property
    def compares_within_groups(self) -> bool:
        """Whether a reward is compared with the rewards of its group alone. A group of equal rewards then teaches nothing."""
        return self.baseline in ("group_mean", "leave_one_out")

    @property
    def charges_kl_by_token(self) -> bool:
        """Whether a token's advantage includes the KL from the token to the end of the response, as in REINFORCE++. Otherwise
        the advantage includes the KL of the whole response, or none."""
        return (self.baseline, self.kl) == ("batch_mean", "reward") and self.scale != "group_std"


BASELINES = ("group_mean", "leave_one_out", "batch_mean", "critic", "teacher")
"""The baseline of a response's reward: the mean of its group, the mean of the other responses in its group, the mean of the
batch, or the critic's values. With `teacher` the rewards are not used: the advantage of a token is the teacher's
log-probability less the policy's."""
SCALES = ("group_std", "batch_std", "none")
"""The divisor of the advantages: the standard deviation of the group's or the batch's rewards, or no divisor."""
AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")
"""What happens to several rewards of a response: their weighted sum is compared with the baseline and scaled, or each reward
is normalised within its group before they are added."""
RATIOS = ("token", "sequence", "none")
"""π_now / π_old of each token, or its geometric mean over the response. With `none` the gradient is that of log π alone."""
CLIPPINGS = ("pessimistic", "stop_gradient")
"""The worse of the clipped and the unclipped surrogate, or log π weighted by the clipped ratio, without a gradient through
the weight."""
NORMALIZERS = ("responses", "tokens", "constant")
"""The mean over the tokens of each response and then over responses, the mean over all tokens of the batch, or the sum
divided by a constant."""
KLS = ("k1", "k2", "k3", "reward", "none")
"""The KL to the reference: an estimator in the loss (k1, k2, k3), a part of each token's reward, or no KL."""

SWITCHES = {
    "baseline": BASELINES,
    "scale": SCALES,
    "aggregation": AGGREGATIONS,
    "ratio": RATIOS,
    "clipping": CLIPPINGS,
    "normalizer": NORMALIZERS,
    "kl": KLS,
}

PRESETS = {
    "grpo": Objective(),
    # GRPO without the divisions that favour short wrong answers and easy or hard prompts: Liu et al. 2025 (arXiv:2503.20783)
    "dr_grpo": Objective(scale="none", normalizer="constant", kl="none"),
    # a higher upper clip, and equal weights of all tokens; the trainer does the sampling: Yu et al. 2025 (arXiv:2503.14476)
    "dapo": Objective(clip_high=0.28, normalizer="tokens", kl="none"),
    # the baseline is the mean reward of the other responses in the group: Ahmadian et al. 2024 (arXiv:2402.14740)
    "rloo": Objective(
        baseline="leave_one_out", scale="none", ratio="none", normalizer="constant", kl="reward"
    ),
    # the baseline is the batch's mean, so no groups are needed: Hu et al. 2025 (arXiv:2501.03262)
    "reinforce_pp": Objective(baseline="batch_mean", scale="batch_std", normalizer="tokens", kl="reward"),
    # one ratio for the whole response: Zheng et al. 2025 (arXiv:2507.18071)
    "gspo": Objective(ratio="sequence", clip_low=3e-4, clip_high=4e-4, kl="none"),
    # a clipped token keeps its gradient: MiniMax 2025 (arXiv:2506.13585)
    "cispo": Objective(
        clipping="stop_gradient", clip_low=1.0, clip_high=0.28, normalizer="tokens", kl="none"
    ),
    # each of several rewards is normalised in its group, so a wide one hides no narrow one: Liu et al. 2026 (arXiv:2601.05242)
    "gdpo": Objective(aggregation="normalize_then_sum"),
    "ppo": Objective(baseline="critic", scale="batch_std", normalizer="tokens", kl="reward"),
    # on-policy distillation, the reverse KL to a teacher for each token: Agarwal et al. 2024 (arXiv:2306.13649)
    "distill": Objective(baseline="teacher", scale="none", normalizer="tokens", kl="none"),
}
