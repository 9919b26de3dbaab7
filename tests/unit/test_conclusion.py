"""What a comparison shows, as sentences."""

from aligner_lib.tutorial.comparison.conclusion import conclusion
from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import Estimate


def test_a_gain_a_loss_and_neither_are_called_so():
    figures = {
        "SFT": {},
        "PPO": {"good_gain": Estimate(0.15, 0.05, 0.24), "gain": Estimate(0.2, 0.1, 0.3)},
        "DPO": {"good_gain": Estimate(0.02, -0.05, 0.09), "gain": Estimate(-0.2, -0.3, -0.1)},
    }
    assert conclusion(PolicyComparison("", figures), "SFT").splitlines() == [
        "The share of good answers, compared with SFT: a gain is shown for PPO (+0.15, +0.05 to +0.24); "
        "neither gain nor loss is shown for DPO (+0.02, -0.05 to +0.09).",
        "The mean reward, compared with SFT: a gain is shown for PPO (+0.20, +0.10 to +0.30); "
        "a loss is shown for DPO (-0.20, -0.30 to -0.10).",
    ]


def test_without_a_program_that_judges_the_reward_alone_is_concluded_from():
    nothing = float("nan")
    figures = {"SFT": {}, "PPO": {"gain": Estimate(0.2, nothing, nothing)}}
    text = conclusion(PolicyComparison("", figures), "SFT")
    assert text == "The mean reward, compared with SFT: not identifiable for PPO (+0.20)."
