"""What a comparison shows, as sentences."""

from aligner_lib.tutorial.comparison.conclusion import conclusion
from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import Estimate

ONE_SEED = (
    "The policies were trained with a single seed, so the intervals do not show how other seeds would do."
)


def test_a_gain_a_loss_and_neither_are_called_so():
    figures = {
        "SFT": {},
        "PPO": {"good_gain": Estimate(0.15, 0.05, 0.24), "gain": Estimate(0.2, 0.1, 0.3)},
        "DPO": {"good_gain": Estimate(0.02, -0.05, 0.09), "gain": Estimate(0.2, 0.1, 0.3)},
        "GRPO": {"good_gain": Estimate(-0.2, -0.3, -0.1), "gain": Estimate(-0.2, -0.3, -0.1)},
    }
    figures["GRPO"]["right_sums_gain"] = Estimate(0.7, 0.6, 0.8)
    good, reward, sums, warning, seeds = conclusion(PolicyComparison("", figures), "SFT").splitlines()
    assert good == (
        "The share of good answers, compared with SFT: a gain is shown for PPO (+0.15, +0.05 to +0.24); "
        "neither gain nor loss is shown for DPO (+0.02, -0.05 to +0.09, the interval includes 0); "
        "a loss is shown for GRPO (-0.20, -0.30 to -0.10)."
    )
    assert reward.startswith(
        "The mean reward, compared with SFT: a gain is shown for PPO (+0.20, +0.10 to +0.30), DPO"
    )
    assert sums == (
        "The share of right sums, compared with SFT: a gain is shown for GRPO (+0.70, +0.60 to +0.80)."
    )
    assert warning.startswith("The reward of DPO is higher without a gain of good answers that is shown")
    assert seeds == ONE_SEED


def test_without_a_program_that_judges_the_reward_alone_is_concluded_from():
    nothing = float("nan")
    figures = {"SFT": {}, "PPO": {"gain": Estimate(0.2, nothing, nothing)}}
    text = conclusion(PolicyComparison("", figures), "SFT")
    assert text == f"The mean reward, compared with SFT: not identifiable for PPO (+0.20).\n{ONE_SEED}"
    figures["PPO"]["reward_by_seed"] = [0.1, 0.3]
    assert ONE_SEED not in conclusion(PolicyComparison("", figures), "SFT")
