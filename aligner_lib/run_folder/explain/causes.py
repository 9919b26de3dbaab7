"""What may be behind a run that looks wrong: each cause with the checks that it breaks and those that it leaves whole."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A fault, by what it does to the checks (explain/checks.py).

    breaks: of each group of names one at least is off; holds: these stay in their range. Both are evidence for it where
    they are so, and against it where they aren't.
    """

    name: str
    title: str
    breaks: tuple[tuple[str, ...], ...]
    holds: tuple[str, ...] = ()
    meaning: str = ""
    knob: str = ""  # the setting, or the place in the code


CAUSES = (
    Cause(
        "kl_sign",
        "The KL penalty has the wrong sign",
        breaks=(("kl_penalty", "kl_positive"),),
        holds=("sampler_first", "sampler_later", "reference_first", "reward_at_the_end"),
        meaning="The policy is paid for leaving its reference: KL grows without a bound, and the texts decay.",
        knob="rewards_with_kl in aligner_lib/algorithms/ppo.py: −coefficient · KL; the difference is log π − log π_ref.",
    ),
    Cause(
        "mask_shift",
        "The response mask is off by one",
        breaks=(("first_ratio", "sampler_first", "first_token"),),
        holds=("odd_tokens", "last_tokens", "reference_first"),
        meaning="A token beside the response is trained (the prompt's last one, or the padding), and one of its own is not.",
        knob="response_mask in aligner_lib/algorithms/ppo.py: columns P−1 to L−1, as column i predicts token i+1.",
    ),
    Cause(
        "stop_token",
        "The stop token is never trained",
        breaks=(("tokens_learnt", "last_token"), ("last_tokens", "last_token")),
        holds=("first_ratio", "sampler_first", "advantages_scaled"),
        meaning="Nothing makes an ending likelier, whatever it earns: responses grow to their limit.",
        knob="loss_mask in aligner_lib/algorithms/policy_gradient.py: the stop token is a response token like the others.",
    ),
    Cause(
        "tokens_left_out",
        "Some response tokens are never trained",
        breaks=(("tokens_learnt",),),
        holds=("last_tokens", "last_token", "first_ratio", "sampler_first"),
        meaning="The loss's mask leaves tokens out that the rollout has.",
        knob="loss_mask in aligner_lib/algorithms/policy_gradient.py.",
    ),
    Cause(
        "padding",
        "Advantages are normalised over padding",
        breaks=(("advantages_scaled", "advantages_centred", "mean_loss"),),
        holds=("tokens_learnt", "last_token", "reward_at_the_end", "first_ratio"),
        meaning="The zeros of prompts and padding count in mean and deviation: advantages are too large and have a sign in "
        "common, the more so the shorter the responses.",
        knob="normalize in aligner_lib/algorithms/ppo.py, and the mask that it is given.",
    ),
    Cause(
        "moving_reference",
        "The reference trains along",
        breaks=(("reference_rests",),),
        holds=("reference_first", "sampler_later", "gradient"),
        meaning="The policy is compared with itself: the KL stays 0, the penalty holds nothing, and no alarm on KL can sound.",
        knob="FrozenWeights in aligner_lib/megatron/engine.py: the reference's weights have to be a copy.",
    ),
    Cause(
        "temperature",
        "Log-probabilities are taken at another temperature than the sampler's",
        breaks=(("sampler_first", "first_ratio"), ("odd_tokens",)),
        holds=("tokens_learnt",),
        meaning="Nearly every token's log-probability is another one than that it was drawn with: the ratio compares two "
        "distributions, and every gradient is biased.",
        knob="sampling_params.temperature, and where log-probabilities are divided by it: TokenScorer in "
        "aligner_lib/rollouts/policy.py, loss in aligner_lib/trainers/policy_gradient.py.",
    ),
    Cause(
        "reward_token",
        "The reward is given to the wrong token",
        breaks=(("reward_at_the_end", "end_follows_reward"),),
        holds=("advantages_scaled", "mean_loss", "last_token", "kl_penalty", "reward_scale"),
        meaning="Tokens are praised for what came before them or for nothing, and the last one learns nothing of the reward.",
        knob="rewards_with_kl in aligner_lib/algorithms/ppo.py: the reward belongs to the last column of the response's mask.",
    ),
    Cause(
        "stale_rollouts",
        "The rollouts are older than the policy",
        breaks=(("sampler_later", "repeated"),),
        holds=("sampler_first", "reference_first"),
        meaning="Responses were drawn with the weights of an earlier step (or are an earlier step's): the policy learns from "
        "what it no longer says.",
        knob="Policy.refresh_generator in aligner_lib/rollouts/policy.py: generation has to get each step's weights; where "
        "lag is wanted, sampler_correction.",
    ),
    Cause(
        "learning_rate",
        "The learning rate is far too high",
        breaks=(("learning_rate", "first_move", "loss_falls"),),
        holds=("sampler_first", "first_ratio", "reward_at_the_end", "tokens_learnt", "kl_penalty"),
        meaning="One rollout's updates take the policy further than its rewards can tell of.",
        knob="model.optim.lr, and aligner_lib/trainers/lr.py where the logged rate is not the setting's.",
    ),
    Cause(
        "reward_scale",
        "The reward model's scale is off",
        breaks=(("reward_scale",),),
        holds=("reward_at_the_end", "advantages_scaled", "kl_penalty"),
        meaning="Rewards are not in units of their standard deviation: against them the KL penalty weighs too much or "
        "nothing, and the critic begins in other units.",
        knob="model.reward_standardization of the reward model's job; reward.json in its folder has mean and std.",
    ),
    Cause(
        "wrong_start",
        "The policy is not its own reference at the start",
        breaks=(("reference_first", "first_loss", "reference_of_dpo"),),
        holds=("sampler_first", "first_ratio"),
        meaning="Before any update policy and reference have to agree, and a new head to give 0: one of them was loaded from "
        "elsewhere, or computes otherwise.",
        knob="pretrained_checkpoint.restore_from_path.",
    ),
    Cause(
        "nothing_learns",
        "Nothing is learnt",
        breaks=(("gradient",),),
        meaning="The gradient is exactly 0.",
        knob="Which parameters train (model.peft), and whether any token or pair is in the loss.",
    ),
)
