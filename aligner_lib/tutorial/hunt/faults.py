"""Ten silent faults of PPO: each trains to its end without an error, and each has cost somebody weeks.

    Workspace("runs/hunt", "smoke").submit("ppo", fault="kl_sign")

A fault is a wrong function in place of one of the library's (config.functions), and travels as a learner's own does: its
text lies in the run folder, and run.json names it. No torch is imported before a fault runs.

    B responses, S longest row
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aligner_lib.errors import UserError


@dataclass(frozen=True)
class Fault:
    """A wrong function, and what it does."""

    name: str
    title: str  # what is wrong, in words that fit a list to choose from
    functions: Mapping[str, Callable]  # by the names that PPO replaces them by
    kind: str = "ppo"


def fault_of(name: str, kind: str) -> Fault:
    """Raises UserError for one that there is not, or not in this kind of job."""
    of_kind = [one.name for one in FAULTS.values() if one.kind == kind]
    if name not in of_kind:
        raise UserError(f"fault={name!r}: {kind} has {', '.join(of_kind) or 'none'}")
    return FAULTS[name]


# ---- wrong mathematics ----------------------------------------------------------------------------------------------


def kl_sign(rewards, kl, mask, coefficient):
    """The penalty's sign is turned: distance from the reference is paid for."""
    from aligner_lib.algorithms.ppo import rewards_with_kl

    return rewards_with_kl(rewards, kl, mask, -coefficient)


def reward_token(rewards, kl, mask, coefficient):
    """The score is at the response's first token, not at its last."""
    first = mask.int().argmax(dim=1)
    return (-coefficient * kl).scatter_add(1, first[:, None], rewards[:, None])


def mask_shift(response_mask, learnt):
    """One to the right: index i is taken for token i, not for the prediction of token i+1."""
    shifted = response_mask.new_zeros(response_mask.shape)
    shifted[:, 1:] = response_mask[:, :-1]
    return shifted & learnt[:, None]


def stop_token(response_mask, learnt):
    """Without each response's last token, where those that end have their stop token."""
    goes_on = response_mask.new_zeros(response_mask.shape)
    goes_on[:, :-1] = response_mask[:, 1:]
    return response_mask & goes_on & learnt[:, None]


def padding(advantages, mask, sum_over_ranks, keep_mean=False):
    """Mean and variance are over all of [B, S-1], prompts and padding included."""
    from aligner_lib.algorithms.ppo import normalize

    return normalize(advantages, mask.new_ones(mask.shape), sum_over_ranks, keep_mean) * mask


def learning_rate(
    step, *, peak, max_steps, warmup_steps=0, constant_steps=0, min_lr=0.0, name="CosineAnnealing"
):
    """Thirty times the rate that the settings say."""
    from aligner_lib.algorithms import schedule

    settings = {
        "warmup_steps": warmup_steps,
        "constant_steps": constant_steps,
        "min_lr": min_lr,
        "name": name,
    }
    return 30 * schedule.learning_rate(step, peak=peak, max_steps=max_steps, **settings)


# ---- wrong parts ----------------------------------------------------------------------------------------------------


def moving_reference(trainer):
    """The reference's weights are the policy's own memory: there is no copy of them."""
    reference = trainer.policy.reference
    reference.weights = [parameter.data for parameter in reference.parameters]
    return trainer


def temperature(trainer):
    """Responses are drawn at temperature 0.7, and their log-probabilities are taken at 1."""
    import copy
    from dataclasses import replace

    sampler = copy.copy(trainer.policy)
    sampler.sampling = replace(sampler.sampling, temperature=0.7)
    trainer.roll_out.policy = sampler
    return trainer


def stale_rollouts(trainer):
    """The generator is never given new weights: all responses are those of the policy that the run began with."""
    from aligner_lib.megatron.engine import FrozenWeights

    generator, first = trainer.policy.generator, FrozenWeights(trainer.policy.engine.module)

    class Batch:
        """Responses on their way, by the first weights."""

        def __init__(self, rows):
            self.batch = generator.batch(rows)
            self.add = self.batch.add

        def run(self, *enough):
            with first.swap_in():
                self.batch.run(*enough)

    class Stale:
        """A generator that takes no weights."""

        batch = Batch

        def refresh(self, weights):
            pass

    trainer.policy.generator = Stale()
    return trainer


def reward_scale(trainer):
    """Rewards are ten times what the reward model's scale makes of them."""
    source = trainer.roll_out.reward_source
    collect = source.collect
    source.collect = lambda asked: [10 * rewards for rewards in collect(asked)]
    return trainer


FAULTS = {
    one.name: one
    for one in (
        Fault("kl_sign", "the KL penalty has the wrong sign", {"token_rewards": kl_sign}),
        Fault("mask_shift", "the loss mask is off by one", {"loss_mask": mask_shift}),
        Fault("stop_token", "the stop token is never trained", {"loss_mask": stop_token}),
        Fault("padding", "advantages are normalised over padding", {"normalize": padding}),
        Fault("moving_reference", "the reference trains along", {"trainer": moving_reference}),
        Fault("temperature", "log-probabilities are taken at another temperature", {"trainer": temperature}),
        Fault(
            "reward_token",
            "the reward is at the first token of the response",
            {"token_rewards": reward_token},
        ),
        Fault("stale_rollouts", "the generator keeps its first weights", {"trainer": stale_rollouts}),
        Fault("learning_rate", "the learning rate is 30 times too high", {"learning_rate": learning_rate}),
        Fault("reward_scale", "rewards are 10 times too large", {"trainer": reward_scale}),
    )
}
