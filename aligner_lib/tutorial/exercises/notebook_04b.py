"""The exercises of notebook 04b: REINFORCE, a baseline, the optimum under a KL penalty, and off-policy responses."""

from __future__ import annotations

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake
from aligner_lib.tutorial.exercises.recognition import not_finite_or_equal_to

torch = ImportedLate("torch")

# ---- reinforce_loss -------------------------------------------------------------------------------------------------


def _reinforce_loss(logits, responses, rewards):
    return -(rewards * logits.log_softmax(-1)[responses]).mean()


def _drawn_responses(draw: Draw) -> dict:
    """Logits, drawn responses and their rewards. In every third case, the first response's probability is 0 in float32."""
    count = draw.in_turn((5, 6, 9))
    logits, responses = draw.normal(8, scale=draw.in_turn((1.0, 10.0))), draw.integers(0, 8, count)
    logits[responses[0]] -= draw.in_turn((0.0, 0.0, 150.0))
    return {"logits": logits, "responses": responses, "rewards": draw.normal(count)}


REINFORCE_LOSS = Exercise(
    name="reinforce_loss",
    notebook="04b",
    title="a loss with the policy's gradient",
    minutes=9,
    difficulty=2,
    hint=r"The gradient of $-\frac{1}{N} \sum_i r_i \log \pi(x_i)$ is the one that is wanted, because the rewards are numbers. "
    "`logits.log_softmax(-1)` gives the log-probabilities of all responses, and an index picks the drawn ones.",
    reference=_reinforce_loss,
    inputs=_drawn_responses,
    outputs=("loss",),
    gradients=("logits",),
    mistakes=(
        Mistake(
            "sign",
            "The minus is missing. An optimizer minimises the loss, so responses with high rewards become less likely.",
            lambda logits, responses, rewards: -_reinforce_loss(logits, responses, rewards),
        ),
        Mistake(
            "probabilities",
            "The probability stands in place of its logarithm. Its gradient is π ∇ log π, so a response that is already likely "
            "counts twice: it is drawn more often, and each draw weighs more.",
            lambda logits, responses, rewards: -(rewards * logits.softmax(-1)[responses]).mean(),
        ),
        Mistake(
            "probabilities_summed",
            "These are the terms of the expected reward at the drawn responses. A response that is already likely counts twice: it is "
            "drawn more often, and its probability weights the reward again. Take the mean of the logarithms.",
            lambda logits, responses, rewards: -(rewards * logits.softmax(-1)[responses]).sum(),
        ),
        Mistake(
            "logits_for_logprobs",
            "These are logits without log_softmax, so no probability falls when another one rises.",
            lambda logits, responses, rewards: -(rewards * logits[responses]).mean(),
        ),
        Mistake(
            "not_drawn",
            "The sum runs over all eight responses, weighted by their probabilities, in place of the drawn ones. Which responses were "
            "drawn has no effect here, except for the mean of their rewards.",
            lambda logits, responses, rewards: (
                -rewards.mean() * (logits.softmax(-1) * logits.log_softmax(-1)).sum()
            ),
        ),
        Mistake(
            "weighted_twice",
            "Each term is multiplied by the response's probability. The draw has weighted the responses already: a likely response "
            "is drawn more often.",
            lambda logits, responses, rewards: _reinforce_loss(
                logits, responses, rewards * logits.detach().softmax(-1)[responses]
            ),
        ),
        Mistake(
            "summed",
            "The sum is not divided by the number of responses, so the step grows with the number of draws.",
            lambda logits, responses, rewards: len(rewards) * _reinforce_loss(logits, responses, rewards),
        ),
        Mistake(
            "rewards_summed_apart",
            "The mean reward is multiplied by the mean log-probability. Each response must be weighted by its own reward.",
            lambda logits, responses, rewards: -rewards.mean() * logits.log_softmax(-1)[responses].mean(),
        ),
        Mistake(
            "detached",
            "The value is right, but the log-probabilities have no gradient, so nothing is learnt.",
            lambda logits, responses, rewards: _reinforce_loss(logits.detach(), responses, rewards),
        ),
        Mistake(
            "log_of_zero",
            "A probability below 1e-45 is 0 in float32, and the logarithm of 0 is minus infinity. Stay with logarithms: "
            "`log_softmax` needs no probability.",
            lambda logits, responses, rewards: -(rewards * logits.softmax(-1)[responses].log()).mean(),
            seen_in=not_finite_or_equal_to(_reinforce_loss),
        ),
        Mistake(
            "divided_by_all_responses",
            "The sum is divided by the number of all responses that the policy knows. Divide by the number of drawn responses.",
            lambda logits, responses, rewards: (
                _reinforce_loss(logits, responses, rewards) * len(rewards) / len(logits)
            ),
        ),
        Mistake(
            "with_baseline",
            "The mean reward is subtracted. The gradient with this baseline belongs to the next section; this loss weights with "
            "the rewards themselves.",
            lambda logits, responses, rewards: _reinforce_loss(logits, responses, rewards - rewards.mean()),
        ),
        Mistake(
            "normalised_over_the_drawn",
            "`log_softmax` runs over the drawn responses only. The probabilities of all responses sum to 1: first "
            "`log_softmax`, then the index.",
            lambda logits, responses, rewards: -(rewards * logits[responses].log_softmax(-1)).mean(),
        ),
    ),
)

# ---- leave_one_out --------------------------------------------------------------------------------------------------


def _leave_one_out(rewards):
    return rewards - (rewards.sum() - rewards) / (len(rewards) - 1)


def _some_rewards(draw: Draw) -> dict:
    """Rewards of two to seven responses. In two of six cases rewards are equal, as those of a reward program: some, or all."""
    scale = draw.in_turn((1.0, 30.0))
    rewards = draw.normal(draw.in_turn((4, 7, 2)), scale=scale) + draw.between(-2.0, 5.0)
    some_are_equal, all_are_equal = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.ones(2)
    return {"rewards": draw.in_turn((rewards, rewards, rewards, some_are_equal, rewards, all_are_equal))}


LEAVE_ONE_OUT = Exercise(
    name="leave_one_out",
    notebook="04b",
    title="an advantage without bias",
    minutes=9,
    difficulty=2,
    hint="The sum of the other rewards is the sum of all rewards minus the response's own reward. There are N − 1 others.",
    reference=_leave_one_out,
    inputs=_some_rewards,
    outputs=("advantages",),
    mistakes=(
        Mistake(
            "own_reward_included",
            "The baseline is the mean of all rewards, the response's own included. So the baseline depends on the response, and "
            "the gradient is too small by the factor (N − 1) / N.",
            lambda rewards: rewards - rewards.mean(),
        ),
        Mistake(
            "divided_by_all",
            "The sum of the other rewards is divided by N. There are N − 1 others.",
            lambda rewards: rewards - (rewards.sum() - rewards) / len(rewards),
        ),
        Mistake(
            "baseline_alone",
            "This is the baseline. The advantage is the reward minus the baseline.",
            lambda rewards: rewards - _leave_one_out(rewards),
        ),
        Mistake(
            "sign",
            "This is the baseline minus the reward, so responses that are better than the others become less likely.",
            lambda rewards: -_leave_one_out(rewards),
        ),
        Mistake(
            "standardised",
            "The advantages are divided by the standard deviation of the rewards, as in GRPO. Here nothing is divided.",
            lambda rewards: _leave_one_out(rewards) / rewards.std(),
        ),
        Mistake(
            "as_in_grpo",
            "The differences from a mean are divided by their standard deviation, which gives GRPO's advantage: the division cancels the "
            "factor between the mean of all rewards and the mean of the others. Subtract the mean of the others, and divide "
            "nothing.",
            lambda rewards: (rewards - rewards.mean()) / rewards.std(),
        ),
        Mistake(
            "no_baseline",
            "Nothing is subtracted: these are the rewards.",
            lambda rewards: rewards.clone(),
        ),
        Mistake(
            "equal_rewards_left_out",
            "The baseline leaves out every response with the same reward. Each response leaves out only itself: another response "
            "with an equal reward counts in the mean.",
            lambda rewards: torch.stack([reward - rewards[rewards != reward].mean() for reward in rewards]),
        ),
        Mistake(
            "own_reward_in_the_sum",
            "The sum contains the response's own reward, but is divided by N − 1. Subtract the response's own reward from the "
            "sum.",
            lambda rewards: rewards - rewards.sum() / (len(rewards) - 1),
        ),
    ),
)

# ---- optimal_policy -------------------------------------------------------------------------------------------------


def _optimal_policy(reference_logprobs, rewards, beta):
    return (reference_logprobs + rewards / beta).log_softmax(-1)


def _probabilities(reference_logprobs, rewards, beta):
    return _optimal_policy(reference_logprobs, rewards, beta).exp()


def _reference_and_rewards(draw: Draw) -> dict:
    count = draw.one_of((5, 6, 8))
    rewards = draw.normal(count)
    rewards[0] = 1.5  # divided by 0.01, a reward above 0.9 overflows without the log-sum-exp trick
    return {
        "reference_logprobs": draw.normal(count, scale=2.0).log_softmax(-1),
        "rewards": rewards,
        "beta": draw.in_turn((0.5, 2.0, 0.01)),
    }


OPTIMAL_POLICY = Exercise(
    name="optimal_policy",
    notebook="04b",
    title="the best policy near a reference",
    minutes=9,
    difficulty=3,
    hint=r"Take the logarithm of $\pi^*$: $\log \pi_{ref}(x) + r(x) / \beta - \log Z$. The last term makes the probabilities sum to "
    "1, which is what `log_softmax` does.",
    reference=_optimal_policy,
    inputs=_reference_and_rewards,
    outputs=("logprobs",),
    mistakes=(
        Mistake(
            "not_normalised",
            "The probabilities do not sum to 1: log Z is missing.",
            lambda reference, rewards, beta: reference + rewards / beta,
        ),
        Mistake(
            "multiplied_by_beta",
            "The reward is multiplied by β. Then a large β, a high price for the KL, would move the policy far.",
            lambda reference, rewards, beta: (reference + rewards * beta).log_softmax(-1),
        ),
        Mistake(
            "no_reference",
            "The reference is missing. The result is the best policy for a uniform reference, in which a strange text is as likely as "
            "any other.",
            lambda reference, rewards, beta: (rewards / beta).log_softmax(-1),
        ),
        Mistake(
            "probabilities",
            "These are probabilities: return their logarithms.",
            _probabilities,
            seen_in=not_finite_or_equal_to(_probabilities),
        ),
        Mistake(
            "overflows",
            "A number leaves the range of float32 for a small β: the exponential of r / β is infinite, or a probability is 0 and its "
            "logarithm minus infinity. Stay with logarithms: `log_softmax` needs no exponential of r / β.",
            lambda reference, rewards, beta: (lambda weights: (weights / weights.sum()).log())(
                reference.exp() * (rewards / beta).exp()
            ),
            seen_in=not_finite_or_equal_to(_optimal_policy),
        ),
        Mistake(
            "reference_scaled",
            "The reference's log-probabilities are divided by β, too. The penalty is β times the KL, so only the reward is "
            "divided.",
            lambda reference, rewards, beta: ((reference + rewards) / beta).log_softmax(-1),
        ),
        Mistake(
            "sign",
            "The reward is subtracted, so the policy prefers the responses with the lowest rewards.",
            lambda reference, rewards, beta: _optimal_policy(reference, -rewards, beta),
        ),
        Mistake(
            "divided_by_the_sum",
            "The logarithms are divided by their sum. Probabilities are divided by Z, so log Z is subtracted from logarithms: "
            "`log_softmax`.",
            lambda reference, rewards, beta: (lambda logs: logs / logs.sum())(reference + rewards / beta),
        ),
    ),
)

# ---- off_policy_loss ------------------------------------------------------------------------------------------------


def _off_policy_loss(logits, responses, old_logprobs, advantages):
    ratio = (logits.log_softmax(-1)[responses] - old_logprobs).exp()
    return -(ratio * advantages).mean()


def _weighted_logprobs(logprobs, old_logprobs, advantages):
    return -((logprobs - old_logprobs).exp().detach() * logprobs * advantages).mean()


def _old_responses(draw: Draw) -> dict:
    """Responses of an older policy, and the logits of the current policy.

    In turn, the first response has an ordinary probability, a tiny probability under the old policy only, or a probability under
    both policies that is 0 in float32.
    """
    old, count = draw.normal(8), draw.one_of((5, 6, 8))
    responses = draw.integers(0, 8, count)
    logits = old + 0.5 * draw.normal(8)
    old[responses[0]] -= draw.in_turn((0.0, 15.0, 115.0))
    logits[responses[0]] -= draw.in_turn((0.0, 0.0, 115.0))
    return {
        "logits": logits,
        "responses": responses,
        "old_logprobs": old.log_softmax(-1)[responses],
        "advantages": draw.normal(count),
    }


OFF_POLICY_LOSS = Exercise(
    name="off_policy_loss",
    notebook="04b",
    title="a loss for responses of an older policy",
    minutes=8,
    difficulty=3,
    hint="The ratio of two probabilities is the exponential of the difference of their logarithms. Multiply each "
    "ratio by the response's advantage. The gradient flows through the ratio, so do not detach it.",
    reference=_off_policy_loss,
    inputs=_old_responses,
    outputs=("loss",),
    gradients=("logits",),
    mistakes=(
        Mistake(
            "on_policy",
            "This is REINFORCE's loss, which is right only for responses of the present policy. The ratio is missing.",
            lambda logits, responses, old, advantages: _reinforce_loss(logits, responses, advantages),
        ),
        Mistake(
            "upside_down",
            "The ratio is old over new. It should be new over old: a response that has become likelier stands for more draws.",
            lambda logits, responses, old, advantages: (
                -((old - logits.log_softmax(-1)[responses]).exp() * advantages).mean()
            ),
        ),
        Mistake(
            "logits_for_logprobs",
            "These are logits without log_softmax, so the ratio compares a logit with a log-probability.",
            lambda logits, responses, old, advantages: -((logits[responses] - old).exp() * advantages).mean(),
        ),
        Mistake(
            "weights_normalised",
            "The ratios are divided by their sum. The result has less noise, but its mean is no longer the expectation.",
            lambda logits, responses, old, advantages: (
                -((logits.log_softmax(-1)[responses] - old).softmax(-1) * advantages).sum()
            ),
        ),
        Mistake(
            "no_exponential",
            "The difference of the log-probabilities is the logarithm of the ratio. Take the exponential.",
            lambda logits, responses, old, advantages: (
                -((logits.log_softmax(-1)[responses] - old) * advantages).mean()
            ),
        ),
        Mistake(
            "probability_over_logarithm",
            "A probability is divided by a log-probability. Both parts of the ratio must be probabilities: the exponential of the "
            "difference of the two logarithms.",
            lambda logits, responses, old, advantages: (
                -(logits.softmax(-1)[responses] / old * advantages).mean()
            ),
        ),
        Mistake(
            "weighted_logprobs",
            "The gradient is right: the ratio, as a number, weights the log-probability. But the loss is not minus the mean of ratio "
            "times advantage, which estimates the objective itself.",
            lambda logits, responses, old, advantages: _weighted_logprobs(
                logits.log_softmax(-1)[responses], old, advantages
            ),
        ),
        Mistake(
            "sign",
            "The minus is missing: minimising this value makes the worse responses likelier.",
            lambda *inputs: -_off_policy_loss(*inputs),
        ),
        Mistake(
            "ratio_detached",
            "The value is right, but the ratio has no gradient, so nothing is learnt.",
            lambda logits, responses, old, advantages: _off_policy_loss(
                logits.detach(), responses, old, advantages
            ),
        ),
        Mistake(
            "clipped",
            "The ratio is clipped. That is the next section's remedy; the loss of this exercise is unbiased.",
            lambda logits, responses, old, advantages: (
                -torch.minimum(
                    (logits.log_softmax(-1)[responses] - old).exp() * advantages,
                    (logits.log_softmax(-1)[responses] - old).exp().clamp(0.8, 1.2) * advantages,
                ).mean()
            ),
        ),
        Mistake(
            "zero_over_zero",
            "The ratio divides two probabilities. A probability below 1e-45 is 0 in float32, and 0 / 0 is NaN. Stay with logarithms: "
            "take the exponential of their difference.",
            lambda logits, responses, old, advantages: (
                -(logits.softmax(-1)[responses] / old.exp() * advantages).mean()
            ),
            seen_in=not_finite_or_equal_to(_off_policy_loss),
        ),
        Mistake(
            "summed",
            "The sum is not divided by the number of responses, so the step grows with the number of draws.",
            lambda logits, responses, old, advantages: (
                len(old) * _off_policy_loss(logits, responses, old, advantages)
            ),
        ),
        Mistake(
            "only_clipped",
            "The ratio is clipped to a range around 1, and the unclipped ratio is lost. The loss of this exercise is unbiased: "
            "it clips nothing.",
            lambda logits, responses, old, advantages: (
                -((logits.log_softmax(-1)[responses] - old).exp().clamp(0.8, 1.2) * advantages).mean()
            ),
        ),
    ),
)

EXERCISES = (REINFORCE_LOSS, LEAVE_ONE_OUT, OPTIMAL_POLICY, OFF_POLICY_LOSS)
