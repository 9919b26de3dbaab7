"""The exercises of notebook 05: the parts of PPO, and the whole loss on a bandit."""

from __future__ import annotations

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake
from aligner_lib.tutorial.exercises.recognition import equal_to, not_finite_or_equal_to

torch = ImportedLate("torch")
ppo = ImportedLate("aligner_lib.algorithms.ppo")

# ---- token_rewards --------------------------------------------------------------------------------------------------


def _token_rewards(rewards, kl, mask, coefficient):
    return ppo.rewards_with_kl(rewards, kl * mask, mask, coefficient)


def _with_kl(change):
    """The right function with another KL: change(kl, mask)."""
    return lambda rewards, kl, mask, coefficient: _token_rewards(
        rewards, change(kl * mask, mask), mask, coefficient
    )


def _with_reward_at(place):
    """The right function with the score at other tokens: place(mask) is 1.0 at these tokens, float [B, S-1]."""

    def answer(rewards, kl, mask, coefficient):
        penalty = _token_rewards(0 * rewards, kl, mask, coefficient)
        return penalty + place(mask.float()) * rewards[:, None]

    return answer


def _first_place(mask):
    return torch.nn.functional.one_hot(mask.argmax(1), mask.shape[1])


def _last_place(mask):
    columns = torch.arange(mask.shape[1])
    return torch.nn.functional.one_hot((mask * columns).argmax(1), mask.shape[1])


def _last_column(mask):
    return torch.nn.functional.one_hot(torch.full((len(mask),), mask.shape[1] - 1), mask.shape[1])


def _at_the_count(mask):
    return torch.nn.functional.one_hot(mask.sum(1).long() - 1, mask.shape[1])


def _last_column_inside_the_mask(cases, outputs):
    """Whether the score stands in the last column, in an answer that then sets everything outside the mask to 0."""
    planted = _with_reward_at(_last_column)
    return all(
        torch.is_tensor(answer)
        and answer.shape == case["mask"].shape
        and torch.allclose(answer, planted(**case) * case["mask"], atol=1e-5)
        for case, (answer, *_) in zip(cases, outputs)
    )


def _scored_and_drawn(draw: Draw) -> dict:
    rows, size = draw.one_of((2, 3)), draw.one_of((6, 7, 8))
    return {
        "rewards": draw.normal(rows, scale=2.0),
        "kl": draw.normal(rows, size),
        "mask": draw.response_mask(rows, size),
        "coefficient": draw.between(0.05, 0.6),
    }


TOKEN_REWARDS = Exercise(
    name="token_rewards",
    notebook="05",
    title="the reward of each token, with its KL penalty",
    minutes=9,
    difficulty=2,
    hint="Start with `-coefficient * kl * mask`. The last token of a row is the last position where the mask is 1. Its "
    "index is the largest product of index and mask: `(mask * torch.arange(mask.shape[1])).argmax(dim=1)`. Add the "
    "row's reward at this position only.",
    reference=_token_rewards,
    library="aligner_lib.algorithms.ppo.rewards_with_kl",
    trains=("ppo", "token_rewards"),
    inputs=_scored_and_drawn,
    outputs=("token_rewards",),
    mistakes=(
        Mistake(
            "sign_of_the_kl",
            "The penalty has the wrong sign: a token is rewarded for being likelier under the policy than under "
            "the reference, so the policy moves away from the reference.",
            _with_kl(lambda kl, mask: -kl),
        ),
        Mistake(
            "padding_is_penalised",
            "Tokens outside the mask get a KL penalty, although the policy has not written them.",
            lambda rewards, kl, mask, coefficient: (
                _token_rewards(rewards, kl, mask, coefficient) - coefficient * kl * ~mask
            ),
        ),
        Mistake(
            "reward_at_the_last_column",
            "The score stands in the last column. In all rows except the longest, the last column is padding, so "
            "no token receives the score.",
            _with_reward_at(_last_column),
            seen_in=_last_column_inside_the_mask,
        ),
        Mistake(
            "length_for_position",
            "The number of response tokens serves as the position of the last one. The prompt stands before the response, so the "
            "score lands too early.",
            _with_reward_at(_at_the_count),
        ),
        Mistake(
            "reward_at_the_first_token",
            "The score stands at the response's first token, so all later tokens have nothing to learn from.",
            _with_reward_at(_first_place),
        ),
        Mistake(
            "reward_at_every_token",
            "Each token gets the whole score, so a long response gets a larger total reward.",
            _with_reward_at(lambda mask: mask),
        ),
        Mistake(
            "reward_is_scaled",
            "The score is multiplied by the coefficient. Only the KL penalty should be.",
            lambda rewards, kl, mask, coefficient: _token_rewards(
                coefficient * rewards, kl, mask, coefficient
            ),
        ),
        Mistake(
            "penalty_at_the_end",
            "The last token gets the penalties of all tokens. The sum is right, but the policy cannot learn which "
            "token moved away from the reference.",
            _with_kl(lambda kl, mask: kl.sum(1, keepdim=True) * _last_place(mask)),
        ),
        Mistake(
            "absolute_kl",
            "The penalty uses the absolute value of the KL, so a token also pays where the policy finds it less "
            "likely than the reference does. Keep the sign: only with its negative terms is the mean over many "
            "draws the KL. A run with `use_absolute_kl` takes the absolute value on purpose, before it calls your function.",
            _with_kl(lambda kl, mask: kl.abs()),
        ),
        Mistake(
            "penalty_forgotten",
            "The KL penalty is missing, so nothing keeps the policy near its reference.",
            _with_kl(lambda kl, mask: 0 * kl),
        ),
    ),
)

# ---- gae ------------------------------------------------------------------------------------------------------------


def _gae(values, rewards, mask, discount, gae_lambda):
    return ppo.advantages_and_returns(values, rewards, mask, discount, gae_lambda)


def _recursion(values, rewards, mask, discount, decay, past_the_end=False):
    """Advantages with `decay` instead of γλ. past_the_end: use the padding's value after the last token."""
    advantages, carried = torch.zeros_like(values), 0.0
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    if not past_the_end:
        following = following * torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1)
    for t in reversed(range(values.shape[1])):
        error = rewards[:, t] + discount * following[:, t] - values[:, t]
        advantages[:, t] = carried = (error + decay * carried) * mask[:, t]
    return advantages, (advantages + values) * mask


def _forwards(values, rewards, mask, discount, gae_lambda):
    advantages, _ = _recursion(values, rewards, mask, discount, 0.0)
    for t in range(1, values.shape[1]):
        advantages[:, t] = (advantages[:, t] + discount * gae_lambda * advantages[:, t - 1]) * mask[:, t]
    return advantages, (advantages + values) * mask


def _without_the_first_column(values, rewards, mask, discount, gae_lambda):
    advantages, _ = _gae(values, rewards, mask, discount, gae_lambda)
    advantages[:, 0] = 0
    return advantages, (advantages + values) * mask


def _first_column_is_empty(cases: list[dict], outputs: list[tuple]) -> bool:
    """Whether column 0 of the advantages is 0 and all other columns are right, whatever the returns are."""
    for case, returned in zip(cases, outputs):
        right, _ = _gae(*case.values())
        advantages = returned[0] if len(returned) == 2 else None
        if not isinstance(advantages, torch.Tensor) or advantages.shape != right.shape:
            return False
        if advantages[:, 0].any() or not torch.allclose(advantages[:, 1:], right[:, 1:], 1e-4, 1e-5):
            return False
    return True


def _values_and_rewards(draw: Draw) -> dict:
    """Values, rewards and mask. The first row's prompt has a single token, so the response begins at index 0.

    The padding has random values and rewards, too, so that a function that reads the padding fails.
    """
    rows, size = draw.one_of((2, 3)), draw.one_of((6, 7, 8))
    mask = draw.response_mask(rows, size)
    mask[0, : mask[0].int().argmax()] = True
    return {
        "values": draw.normal(rows, size),
        "rewards": draw.normal(rows, size, scale=draw.in_turn((1.0, 1.0, 30.0))),
        "mask": mask,
        "discount": draw.in_turn((0.9, 1.0)),
        "gae_lambda": draw.in_turn((0.95, 0.0, 1.0)),
    }


def _changed_returns(change):
    """The right advantages, with change(advantages, values, rewards, mask) as returns."""

    def answer(values, rewards, mask, discount, gae_lambda):
        advantages, _ = _gae(values, rewards, mask, discount, gae_lambda)
        return advantages, change(advantages, values, rewards, mask)

    return answer


GAE = Exercise(
    name="gae",
    notebook="05",
    title="advantages, from right to left",
    minutes=20,
    difficulty=4,
    hint="Go through the columns from the last to the first (`reversed(range(S))`), and carry two vectors of length B: "
    "the next token's value and the next token's advantage. Both start at 0. Where the mask is 0, keep the carried "
    "vectors as they are: `torch.where(mask[:, t], advantage, carried)`. Test two cases: with λ = 0 an advantage "
    "is the error δ alone, and with λ = γ = 1 an advantage is the sum of its own and all later rewards minus the value.",
    reference=_gae,
    library="aligner_lib.algorithms.ppo.advantages_and_returns",
    trains=("ppo", "advantages"),
    inputs=_values_and_rewards,
    outputs=("advantages", "returns"),
    mistakes=(
        Mistake(
            "bootstraps_past_the_end",
            "The error of the last token uses a value from the padding. Nothing follows the last token, so the "
            "next value is 0.",
            lambda values, rewards, mask, discount, lam: _recursion(
                values, rewards, mask, discount, discount * lam, past_the_end=True
            ),
        ),
        Mistake(
            "padding_flows_back",
            "The recursion starts in the padding, so errors from the padding flow back into the response.",
            lambda values, rewards, mask, discount, lam: tuple(
                part * mask for part in _gae(values, rewards, torch.ones_like(mask), discount, lam)
            ),
        ),
        Mistake(
            "no_lambda",
            "The recursion uses γ but not λ, so the result is always that of λ = 1.",
            lambda values, rewards, mask, discount, lam: _gae(values, rewards, mask, discount, 1.0),
        ),
        Mistake(
            "no_discount_in_the_recursion",
            "The next advantage is multiplied by λ alone. The factor is γ times λ.",
            lambda values, rewards, mask, discount, lam: _recursion(values, rewards, mask, discount, lam),
        ),
        Mistake(
            "no_discount_in_the_error",
            "The next value enters δ without γ.",
            lambda values, rewards, mask, discount, lam: _recursion(
                values, rewards, mask, 1.0, discount * lam
            ),
        ),
        Mistake(
            "forwards",
            "The recursion runs from left to right, so a token gets credit for rewards before it.",
            _forwards,
        ),
        Mistake(
            "first_column_left_out",
            "Column 0 is left out. A response begins there if its prompt has one token. `reversed(range(S))` ends with 0.",
            _without_the_first_column,
            seen_in=_first_column_is_empty,
        ),
        Mistake(
            "only_one_step",
            "The recursion is missing: these are the errors δ, the answer for λ = 0.",
            lambda values, rewards, mask, discount, lam: _gae(values, rewards, mask, discount, 0.0),
        ),
        Mistake(
            "returns_from_rewards",
            "The returns are advantages plus rewards. They should be advantages plus values.",
            _changed_returns(lambda advantages, values, rewards, mask: (advantages + rewards) * mask),
        ),
        Mistake(
            "returns_without_lambda",
            "The advantages are right, but the returns are the discounted sum of later rewards. This sum equals "
            "advantages plus values only for λ = 1. For every λ, add the values to the advantages.",
            lambda values, rewards, mask, discount, lam: (
                _gae(values, rewards, mask, discount, lam)[0],
                _gae(values, rewards, mask, discount, 1.0)[1],
            ),
        ),
        Mistake(
            "returns_in_padding",
            "The returns are not 0 outside the mask, so the critic would train on padding.",
            _changed_returns(lambda advantages, values, rewards, mask: advantages + values),
        ),
    ),
)

# ---- no_gradient ----------------------------------------------------------------------------------------------------


def _no_gradient(ratio, advantages, epsilon):
    """Whether the gradient of the library's loss is 0, by autograd."""
    with torch.enable_grad():
        ratio = ratio.detach().clone().requires_grad_()
        losses, _ = ppo.clipped_surrogate(ratio, advantages, epsilon, epsilon)
        (slope,) = torch.autograd.grad(losses.sum(), ratio)
    return slope == 0


def _ratios(draw: Draw) -> dict:
    """Ratios and advantages. The first token has a negative advantage and a ratio between 1 − ε and 1 / (1 + ε)."""
    rows, size, epsilon = draw.one_of((2, 3)), draw.one_of((6, 8)), draw.one_of((0.1, 0.2, 0.3))
    ratio, advantages = (0.35 * draw.normal(rows, size)).exp(), draw.normal(rows, size)
    advantages = advantages + 0.05 * advantages.sign()
    ratio[0, 0], advantages[0, 0] = (1 - epsilon + 1 / (1 + epsilon)) / 2, -1.0
    return {"ratio": ratio, "advantages": advantages, "epsilon": epsilon}


NO_GRADIENT = Exercise(
    name="no_gradient",
    notebook="05",
    title="where the clipped loss has no gradient",
    minutes=9,
    difficulty=2,
    hint="Look at the two plots. With a positive advantage, a token should become likelier. At which ratio has it "
    "become likely enough? Then answer the same question for a negative advantage. A token that has moved in the "
    "wrong direction always keeps its gradient.",
    reference=_no_gradient,
    inputs=_ratios,
    outputs=("flat",),
    mistakes=(
        Mistake(
            "both_sides",
            "Every ratio outside 1 ± ε is marked, whatever the advantage. Then a token that moved in the wrong "
            "direction could never come back.",
            lambda ratio, advantages, epsilon: (ratio - 1).abs() > epsilon,
        ),
        Mistake(
            "sides_exchanged",
            "These are the tokens that moved in the wrong direction. Exactly these tokens must keep their "
            "gradient.",
            lambda ratio, advantages, epsilon: (
                ((advantages > 0) & (ratio < 1 - epsilon)) | ((advantages < 0) & (ratio > 1 + epsilon))
            ),
        ),
        Mistake(
            "only_likelier_ones",
            "Tokens with a negative advantage are missing: they are clipped, too, at ratios below 1 − ε.",
            lambda ratio, advantages, epsilon: (advantages > 0) & (ratio > 1 + epsilon),
        ),
        Mistake(
            "only_rarer_ones",
            "Tokens with a positive advantage are missing: they are clipped, too, at ratios above 1 + ε.",
            lambda ratio, advantages, epsilon: (advantages < 0) & (ratio < 1 - epsilon),
        ),
        Mistake(
            "inverted",
            "These are the tokens that do have a gradient.",
            lambda ratio, advantages, epsilon: ~_no_gradient(ratio, advantages, epsilon),
        ),
        Mistake(
            "room_depends_on_the_advantage",
            "The product of advantage and change is compared with ε, so a token with a small advantage may move further. The "
            "clip limits the ratio alone; of the advantage, only the sign counts.",
            lambda ratio, advantages, epsilon: advantages * (ratio - 1) > epsilon,
        ),
        Mistake(
            "upper_side_alone",
            "Every ratio above 1 + ε is marked, whatever the advantage.",
            lambda ratio, advantages, epsilon: ratio > 1 + epsilon,
        ),
        Mistake(
            "compared_with_epsilon",
            "The ratio is compared with ε itself. The ratio of an unchanged token is 1, so the bounds are 1 + ε and 1 − ε.",
            lambda ratio, advantages, epsilon: ratio > epsilon,
            seen_in=equal_to(
                lambda ratio, advantages, epsilon: torch.where(
                    advantages > 0, ratio > epsilon, ratio < epsilon
                ),
                lambda ratio, advantages, epsilon: (advantages > 0) & (ratio > epsilon),
            ),
        ),
        Mistake(
            "reciprocal_bound",
            "The lower bound is 1 / (1 + ε). PPO's bounds have equal distances from 1: the lower bound is 1 − ε.",
            lambda ratio, advantages, epsilon: torch.where(
                advantages > 0, ratio > 1 + epsilon, ratio < 1 / (1 + epsilon)
            ),
        ),
    ),
)

# ---- clipped_loss ---------------------------------------------------------------------------------------------------


def _clipped_loss(ratio, advantages, low, high):
    return ppo.clipped_surrogate(ratio, advantages, low, high)


def _surrogate(pick):
    """The loss −pick(surrogate of the ratio, surrogate of the clipped ratio)."""

    def answer(ratio, advantages, low, high):
        clipped = ratio.clamp(1 - low, 1 + high)
        return -pick(ratio * advantages, clipped * advantages), clipped

    return answer


def _clipped_to(clip):
    """The right loss, with clip(ratio, low, high) as the clipped ratio."""

    def answer(ratio, advantages, low, high):
        clipped = clip(ratio, low, high)
        return -torch.minimum(ratio * advantages, clipped * advantages), clipped

    return answer


def _clipped_twice(ratio, advantages, low, high):
    loss, clipped = _clipped_loss(ratio, advantages, low, high)
    return torch.where(advantages < 0, torch.minimum(loss, -3 * advantages), loss), clipped


def _ratios_and_bounds(draw: Draw) -> dict:
    """Ratios, advantages and two bounds, as in DAPO. A token with a negative advantage has the ratio 20."""
    rows, size = draw.one_of((2, 3)), draw.one_of((6, 8))
    ratio, advantages = (0.35 * draw.normal(rows, size)).exp(), draw.normal(rows, size)
    ratio[0, 0], advantages[0, 0] = 20.0, -1.5
    return {
        "ratio": ratio,
        "advantages": advantages,
        "low": draw.one_of((0.1, 0.15)),
        "high": draw.one_of((0.2, 0.28)),
    }


CLIPPED_LOSS = Exercise(
    name="clipped_loss",
    notebook="05",
    title="PPO's clipped loss",
    minutes=8,
    difficulty=3,
    hint="PPO maximises the *smaller* of two terms: ratio times advantage, and clipped ratio times advantage. So the "
    "loss is the larger of the two negative terms: `torch.maximum`. `ratio.clamp(1 - low, 1 + high)` clips the "
    "ratio.",
    reference=_clipped_loss,
    library="aligner_lib.algorithms.ppo.clipped_surrogate",
    trains=("ppo", "loss"),
    inputs=_ratios_and_bounds,
    outputs=("loss", "clipped"),
    gradients=("ratio",),
    mistakes=(
        Mistake(
            "optimistic",
            "The better of the two terms is taken. A token that has moved far in the right direction is pushed "
            "further, and a token that moved in the wrong direction has no gradient to come back.",
            _surrogate(lambda plain, clipped: torch.maximum(plain, clipped)),
        ),
        Mistake(
            "only_clipped",
            "The unclipped term is missing, so a token that moved far in the wrong direction has no gradient.",
            _surrogate(lambda plain, clipped: clipped),
        ),
        Mistake(
            "not_clipped",
            "The loss uses the unclipped ratio alone, so nothing limits an update.",
            _surrogate(lambda plain, clipped: plain),
        ),
        Mistake(
            "sign",
            "The minus is missing: minimising this value makes bad tokens likelier.",
            _surrogate(lambda plain, clipped: -torch.minimum(plain, clipped)),
        ),
        Mistake(
            "clipped_around_zero",
            "The ratio is clipped to the range from −low to high. The ratio of an unchanged token is 1, so clip to "
            "the range from 1 − low to 1 + high.",
            _clipped_to(lambda ratio, low, high: ratio.clamp(-low, high)),
        ),
        Mistake(
            "clipped_from_above_only",
            "The ratio is clipped above 1 + high, but not below 1 − low, so nothing limits how far tokens with a "
            "negative advantage are pushed down.",
            _clipped_to(lambda ratio, low, high: ratio.clamp(max=1 + high)),
        ),
        Mistake(
            "clipped_twice",
            "The loss of a token with a negative advantage has an upper limit. That is dual clip, another method. In PPO, a bad "
            "token that has become much likelier has a large loss and keeps its gradient.",
            _clipped_twice,
        ),
        Mistake(
            "bounds_exchanged",
            "The bounds are exchanged: low limits the ratio below 1, and high limits the ratio above 1.",
            _clipped_to(lambda ratio, low, high: ratio.clamp(1 - high, 1 + low)),
        ),
        Mistake(
            "averaged",
            "The result is averaged over the tokens, prompts and padding included. Return one loss for each token.",
            lambda ratio, advantages, low, high: (
                _clipped_loss(ratio, advantages, low, high)[0].mean(),
                ratio.clamp(1 - low, 1 + high),
            ),
        ),
        Mistake(
            "ratio_detached",
            "The values are right, but the ratio has no gradient, so the policy would not learn.",
            lambda ratio, advantages, low, high: _clipped_loss(ratio.detach(), advantages, low, high),
        ),
        Mistake(
            "stop_gradient",
            "The values are right, but the clipped ratio has no gradient even where it is not clipped. A clipped "
            "ratio without a gradient is the weight of another method (CISPO).",
            lambda ratio, advantages, low, high: (
                torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high).detach()),
                ratio.clamp(1 - low, 1 + high).detach(),
            ),
        ),
    ),
)

# ---- whiten ---------------------------------------------------------------------------------------------------------


def _whiten(advantages, mask):
    return ppo.normalize(advantages, mask)


def _moments(advantages, mask):
    """Mean and uncorrected variance inside the mask."""
    inside = advantages[mask]
    return inside.mean(), inside.var(correction=0)


def _with_variance(variance):
    """The right function with another variance: variance(advantages, mask, mean)."""

    def answer(advantages, mask):
        mean, _ = _moments(advantages, mask)
        return (advantages - mean) * torch.rsqrt(variance(advantages, mask, mean) + 1e-8) * mask

    return answer


def _whitened_by_row(advantages, mask):
    return torch.cat([_whiten(row[None], of_row[None]) for row, of_row in zip(advantages, mask)])


def _mean_kept(advantages, mask):
    return ppo.normalize(advantages, mask, keep_mean=True)


def _over_the_variance(advantages, mask):
    mean, variance = _moments(advantages, mask)
    return (advantages - mean) / (variance + 1e-8) * mask


def _over_the_corrected_deviation(advantages, mask):
    return _whiten(advantages, mask) * (1 - 1 / mask.sum()).sqrt()


def _advantages_and_mask(draw: Draw) -> dict:
    """Padding holds values, too, and the mean is far from 0. In every third case, all advantages inside the mask are equal.

    In another third, the advantages are so small that a constant far above 1e-8 under the root would change the result.
    """
    rows, size, scale = (
        draw.one_of((2, 3)),
        draw.one_of((6, 7, 8)),
        draw.in_turn((2.0, 0.03, 2.0, 30.0, 0.03)),
    )
    advantages, mask = scale * (0.75 + draw.normal(rows, size)), draw.response_mask(rows, size)
    if draw.in_turn((False, False, True)):
        advantages[mask] = draw.one_of((-1.0, 0.5, 2.0))  # without an error of rounding in the mean
    return {"advantages": advantages, "mask": mask}


WHITEN = Exercise(
    name="whiten",
    notebook="05",
    title="advantages with mean 0 and deviation 1",
    minutes=10,
    difficulty=2,
    hint="`advantages[mask]` holds the advantages of the response tokens only. Subtract their mean, divide by "
    "`(variance + 1e-8).sqrt()`, and multiply by the mask. `var(correction=0)` divides by the number of tokens.",
    reference=_whiten,
    library="aligner_lib.algorithms.ppo.normalize",
    inputs=_advantages_and_mask,
    outputs=("whitened",),
    mistakes=(
        Mistake(
            "padding_counts",
            "Mean and deviation include values outside the mask, so they depend on how long the longest row is.",
            lambda advantages, mask: _whiten(advantages, torch.ones_like(mask)) * mask,
        ),
        Mistake(
            "padding_counts_as_zeros",
            "The advantages outside the mask are set to 0, and then count in the mean and the deviation as zeros. Leave them out of "
            "both, and out of the number of tokens.",
            lambda advantages, mask: _whiten(advantages * mask, torch.ones_like(mask)) * mask,
        ),
        Mistake(
            "row_by_row",
            "Each response is whitened by itself. Then a good and a bad response have the same mean, and the update no "
            "longer prefers the good response.",
            _whitened_by_row,
        ),
        Mistake(
            "mean_kept",
            "The mean is not subtracted.",
            _mean_kept,
            seen_in=not_finite_or_equal_to(_mean_kept),
        ),
        Mistake(
            "not_scaled",
            "The deviation is missing, so the size of an update still depends on the unit of the rewards.",
            lambda advantages, mask: (advantages - _moments(advantages, mask)[0]) * mask,
        ),
        Mistake(
            "divided_by_the_variance",
            "The advantages are divided by the variance. Divide by its square root.",
            _over_the_variance,
            seen_in=not_finite_or_equal_to(_over_the_variance),
        ),
        Mistake(
            "corrected_variance",
            "The variance divides by n − 1. Here n is the number of tokens itself (`correction=0`).",
            _over_the_corrected_deviation,
            seen_in=not_finite_or_equal_to(_over_the_corrected_deviation),
        ),
        Mistake(
            "padding_is_not_zero",
            "Values outside the mask are not 0, so padding would count in the loss.",
            lambda advantages, mask: (
                (advantages - _moments(advantages, mask)[0])
                * torch.rsqrt(_moments(advantages, mask)[1] + 1e-8)
            ),
        ),
        Mistake(
            "no_small_number",
            "All advantages of a batch can be equal. Then the variance is 0, and 0 / 0 is NaN. Add 1e-8 to the variance before the "
            "root.",
            lambda advantages, mask: (
                (advantages - _moments(advantages, mask)[0]) / _moments(advantages, mask)[1].sqrt() * mask
            ),
            seen_in=not_finite_or_equal_to(_whiten),
        ),
        Mistake(
            "mean_not_in_the_variance",
            "The variance is the mean of the squared advantages. Subtract the mean before squaring, too.",
            _with_variance(lambda advantages, mask, mean: (advantages[mask] ** 2).mean()),
        ),
        Mistake(
            "variance_with_padding",
            "The variance includes the advantages outside the mask as zeros. Compute the variance from the tokens inside the "
            "mask.",
            _with_variance(lambda advantages, mask, mean: (advantages * mask).var(correction=0)),
        ),
        Mistake(
            "variance_divided_by_all",
            "The squared distances inside the mask are divided by the number of all tokens. Divide by the number of tokens "
            "inside the mask.",
            _with_variance(lambda advantages, mask, mean: (((advantages - mean) * mask) ** 2).mean()),
        ),
    ),
)

# ---- value_loss -----------------------------------------------------------------------------------------------------


def _value_loss(values, old_values, returns, clip):
    return ppo.critic_loss(values, old_values, returns, clip)


def _errors(pick):
    """pick(squared error, squared error of the clipped value), halved."""

    def answer(values, old_values, returns, clip):
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        return 0.5 * pick((values - returns) ** 2, (clipped - returns) ** 2)

    return answer


def _value_clipped_to(clipped_value):
    """The right loss with another clipped value: clipped_value(values, old_values, clip)."""

    def answer(values, old_values, returns, clip):
        clipped = clipped_value(values, old_values, clip)
        return 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)

    return answer


def _values_and_returns(draw: Draw) -> dict:
    rows, size, scale = draw.one_of((2, 3)), draw.one_of((6, 8)), draw.in_turn((1.0, 1.0, 30.0))
    old_values = draw.normal(rows, size, scale=scale)
    return {
        "values": old_values + draw.normal(rows, size, scale=0.4 * scale),
        "old_values": old_values,
        "returns": old_values + draw.normal(rows, size, scale=scale),
        "clip": draw.one_of((0.1, 0.2, 0.3)),
    }


VALUE_LOSS = Exercise(
    name="value_loss",
    notebook="05",
    title="the critic's clipped loss",
    minutes=8,
    difficulty=3,
    hint="Clip the *distance* between the value and the old value, and add the old value again. In every row of "
    "the table, the loss takes the larger of the two squared errors: in the second row the error of the clipped value, in the "
    "third row the error of the value itself. So a value that has moved in the wrong direction keeps its gradient.",
    reference=_value_loss,
    library="aligner_lib.algorithms.ppo.critic_loss",
    inputs=_values_and_returns,
    outputs=("loss",),
    gradients=("values",),
    mistakes=(
        Mistake(
            "optimistic",
            "The smaller of the two errors is taken. A value that has moved far away from its return would stop learning "
            "there.",
            _errors(lambda plain, clipped: torch.minimum(plain, clipped)),
        ),
        Mistake(
            "only_clipped",
            "The unclipped error is missing, so a value that moved too far in the wrong direction has no gradient.",
            _errors(lambda plain, clipped: clipped),
        ),
        Mistake(
            "not_clipped",
            "The clip has no effect, so nothing limits how far one rollout moves the critic. Either the loss uses the unclipped value "
            "alone, or the value is clipped around the return, where the unclipped error is never the smaller one. Clip around the "
            "old value.",
            _errors(lambda plain, clipped: plain),
        ),
        Mistake(
            "not_halved",
            "The factor 1/2 is missing.",
            lambda *inputs: 2 * _value_loss(*inputs),
        ),
        Mistake(
            "averaged",
            "The result is averaged over the tokens, prompts and padding included. Return one loss for each token.",
            lambda *inputs: _value_loss(*inputs).mean(),
        ),
        Mistake(
            "absolute_error",
            "The absolute error is taken. Its best prediction is the median of the returns, and the advantage needs their "
            "mean.",
            lambda values, old_values, returns, clip: _value_loss(values, old_values, returns, clip).sqrt(),
        ),
        Mistake(
            "error_clipped",
            "The error is clipped. Then a value that is far from its return has no gradient and never gets there.",
            lambda values, old_values, returns, clip: 0.5 * (values - returns).clamp(-clip, clip) ** 2,
        ),
        Mistake(
            "clipped_around_zero",
            "The value itself is clipped to ± clip. Clip its distance from the old value.",
            _value_clipped_to(lambda values, old_values, clip: values.clamp(-clip, clip)),
        ),
        Mistake(
            "old_value_instead_of_the_clipped_one",
            "The old value takes the place of the clipped value: the room of ± clip around it is missing.",
            _value_clipped_to(lambda values, old_values, clip: old_values),
        ),
        Mistake(
            "values_detached",
            "The values are right, but the critic's values have no gradient, so the critic would not learn.",
            lambda values, *others: _value_loss(values.detach(), *others),
        ),
        Mistake(
            "summed",
            "The result is summed over the tokens. Return one loss for each token.",
            lambda *inputs: _value_loss(*inputs).sum(),
        ),
        Mistake(
            "old_value_not_added",
            "The clipped distance from the old value stands in place of the clipped value. Add the old value to the distance.",
            _value_clipped_to(lambda values, old_values, clip: (values - old_values).clamp(-clip, clip)),
        ),
    ),
)

# ---- bandit_loss ----------------------------------------------------------------------------------------------------


def _bandit_loss(
    logits,
    tokens,
    old_logprobs,
    reference_logprobs,
    rewards,
    coefficient,
    epsilon,
    *,
    logprobs=lambda logits: logits.log_softmax(-1),
    kl=lambda now, old, reference: old - reference,
    baseline=True,
    before=lambda now, old, reference: old,
    ratio=lambda difference: difference.exp(),
    pick=lambda plain, clipped: torch.maximum(plain, clipped),
    reduce=lambda losses: losses.mean(),
):
    now = logprobs(logits)[tokens]
    advantages = rewards - coefficient * kl(now, old_logprobs, reference_logprobs)
    if baseline:
        advantages = advantages - advantages.mean()
    ratios = ratio(now - before(now, old_logprobs, reference_logprobs))
    return reduce(pick(-advantages * ratios, -advantages * ratios.clamp(1 - epsilon, 1 + epsilon)))


def _whitened_bandit(logits, tokens, old_logprobs, reference_logprobs, rewards, coefficient, epsilon):
    advantages = rewards - coefficient * (old_logprobs - reference_logprobs)
    advantages = (advantages - advantages.mean()) / advantages.std()
    ratios = (logits.log_softmax(-1)[tokens] - old_logprobs).exp()
    return ppo.clipped_surrogate(ratios, advantages, epsilon, epsilon)[0].mean()


def _penalty_in_the_loss(logits, tokens, old_logprobs, reference_logprobs, rewards, coefficient, epsilon):
    without = _bandit_loss(logits, tokens, old_logprobs, old_logprobs, rewards, coefficient, epsilon)
    return without + coefficient * (logits.log_softmax(-1)[tokens] - reference_logprobs).mean()


def _penalty_after_the_mean(logits, tokens, old_logprobs, reference_logprobs, rewards, coefficient, epsilon):
    advantages = rewards - rewards.mean() - coefficient * (old_logprobs - reference_logprobs)
    ratios = (logits.log_softmax(-1)[tokens] - old_logprobs).exp()
    return ppo.clipped_surrogate(ratios, advantages, epsilon, epsilon)[0].mean()


def _with(**changes):
    """The right function with changed parts."""
    return lambda *inputs: _bandit_loss(*inputs, **changes)


def _one_token_answers(draw: Draw) -> dict:
    """Tokens of an older policy, the logits of the current policy, and the logits of the reference.

    In turn, the first token has an ordinary probability, a tiny probability under the old policy only, or under both policies a
    probability that is 0 in float32. In every second case, the second token has a tiny probability under the reference.
    """
    old, reference = draw.normal(8), draw.normal(8)
    tokens = draw.integers(0, 8, draw.one_of((12, 16)))
    logits = old + 0.5 * draw.normal(8)
    old[tokens[0]] -= draw.in_turn((0.0, 15.0, 115.0))
    logits[tokens[0]] -= draw.in_turn((0.0, 0.0, 115.0))
    reference[tokens[1]] -= draw.in_turn((0.0, 15.0))
    return {
        "logits": logits,
        "tokens": tokens,
        "old_logprobs": old.log_softmax(-1)[tokens],
        "reference_logprobs": reference.log_softmax(-1)[tokens],
        "rewards": draw.normal(len(tokens), scale=draw.in_turn((1.0, 1.0, 30.0))) + 1.0,
        "coefficient": draw.between(0.1, 0.5),
        "epsilon": draw.one_of((0.1, 0.2)),
    }


BANDIT_LOSS = Exercise(
    name="bandit_loss",
    notebook="05",
    title="PPO, put together",
    minutes=17,
    difficulty=4,
    hint="The loss takes four lines. First compute the policy's log-probabilities of the drawn tokens: "
    "`logits.log_softmax(-1)[tokens]`. Then subtract the KL penalty from the rewards. The penalty uses the "
    "log-probabilities with which the tokens were *drawn* (the old ones), which are numbers without a gradient. "
    "The advantages are these rewards minus their mean. The result is the mean of the clipped loss.",
    reference=_bandit_loss,
    inputs=_one_token_answers,
    outputs=("loss",),
    gradients=("logits",),
    mistakes=(
        Mistake(
            "gradient_through_the_advantage",
            "The KL in the reward uses the present log-probabilities, with their gradient. An advantage is a "
            "number that was measured when the tokens were drawn, so no gradient may flow through it.",
            _with(kl=lambda now, old, reference: now - reference),
        ),
        Mistake(
            "advantage_moves",
            "The KL in the reward uses the present policy, so the advantages change at every update of the same "
            "rollout. They should stay as measured when the tokens were drawn.",
            _with(kl=lambda now, old, reference: now.detach() - reference),
        ),
        Mistake(
            "sign_of_the_kl",
            "The penalty has the wrong sign: the policy is rewarded for moving away from its reference.",
            _with(kl=lambda now, old, reference: reference - old),
        ),
        Mistake(
            "no_penalty",
            "The KL penalty has no effect. Either the penalty is missing, or its mean is subtracted from every reward, and the baseline "
            "cancels the same number in all rewards. Each token has its own penalty.",
            _with(kl=lambda now, old, reference: 0 * old),
        ),
        Mistake(
            "no_baseline",
            "The mean is not subtracted. If all rewards are positive, every drawn token becomes likelier.",
            _with(baseline=False),
        ),
        Mistake(
            "whitened",
            "The advantages are divided by their deviation. A run of PPO may do so; here only the mean is subtracted, so that β keeps "
            "its unit and the best policy its formula.",
            _whitened_bandit,
        ),
        Mistake(
            "penalty_in_the_loss",
            "The penalty stands in the loss and not in the rewards. As a loss, the difference of two log-probabilities has a "
            "gradient whose mean is 0, so nothing holds the policy back.",
            _penalty_in_the_loss,
        ),
        Mistake(
            "ratio_to_the_reference",
            "The ratio compares with the reference. It should compare with the policy from which the tokens were "
            "drawn.",
            _with(before=lambda now, old, reference: reference),
        ),
        Mistake(
            "ratio_to_itself",
            "The ratio compares the policy with itself, so it is always 1 and is never clipped: nothing limits the updates on the same "
            "rollout. It should compare with the policy from which the tokens were drawn.",
            _with(before=lambda now, old, reference: now.detach()),
        ),
        Mistake(
            "ratio_upside_down",
            "The ratio is old over new. It should be new over old.",
            _with(ratio=lambda difference: (-difference).exp()),
        ),
        Mistake(
            "no_exponential",
            "The difference of the log-probabilities is the log of the ratio. Take the exponential.",
            _with(ratio=lambda difference: difference),
        ),
        Mistake(
            "logits_for_logprobs",
            "These are logits without log_softmax, so all ratios are wrong by the same factor.",
            _with(logprobs=lambda logits: logits),
        ),
        Mistake(
            "sign",
            "The sign is wrong: minimising this value makes the worse tokens likelier.",
            lambda *inputs: -_bandit_loss(*inputs),
        ),
        Mistake(
            "not_clipped",
            "The clipping is missing, so four updates on the same rollout go too far.",
            lambda *inputs: _bandit_loss(*inputs[:-1], 1e9),
        ),
        Mistake(
            "penalty_after_the_mean",
            "The penalty is subtracted after the mean, so the advantages keep the mean of the penalties. First the penalty, "
            "then the mean of the result.",
            _penalty_after_the_mean,
        ),
        Mistake(
            "optimistic",
            "The smaller of the two losses is taken, so a token that moved in the wrong direction has no gradient to come back. "
            "The loss is the larger one.",
            _with(pick=lambda plain, clipped: torch.minimum(plain, clipped)),
        ),
        Mistake(
            "only_clipped",
            "The unclipped term is missing, so a token that moved far in the wrong direction has no gradient.",
            _with(pick=lambda plain, clipped: clipped),
        ),
        Mistake(
            "summed",
            "The losses are summed. Return their mean.",
            _with(reduce=lambda losses: losses.sum()),
        ),
    ),
)

EXERCISES = (TOKEN_REWARDS, GAE, WHITEN, NO_GRADIENT, CLIPPED_LOSS, VALUE_LOSS, BANDIT_LOSS)
