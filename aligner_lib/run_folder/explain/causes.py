"""The causes of faulty runs: each cause with its failing checks and its healthy checks."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class Cause:
    """A fault, described by its effect on the checks (explain/checks.py).

    breaks: groups of check names; at least one check of each group fails. holds: checks inside their ranges. Each condition is
    evidence for the cause if true, and evidence against the cause if false. brings: other checks that may also fail.
    """

    name: str
    title: str
    breaks: tuple[tuple[str, ...], ...]
    _: KW_ONLY
    holds: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    meaning: str
    knob: str
    """The setting or the place in the code to look at."""


CAUSES = (
    Cause(
        "kl_sign",
        "The KL penalty has the wrong sign",
        breaks=(("kl_penalty_sign", "kl_positive"),),
        holds=("sampler_first", "sampler_later", "reference_first", "reward_at_the_end"),
        brings=("kl_penalty", "first_move"),
        meaning="The policy is rewarded for leaving its reference: the KL grows without bound, and the texts decay.",
        knob="rewards_with_kl in aligner_lib/algorithms/ppo.py: −coefficient · KL; the difference is log π − log π_ref.",
    ),
    Cause(
        "mask_shift",
        "The response mask is off by one",
        breaks=(("first_ratio", "sampler_first", "first_token"),),
        holds=("odd_tokens", "last_tokens", "reference_first", "tokens_beyond"),
        brings=("tokens_learnt", "mean_loss", "sampler_later"),
        meaning="A token beside the response is trained (the prompt's last token, or padding), and a response token is not.",
        knob="response_mask in aligner_lib/algorithms/ppo.py: columns P−1 to L−1, as column i predicts token i+1.",
    ),
    Cause(
        "stop_token",
        "The stop token is never trained",
        breaks=(("tokens_learnt", "last_token"), ("last_tokens", "last_token")),
        holds=("first_ratio", "sampler_first", "advantages_scaled", "tokens_beyond"),
        brings=("mean_loss",),
        meaning="Training never makes the stop token more likely, whatever reward it earns: responses grow to their limit.",
        knob="loss_mask in aligner_lib/algorithms/policy_gradient.py: the stop token is a response token like the others.",
    ),
    Cause(
        "tokens_left_out",
        "Some response tokens are never trained",
        breaks=(("tokens_learnt",),),
        holds=("last_tokens", "last_token", "first_ratio", "sampler_first", "tokens_beyond"),
        brings=("mean_loss",),
        meaning="The mask of the loss leaves out tokens of the rollout.",
        knob="loss_mask in aligner_lib/algorithms/policy_gradient.py.",
    ),
    Cause(
        "padding",
        "Advantages are normalised over padding",
        breaks=(("advantages_scaled", "advantages_centred", "mean_loss"),),
        holds=("tokens_learnt", "last_token", "reward_at_the_end", "first_ratio", "advantages_raw"),
        brings=("end_follows_reward",),
        meaning="The zeros of prompts and padding count in mean and standard deviation: advantages are too large and their mean "
        "is not 0, the more so the shorter the responses.",
        knob="normalize in aligner_lib/algorithms/ppo.py, and the mask that it is given.",
    ),
    Cause(
        "moving_reference",
        "The reference trains along",
        breaks=(("reference_rests",),),
        holds=("reference_first", "sampler_later", "gradient", "weights_move"),
        meaning="The policy is compared with itself: the KL stays 0, the penalty has no effect, and no KL alarm can sound.",
        knob="FrozenWeights in aligner_lib/megatron/engine.py: the reference's weights must be a copy.",
    ),
    Cause(
        "temperature",
        "Log-probabilities are taken at another temperature than the sampler's",
        breaks=(("sampler_first", "first_ratio"), ("odd_tokens",)),
        holds=("tokens_learnt", "tokens_beyond"),
        brings=("sampler_later",),
        meaning="Nearly every token's log-probability differs from the one that it was drawn with: the ratio compares two "
        "distributions, and every gradient is biased.",
        knob="sampling_params.temperature, and where log-probabilities are divided by it: TokenScorer in "
        "aligner_lib/rollouts/policy.py, loss in aligner_lib/kinds/policy_gradient/trainer.py.",
    ),
    Cause(
        "reward_token",
        "The reward is given to the wrong token",
        breaks=(("reward_at_the_end",), ("end_follows_reward",)),
        holds=(
            "advantages_scaled",
            "mean_loss",
            "last_token",
            "kl_penalty",
            "reward_scale",
            "advantage_sign",
        ),
        meaning="Tokens are credited for earlier tokens or for nothing, and the last token learns nothing from the reward.",
        knob="rewards_with_kl in aligner_lib/algorithms/ppo.py: the reward belongs to the last column of the response's mask.",
    ),
    Cause(
        "rewards_failed",
        "The reward fails",
        breaks=(("rewards_failed",),),
        brings=("gradient", "reward_scale", "tokens_learnt", "weights_move", "reference_rests"),
        meaning="Responses have no reward, because it raised an error, hung, died or was NaN: the policy learns nothing from them.",
        knob="environment_failures.txt in the run folder has the first traceback of each reason; model.environments.NAME.timeout.",
    ),
    Cause(
        "groups_alike",
        "All responses to a prompt have the same reward",
        breaks=(("groups_alike",),),
        meaning="A group whose rewards are all equal has advantages of 0, so the policy learns nothing from the group's responses.",
        knob="The task and its reward: prompts that the policy solves sometimes, and a reward that tells good responses from bad "
        "ones. Or raise sampling_params.temperature or model.grpo.num_generations_per_prompt.",
    ),
    Cause(
        "copies_prompt",
        "The policy copies its prompt",
        breaks=(("copied",),),
        meaning="The reward takes the words of the instruction for obedience, so that the policy repeats them instead of "
        "answering.",
        knob="The reward model's pairs: add copies of the prompt as rejected responses. Or raise initial_policy_kl_penalty; an "
        "objective without a KL needs model.grpo.kl=k3.",
    ),
    Cause(
        "reward_fooled",
        "The reward model is fooled: the reward rises and good responses become rarer",
        breaks=(("good_falls",),),
        meaning="The policy has found responses that the reward model likes and a program finds bad: it optimises an error of the "
        "reward model.",
        knob="The responses with the highest rewards: add such ones as rejected responses to the reward model's pairs. Or raise "
        "initial_policy_kl_penalty; an objective without a KL needs model.grpo.kl=k3.",
    ),
    Cause(
        "sampler_cut",
        "Log-probabilities of a cut sampler are taken for the policy's",
        breaks=(("sampler_cut",),),
        holds=("tokens_learnt", "tokens_beyond"),
        brings=(
            "first_ratio",
            "reference_first",
            "kl_penalty",
            "mean_loss",
            "reward_at_the_end",
            "first_move",
        ),
        meaning="top_k, top_p, use_greedy or min_length leave some tokens out, so that generation gives the others more "
        "probability than the policy does: ratio and KL are wrong from the first step on.",
        knob="model.grpo.recompute_logprobs (model.ppo.…): null or True computes them again.",
    ),
    Cause(
        "stale_rollouts",
        "The rollouts are older than the policy",
        breaks=(("sampler_later", "repeated"),),
        holds=("sampler_first", "reference_first", "tokens_beyond"),
        brings=("kl_positive", "first_ratio"),
        meaning="Responses were drawn with the weights of an earlier step (or are an earlier step's responses): the policy learns "
        "from responses that it would no longer give.",
        knob="Policy.refresh_generator in aligner_lib/rollouts/policy.py: generation must get the weights of each step; where a "
        "lag is intended, sampler_correction.",
    ),
    Cause(
        "learning_rate",
        "The learning rate is far too high",
        breaks=(("learning_rate", "first_move", "loss_falls"),),
        holds=(
            "sampler_first",
            "first_ratio",
            "reward_at_the_end",
            "tokens_learnt",
            "kl_penalty",
            "loss_positive",
        ),
        brings=("kl_positive",),
        meaning="The updates of one rollout move the policy further than its rewards justify.",
        knob="model.optim.lr, and aligner_lib/trainers/lr.py where the logged rate is not the setting's.",
    ),
    Cause(
        "reward_scale",
        "The reward model's scale is off",
        breaks=(("reward_scale",),),
        holds=("reward_at_the_end", "advantages_scaled", "kl_penalty"),
        meaning="Rewards are not in units of their standard deviation: relative to them the KL penalty is far too strong or too "
        "weak, and the critic starts in other units.",
        knob="model.reward_standardization of the reward model's job; reward.json in its folder has mean and std.",
    ),
    Cause(
        "wrong_start",
        "The policy is not its own reference at the start",
        breaks=(
            ("reference_first", "first_loss", "reference_of_dpo"),
            ("reference_first", "reference_of_dpo", "start_rewards"),
        ),
        holds=("sampler_first", "first_ratio"),
        brings=("kl_penalty", "reward_at_the_end", "pair_loss_bound"),
        meaning="Before any update the policy must equal its reference, and a new head must give 0: one of them was loaded from "
        "another place, or computes differently.",
        knob="pretrained_checkpoint.restore_from_path.",
    ),
    Cause(
        "nothing_learns",
        "Nothing is learnt",
        breaks=(("gradient",),),
        brings=("weights_move", "reference_rests"),
        meaning="The gradient is exactly 0.",
        knob="Which parameters train (model.peft), and whether any token or pair is in the loss.",
    ),
    Cause(
        "rate_zero",
        "The learning rate is 0",
        breaks=(("rate_above_zero",),),
        holds=("gradient",),
        brings=("weights_move", "reference_rests"),
        meaning="There are gradients, but the optimizer takes steps of length 0: the weights do not change.",
        knob="model.optim.lr and model.optim.sched, and learning_rate in aligner_lib/algorithms/schedule.py.",
    ),
    Cause(
        "weights_frozen",
        "The weights do not move",
        breaks=(("weights_move",),),
        holds=("rate_above_zero", "gradient"),
        meaning="Gradients and learning rate are not 0, but two validations give the same loss to the last digit: the weights "
        "that the optimizer updates are not those that the model computes with.",
        knob="Which parameters train (model.peft, model.num_layers_unfrozen), and the optimizer's own copies of them.",
    ),
    Cause(
        "critic_frozen",
        "The critic learns nothing",
        breaks=(("critic_gradient",),),
        holds=("gradient",),
        meaning="The critic's gradient is exactly 0: advantages stay relative to the reward model's first guess.",
        knob="Critic in aligner_lib/rollouts/critic.py, and critic_loss in aligner_lib/algorithms/ppo.py.",
    ),
    Cause(
        "prompt_trained",
        "Tokens outside of responses are trained",
        breaks=(("tokens_beyond",),),
        holds=("reference_first", "advantages_scaled"),
        brings=(
            "tokens_learnt",
            "first_ratio",
            "mean_loss",
            "sampler_first",
            "sampler_later",
            "first_token",
        ),
        meaning="Training covers more tokens than the policy has drawn: the prompt's, an environment's or padding. Their ratios "
        "are not 1, because generation never computed their log-probabilities.",
        knob="loss_mask in aligner_lib/algorithms/policy_gradient.py, and Rollouts.response_mask.",
    ),
    Cause(
        "advantage_sign",
        "Advantages have the wrong sign",
        breaks=(("advantage_sign",),),
        holds=("reward_at_the_end", "first_ratio", "group_centred"),
        brings=("end_follows_reward", "first_move"),
        meaning="Responses with a high reward become less likely, and those with a low reward more likely: the reward falls.",
        knob="advantages_and_returns in aligner_lib/algorithms/ppo.py, grpo_advantages in "
        "aligner_lib/algorithms/policy_gradient.py: reward minus baseline.",
    ),
    Cause(
        "returns",
        "The critic does not learn returns",
        breaks=(("reward_at_the_end",),),
        holds=("end_follows_reward", "advantage_sign", "reward_scale", "kl_penalty_sign"),
        meaning="Advantages follow the rewards, but the last token's return is not its reward: a return is the advantage plus the "
        "critic's value.",
        knob="advantages_and_returns in aligner_lib/algorithms/ppo.py, second result.",
    ),
    Cause(
        "not_normalised",
        "Advantages are not normalised",
        breaks=(("advantages_scaled",), ("advantages_raw",)),
        holds=("tokens_learnt", "first_ratio", "advantage_sign"),
        brings=("advantages_centred", "mean_loss"),
        meaning="trainer.ppo.normalize_advantages is set, but advantages have the mean and the deviation of the raw ones: the "
        "size of a step depends on the units of the reward.",
        knob="normalize in aligner_lib/algorithms/ppo.py.",
    ),
    Cause(
        "kl_penalty",
        "The KL penalty is not the coefficient times the KL",
        breaks=(("kl_penalty",),),
        holds=("kl_penalty_sign", "kl_positive", "sampler_first", "reference_first", "reward_at_the_end"),
        brings=("first_move",),
        meaning="The amount that is taken from a response's reward is not its KL times the coefficient, but a multiple, a fraction, "
        "or nothing: the penalty is another one than the setting says.",
        knob="rewards_with_kl in aligner_lib/algorithms/ppo.py: −coefficient · KL at each token.",
    ),
    Cause(
        "no_baseline",
        "A group's advantages do not add up to 0",
        breaks=(("group_centred",),),
        holds=("advantage_sign", "first_ratio"),
        meaning="Responses are not compared with their own group: where all rewards are above 0, every response becomes more "
        "likely, the worst ones too.",
        knob="grpo_advantages in aligner_lib/algorithms/policy_gradient.py: minus the mean of the group; `group` has the number of "
        "each response's group.",
    ),
    Cause(
        "kl_loss_sign",
        "The KL term of the loss has the wrong sign",
        breaks=(("kl_loss_positive",),),
        holds=("group_centred", "advantage_sign", "first_ratio"),
        meaning="The estimator can't be negative, but the logged value is: the policy is rewarded for leaving its reference.",
        knob="kl_loss in aligner_lib/algorithms/policy_gradient.py: k3 is e^−d − 1 + d, with d = log π − log π_ref.",
    ),
    Cause(
        "loss_sign",
        "The loss has the wrong sign",
        breaks=(("loss_positive",),),
        holds=("pair_loss_bound",),
        meaning="The likelihood of the samples is minimised: the loss falls without bound, and the model unlearns the samples.",
        knob="token_losses in aligner_lib/algorithms/supervised.py: −log p.",
    ),
    Cause(
        "pair_swapped",
        "Chosen and rejected are exchanged in the loss",
        breaks=(("accuracy_by_chance",), ("pair_loss_bound",)),
        holds=("first_loss", "loss_positive"),
        brings=("validation_accuracy",),
        meaning="The loss falls while the model prefers the rejected responses, and it is smaller than the logged margins allow: it "
        "is computed from the opposite margin.",
        knob="preference_loss and dpo_loss in aligner_lib/algorithms/preference.py: chosen first.",
    ),
    Cause(
        "pair_loss",
        "The loss is not −log σ of the margin",
        breaks=(("pair_loss_bound", "first_loss"),),
        holds=("accuracy_by_chance", "validation_accuracy", "start_rewards", "reference_of_dpo"),
        brings=("loss_positive",),
        meaning="Both answers begin with equal rewards and accuracy rises, but the loss does not follow from the logged margins: "
        "β, the reference or log σ is missing or wrong.",
        knob="preference_loss and dpo_loss in aligner_lib/algorithms/preference.py; model.dpo.ref_policy_kl_penalty is β.",
    ),
    Cause(
        "validation_turned",
        "The validation pairs mean the opposite of the training pairs",
        breaks=(("validation_accuracy",),),
        holds=("accuracy_by_chance", "pair_loss_bound", "first_loss"),
        meaning="The model prefers the chosen responses of training pairs, but the rejected ones of held-out pairs, more often than "
        "by chance.",
        knob="model.data.data_prefix.validation: which of a pair's two lines is the better one.",
    ),
)
