"""What a policy gradient maximises, in six switches; the named algorithms are settings of them. Imports no torch.

A switch is where two papers differ; what none of them disputes stands in `policy_gradient` once. The switches are
baseline, scale, ratio, clipping, normaliser and KL.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Objective:
    """What is maximised. The defaults are GRPO (Shao et al. 2024, arXiv:2402.03300)."""

    baseline: str = "group_mean"  # see BASELINES
    scale: str = "group_std"  # see SCALES
    ratio: str = "token"  # see RATIOS
    clipping: str = "pessimistic"  # see CLIPPINGS
    clip_low: float = 0.2  # the ratio is held in [1 − clip_low, 1 + clip_high]
    clip_high: float = 0.2
    normalizer: str = "responses"  # see NORMALIZERS
    kl: str = "k3"  # see KLS

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL to the reference is a term of the loss, with a gradient of its own."""
        return self.kl in ("k1", "k2", "k3")


# What a response's reward is compared with: its group's mean, the mean of the group's others, the batch's mean, a critic's
# values. With `teacher` no reward counts: a token's advantage is the teacher's log-probability less the policy's own.
BASELINES = ("group_mean", "leave_one_out", "batch_mean", "critic", "teacher")
# What advantages are divided by.
SCALES = ("group_std", "batch_std", "none")
# π_now / π_old of each token; its geometric mean over the response; or none, and the gradient is that of log π alone.
RATIOS = ("token", "sequence", "none")
# The worse of the clipped and the unclipped surrogate; or the clipped ratio as a weight of log π that has no gradient.
CLIPPINGS = ("pessimistic", "stop_gradient")
# The mean over each response's tokens, then over responses; over the batch's tokens; or the sum, divided by one constant.
NORMALIZERS = ("responses", "tokens", "constant")
# An estimator in the loss; in the reward of each token; or none.
KLS = ("k1", "k2", "k3", "reward", "none")


PRESETS = {
    "grpo": Objective(),
    # without the divisions that favour short wrong answers and easy or hard prompts: Liu et al. 2025 (arXiv:2503.20783)
    "dr_grpo": Objective(scale="none", normalizer="constant", kl="none"),
    # more room above, each token counts alike: Yu et al. 2025 (arXiv:2503.14476); its sampling is the trainer's
    "dapo": Objective(clip_high=0.28, normalizer="tokens", kl="none"),
    # a response against the others of its group: Ahmadian et al. 2024 (arXiv:2402.14740)
    "rloo": Objective(
        baseline="leave_one_out", scale="none", ratio="none", normalizer="constant", kl="reward"
    ),
    # no groups: Hu 2025 (arXiv:2501.03262)
    "reinforce_pp": Objective(baseline="batch_mean", scale="batch_std", normalizer="tokens", kl="reward"),
    # one ratio for the whole response: Zheng et al. 2025 (arXiv:2507.18071)
    "gspo": Objective(ratio="sequence", clip_low=3e-4, clip_high=4e-4, kl="none"),
    # a clipped token keeps its gradient: MiniMax 2025 (arXiv:2506.13585)
    "cispo": Objective(
        clipping="stop_gradient", clip_low=1.0, clip_high=0.28, normalizer="tokens", kl="none"
    ),
    "ppo": Objective(baseline="critic", scale="batch_std", normalizer="tokens", kl="reward"),
    # on-policy distillation, the reverse KL to a teacher token by token: Agarwal et al. 2024 (arXiv:2306.13649)
    "distill": Objective(baseline="teacher", scale="none", normalizer="tokens", kl="none"),
}
