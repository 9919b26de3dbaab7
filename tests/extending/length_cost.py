"""A reward term of PPO: every token of a response costs 0.01, so shorter responses earn more."""

from aligner_lib.algorithms.ppo import rewards_with_kl

COST = 0.01  # per token, in the unit of rewards


def token_rewards(rewards, kl, mask, coefficient):
    """The library's token rewards minus the cost; for shapes see `rewards_with_kl`."""
    return rewards_with_kl(rewards, kl, mask, coefficient) - COST * mask
