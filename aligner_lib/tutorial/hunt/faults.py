"""Eleven silent faults of PPO, ten of which can be planted by name. A run with a silent fault trains to the end without an error.

    Workspace("runs/hunt", "smoke").submit("ppo", fault="kl_sign")

A fault is a wrong function that replaces a library function (config.functions). The text of the function is stored in the run
folder, and run.json names the file, exactly as for a learner's function. Torch is imported only when a fault runs.

    B responses, S longest row
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aligner_lib.errors import UserError


@dataclass(frozen=True)
class Fault:
    """A planted fault: wrong functions that replace functions of the library."""

    name: str
    title: str
    """The fault as a clause, for a list of choices."""
    functions: Mapping[str, Callable]
    """The wrong functions by the name of the replaced library function."""
    kind: str = "ppo"


def fault_of(name: str, kind: str) -> Fault:
    """Find a fault by name. Raises UserError for an unknown name, or for a fault of another kind of job."""
    of_kind = [fault.name for fault in FAULTS.values() if fault.kind == kind]
    if name not in of_kind:
        raise UserError(f"fault={name!r}: {kind} has {', '.join(of_kind) or 'none'}")
    return FAULTS[name]


# ---- wrong mathematics ----------------------------------------------------------------------------------------------


def kl_sign(rewards, kl, mask, coefficient):
    """The KL penalty with the wrong sign, which rewards the distance from the reference."""
    from aligner_lib.algorithms.ppo import rewards_with_kl

    return rewards_with_kl(rewards, kl, mask, -coefficient)


def reward_token(rewards, kl, mask, coefficient):
    """The score at the response's first token instead of the last token."""
    first = mask.int().argmax(dim=1)
    return (-coefficient * kl).scatter_add(1, first[:, None], rewards[:, None])


def rewards_shuffled(rewards, kl, mask, coefficient):
    """Each response with the reward of another response."""
    from aligner_lib.algorithms.ppo import rewards_with_kl

    return rewards_with_kl(rewards.roll(1), kl, mask, coefficient)


def mask_shift(response_mask, learnt):
    """The mask shifted to the right by one. Index i then stands for token i instead of the prediction of token i+1."""
    shifted = response_mask.new_zeros(response_mask.shape)
    shifted[:, 1:] = response_mask[:, :-1]
    return shifted & learnt[:, None]


def stop_token(response_mask, learnt):
    """The mask without each response's last token, which is the stop token of a response that ends."""
    goes_on = response_mask.new_zeros(response_mask.shape)
    goes_on[:, :-1] = response_mask[:, 1:]
    return response_mask & goes_on & learnt[:, None]


def padding(advantages, mask, sum_over_ranks, keep_mean=False):
    """Advantages normalised with the mean and variance over all of [B, S-1], including prompts and padding."""
    from aligner_lib.algorithms.ppo import normalize

    return normalize(advantages, mask.new_ones(mask.shape), sum_over_ranks, keep_mean) * mask


# ---- wrong parts ----------------------------------------------------------------------------------------------------


def moving_reference(trainer):
    """A reference that shares its weights with the policy instead of keeping a copy."""
    reference = trainer.policy.reference
    reference.weights = [parameter.data for parameter in reference.parameters]
    return trainer


def temperature(trainer):
    """Responses sampled at temperature 0.7, with log-probabilities computed at temperature 1."""
    import copy
    from dataclasses import replace

    sampler = copy.copy(trainer.policy)
    sampler.sampling = replace(sampler.sampling, temperature=0.7)
    trainer.collector.policy = sampler
    return trainer


def stale_rollouts(trainer):
    """A generator that never receives new weights. The initial policy samples all responses."""
    from aligner_lib.megatron.engine import FrozenWeights

    generator, first = trainer.policy.generator, FrozenWeights(trainer.policy.engine.module)

    class Batch:
        """A batch that is generated with the initial weights."""

        def __init__(self, rows):
            self.batch = generator.batch(rows)
            self.add = self.batch.add

        def run(self, *enough):
            with first.swap_in():
                self.batch.run(*enough)

    class Stale:
        """A generator that ignores new weights."""

        batch = Batch

        def refresh(self, weights):
            pass

    trainer.policy.generator = Stale()
    return trainer


def learning_rate(trainer):
    """Thirty times the policy's learning rate of the settings."""
    schedule = trainer.lr_schedule.function
    trainer.lr_schedule.function = lambda step, **settings: 30 * schedule(step, **settings)
    return trainer


def reward_scale(trainer):
    """Ten times the reward model's rewards."""
    source = trainer.collector.reward_source
    collect = source.collect
    source.collect = lambda requests: [10 * rewards for rewards in collect(requests)]
    return trainer


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kl_sign", "the KL penalty has the wrong sign", {"token_rewards": kl_sign}),
        Fault("mask_shift", "the loss mask is off by one", {"loss_mask": mask_shift}),
        Fault("stop_token", "the stop token is never trained", {"loss_mask": stop_token}),
        Fault("padding", "advantages are normalised over padding", {"normalize": padding}),
        Fault(
            "moving_reference",
            "the reference is updated together with the policy",
            {"trainer": moving_reference},
        ),
        Fault(
            "temperature", "log-probabilities are computed at another temperature", {"trainer": temperature}
        ),
        Fault(
            "reward_token",
            "the reward is at the first token of the response",
            {"token_rewards": reward_token},
        ),
        Fault("stale_rollouts", "the generator keeps its first weights", {"trainer": stale_rollouts}),
        Fault("learning_rate", "the learning rate is 30 times too high", {"trainer": learning_rate}),
        Fault("reward_scale", "rewards are 10 times too large", {"trainer": reward_scale}),
    )
}
UNLISTED = Fault(
    "rewards_shuffled",
    "each response has the reward of another response",
    {"token_rewards": rewards_shuffled},
)
"""A fault of the hunt that is not in the list of answer choices."""
