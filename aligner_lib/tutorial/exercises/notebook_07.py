"""The exercises of notebook 07: group advantages, a reward program, three KL estimators, and truncated importance weights."""

from __future__ import annotations

import re

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake
from aligner_lib.tutorial.exercises.recognition import equal_to, not_finite_or_equal_to

torch = ImportedLate("torch")
policy_gradient = ImportedLate("aligner_lib.algorithms.policy_gradient")

# ---- grpo_advantages -----------------------------------------------------------------------------------------------


def _grpo_advantages(rewards, group):
    return policy_gradient.grpo_advantages(rewards, group)


def _by_group(advantages, guarded=True):
    """Apply advantages(rewards of the group, all rewards) to each group.

    guarded: a group with equal rewards gets the advantage 0.
    """

    def answer(rewards, group):
        result = torch.zeros_like(rewards)
        for prompt in group.unique():
            own = rewards[group == prompt]
            if not guarded or own.min() < own.max():
                result[group == prompt] = advantages(own, rewards)
        return result

    return answer


def _deviation(rewards):
    """`rewards.std()`, also NaN for a single reward, but without torch's warning, which would confuse the learner."""
    return rewards.std() if len(rewards) > 1 else torch.tensor(float("nan"))


def _standardized(rewards):
    return (rewards - rewards.mean()) / (_deviation(rewards) + 1e-4)


def _in_the_order_of_groups(rewards, group):
    result = _grpo_advantages(rewards, group)
    return torch.cat([result[group == prompt] for prompt in group.unique()])


def _groups(draw: Draw) -> dict:
    """Groups of different sizes in random order. A group has equal rewards, and another group has a single response.

    In every second case, the mean of the equal rewards has an error of rounding, so their deviation is not quite 0. The groups'
    numbers begin above 0 and have gaps, as in the rest of a batch after filtering.
    """
    equal, copies = draw.in_turn(((draw.one_of((0.0, 1.0)), 3), (-27.3, 7)))
    sizes = [draw.one_of((3, 4)), draw.one_of((3, 5)), copies, 1]
    numbers = draw.random.sample(range(10, 30), len(sizes))
    group = [number for number, size in zip(numbers, sizes) for _ in range(size)]
    draw.random.shuffle(group)
    group = torch.tensor(group)
    rewards = draw.normal(len(group), scale=draw.in_turn((1.0, 30.0))) + 0.5
    rewards[group == numbers[2]] = equal
    return {"rewards": rewards, "group": group}


GRPO_ADVANTAGES = Exercise(
    name="grpo_advantages",
    notebook="07",
    title="a group in place of a critic",
    minutes=15,
    difficulty=2,
    hint="Loop over `group.unique()`. `rewards[group == number]` are the rewards of a group, and the same index writes "
    "the advantages back. `std()` divides by n − 1, as it should here. Skip a group whose smallest reward equals "
    "its largest: its advantages stay 0. Otherwise you would divide by a deviation of 0, or by the deviation of a "
    "single reward, which is NaN.",
    reference=_grpo_advantages,
    library="aligner_lib.algorithms.policy_gradient.grpo_advantages",
    trains=("grpo", "advantages"),
    inputs=_groups,
    outputs=("advantages",),
    mistakes=(
        Mistake(
            "groups_ignored",
            "Mean and deviation are those of the whole batch, so a response to an easy prompt always looks good. "
            "Compare each response with the other responses to the same prompt, group by group.",
            lambda rewards, group: _standardized(rewards),
        ),
        Mistake(
            "mean_of_the_batch",
            "The mean is that of all prompts, so a response to an easy prompt always looks good.",
            _by_group(lambda own, everyone: (own - everyone.mean()) / (own.std() + 1e-4)),
        ),
        Mistake(
            "deviation_of_the_batch",
            "The deviation is that of all prompts together. Use the deviation of the group.",
            _by_group(lambda own, everyone: (own - own.mean()) / (everyone.std() + 1e-4)),
        ),
        Mistake(
            "not_divided",
            "The division by the deviation is missing. Dr. GRPO leaves the division out for good reasons, but GRPO divides.",
            _by_group(lambda own, everyone: own - own.mean()),
        ),
        Mistake(
            "compared_with_the_others",
            "Each response is compared with the mean of the other responses, as in RLOO. GRPO's mean includes the "
            "response itself.",
            _by_group(lambda own, everyone: _standardized(own) * len(own) / (len(own) - 1)),
        ),
        Mistake(
            "uncorrected_deviation",
            "The deviation divides by n. Here it should divide by n − 1.",
            _by_group(lambda own, everyone: (own - own.mean()) / (own.std(correction=0) + 1e-4)),
        ),
        Mistake(
            "divided_by_zero",
            "A group with equal rewards has a deviation of 0, and 0 / 0 is NaN. A NaN would destroy the model.",
            _by_group(lambda own, everyone: (own - own.mean()) / _deviation(own), guarded=False),
        ),
        Mistake(
            "alone",
            "A response can be alone in its group, if the reward failed for all the others. The deviation of a "
            "single reward is NaN. Nothing can be compared, so the advantage must be 0.",
            _by_group(lambda own, everyone: _standardized(own), guarded=False),
        ),
        Mistake(
            "variance",
            "The result is divided by the variance. The deviation is the square root of the variance.",
            _by_group(lambda own, everyone: (own - own.mean()) / (own.var() + 1e-4)),
        ),
        Mistake(
            "order_lost",
            "The advantages are sorted by group and not in the order of the responses, so most tokens learn from "
            "the reward of another response.",
            _in_the_order_of_groups,
        ),
    ),
)

# ---- exact_match ----------------------------------------------------------------------------------------------------

NUMBER = r"-?\d+(?:\.\d+)?"


def _exact_match(response, answer, numbers=NUMBER, of=-1):
    numbers_in_response = re.findall(numbers, response)
    return float(bool(numbers_in_response) and float(numbers_in_response[of]) == float(answer))


def _compared(response, passes):
    """1.0 if the last number of the response passes, else 0.0. passes: a comparison of the number."""
    numbers_in_response = re.findall(NUMBER, response)
    return float(bool(numbers_in_response) and passes(float(numbers_in_response[-1])))


def _any_number(response, answer):
    return float(any(float(number) == float(answer) for number in re.findall(NUMBER, response)))


def _last_word(response, answer):
    words = response.split()
    return float(bool(words) and words[-1].strip(".,!?") == answer)


def _whole_response(response, answer):
    try:
        return float(float(response) == float(answer))
    except ValueError:
        return 0.0


def _separate_words(response, answer):
    """Read only the words that are a number, apart from points and commas around them."""
    words = [word.strip(".,") for word in response.split()]
    numbers = [word for word in words if re.fullmatch(NUMBER, word)]
    return float(bool(numbers) and float(numbers[-1]) == float(answer))


def _wrong_beside_other_characters(cases, outputs):
    """Whether the outputs are right wherever the last number is a separate word, and 0 elsewhere, but should be 1 there in a case."""
    missed = 0
    for case, (reward, *_) in zip(cases, outputs):
        right = _exact_match(**case)
        of_words = [word.strip(".,") for word in case["response"].split() if re.search(r"\d", word)]
        separate = not of_words or bool(re.fullmatch(NUMBER, of_words[-1]))
        if reward != right and (separate or reward != 0):
            return False
        missed += reward != right
    return missed > 0


def _digits_joined(response, answer):
    return float("".join(filter(str.isdigit, response)) == answer)


RESPONSES = (
    "{a}", "1{a}", "The answer is {a}.", "{a}{d}", "{d} + 1 = {a}", "{a} is wrong, it is {b}", "-{a}", "{b}, no: {a}",
    "{a}.6", "{a}.3", "{a}.04", "{a}.001", "no idea", "{a}.0", "", "{b}", "it is {a}, I think", "{a}\n",
    "{a}...", " {a} ... done", "x={a}", "**{a}**", "${a}", "({a})", "{a}!", "{a}?", '"{a}"', "3+{d}={a}",
    "{b}.{a}", "{a}0", "{b}.2{a}",
)  # fmt: skip
# answers that are no digit, in the second round of the responses
OTHER_ANSWERS = {"The answer is {a}.": "-4", "{d} + 1 = {a}": "2.5", "it is {a}, I think": "20"}


def _response(draw: Draw) -> dict:
    digit, response = draw.random.randint(2, 9), draw.in_turn(RESPONSES)
    answer = str(digit) if draw.case < len(RESPONSES) else OTHER_ANSWERS.get(response, str(digit))
    written = response.format(a=answer, b=digit + 3, d=draw.random.randint(1, 9))
    return {"response": written, "answer": answer}


EXACT_MATCH = Exercise(
    name="exact_match",
    notebook="07",
    title="a reward that rejects 17 for 7",
    minutes=15,
    difficulty=2,
    hint="`re.findall(pattern, response)` returns all matches as strings. The pattern of a number is an optional minus, digits, "
    "and an optional part of a point and further digits, so that the full stop of a sentence stays outside. Write the "
    "optional part as `(?:…)?`: with plain parentheses, `findall` returns only their content. Compare as numbers: 7.0 "
    "equals 7.",
    reference=_exact_match,
    inputs=_response,
    outputs=("reward",),
    cases=58,  # every response at least once
    mistakes=(
        Mistake(
            "substring",
            "A response passes if the answer stands anywhere in the text. So 17 passes for 7, and a list of all "
            "digits passes for every answer.",
            lambda response, answer: float(answer in response),
        ),
        Mistake(
            "ending",
            "A response passes if it ends with the answer's digits, so 17 passes for 7.",
            lambda response, answer: float(response.strip().rstrip(".").endswith(answer)),
            seen_in=equal_to(
                lambda response, answer: float(response.endswith(answer)),
                lambda response, answer: float(response.strip().endswith(answer)),
            ),
        ),
        Mistake(
            "first_number",
            "The first number is compared. In “3 + 4 = 7” the answer comes last.",
            lambda response, answer: _exact_match(response, answer, of=0),
        ),
        Mistake(
            "any_number",
            "Every number of the response is compared, so a response that lists all numbers is always right.",
            _any_number,
        ),
        Mistake(
            "digits_alone",
            "Only digits are read, and compared as text. So −7 and 2.7 pass for 7, and 7.0 fails.",
            lambda response, answer: float(re.findall(r"\d+", response)[-1:] == [answer]),
        ),
        Mistake(
            "sign_lost",
            "The sign is lost, so −7 passes for 7.",
            lambda response, answer: _exact_match(response, answer, numbers=r"\d+(?:\.\d+)?"),
        ),
        Mistake(
            "decimals_cut",
            "7.5 is read as 7 and 5. The decimals belong to their number.",
            lambda response, answer: _exact_match(response, answer, numbers=r"-?\d+"),
            seen_in=equal_to(lambda response, answer: float(re.findall(r"-?\d+", response)[-1:] == [answer])),
        ),
        Mistake(
            "rounded",
            "The number is rounded before the comparison, so 7.04 passes for 7.",
            lambda response, answer: _compared(response, lambda number: round(number) == float(answer)),
        ),
        Mistake(
            "last_word",
            "The last word is compared. In 'it is 7, I think' the last number is not the last word, and 7.0 equals 7 as a "
            "number only.",
            _last_word,
        ),
        Mistake(
            "whole_response",
            "The whole response has to be a number. In 'The answer is 7.' the number stands in a sentence.",
            _whole_response,
        ),
        Mistake(
            "cut_to_an_integer",
            "`int` cuts the decimals off before the comparison, so 7.5 passes for 7.",
            lambda response, answer: _compared(response, lambda number: int(number) == float(answer)),
        ),
        Mistake(
            "nearly_right",
            "A number near the answer passes, such as 7.04 for 7. The reward is for the exact result.",
            lambda response, answer: _compared(response, lambda number: abs(number - float(answer)) < 0.1),
            seen_in=equal_to(
                lambda response, answer: _compared(
                    response, lambda number: abs(number - float(answer)) < 0.01
                )
            ),
        ),
        Mistake(
            "nothing_but_the_answer",
            "Only the bare number passes. “The answer is 7.” and 7.0 are right, too.",
            lambda response, answer: float(response.strip() == answer),
        ),
        Mistake(
            "digits_joined",
            "All digits of the text are joined to a single number.",
            _digits_joined,
        ),
        Mistake(
            "compared_as_text",
            "The last number is compared as text, so 7.0 fails for 7. Convert both texts with `float`.",
            lambda response, answer: float(re.findall(NUMBER, response)[-1:] == [answer]),
        ),
        Mistake(
            "points_in_the_number",
            "The pattern takes every point for a part of a number. So '7...' is read as a single number, which `float` refuses, and "
            "'...' alone is a number, too. A point belongs to a number only before a digit.",
            lambda response, answer: _exact_match(response, answer, numbers=r"-?[\d.]+"),
        ),
        Mistake(
            "plain_parentheses",
            "With plain parentheses in the pattern, `findall` returns only their content: '' for 7 and '.5' for 7.5. Write the "
            "optional part as `(?:…)?`.",
            lambda response, answer: _exact_match(response, answer, numbers=r"-?\d+(\.\d+)?"),
        ),
        Mistake(
            "always_0",
            "The reward is 0 for every response. Does the pattern have plain parentheses? Then `findall` returns only their content: "
            "'' for 7. Write the optional part as `(?:…)?`.",
            lambda response, answer: 0.0,
        ),
        Mistake(
            "separate_words",
            "A number counts only as a separate word. In 'x=7', '**7**', '(7)' and '7!' the number stands beside other "
            "characters.",
            _separate_words,
            seen_in=_wrong_beside_other_characters,
        ),
    ),
)

# ---- kl_estimators --------------------------------------------------------------------------------------------------


def _kl_estimators(logprobs, reference_logprobs):
    return tuple(policy_gradient.kl_loss(logprobs, reference_logprobs, name) for name in ("k1", "k2", "k3"))


def _of_difference(estimators):
    return lambda logprobs, reference_logprobs: estimators(logprobs - reference_logprobs)


def _k1_k2_k3(d):
    return d, d**2 / 2, torch.exp(-d) - 1 + d


def _another_multiple(cases, outputs):
    """Whether k1 and k2 are right, and k3 is d plus a wrong multiple c of exp(−d) − 1, with the same c in all cases."""

    def answer(logprobs, reference_logprobs):
        d = logprobs - reference_logprobs
        return d, d**2 / 2, d + multiple * (torch.exp(-d) - 1)

    k3, d = outputs[0][-1], cases[0]["logprobs"] - cases[0]["reference_logprobs"]
    if not isinstance(k3, torch.Tensor) or k3.shape != d.shape:
        return False
    multiple = float((k3[0] - d[0]) / (torch.exp(-d[0]) - 1))
    return multiple != 0 and abs(multiple - 1) > 1e-3 and equal_to(answer)(cases, outputs)


def _of_two_models(draw: Draw) -> dict:
    """Log-probabilities of sampled tokens. The first token is far less likely under the policy than under the reference.

    In some batches, the log-ratio is so large that a function with a clamp is wrong. In every second batch, both probabilities of
    the second token are 0 in float32.
    """
    tokens = draw.one_of((5, 6, 8))
    logprobs, reference = draw.logprobs(tokens), draw.logprobs(tokens)
    logprobs[0] = reference[0] - draw.in_turn((7.5, 12.0, 21.0))
    rarity = draw.in_turn((0.0, 115.0))
    logprobs[1], reference[1] = logprobs[1] - rarity, reference[1] - rarity
    return {"logprobs": logprobs, "reference_logprobs": reference}


KL_ESTIMATORS = Exercise(
    name="kl_estimators",
    notebook="07",
    title="three estimates of the KL from one token",
    minutes=12,
    difficulty=4,
    hint=r"$\pi_{ref}/\pi = e^{-d}$, so $k_3 = d + c \, (e^{-d} - 1)$ with a number $c$. $k_3$ is 0 at $d = 0$ and never below 0, so "
    r"its slope is 0 there: $1 - c \, e^0 = 0$.",
    reference=_kl_estimators,
    library="aligner_lib.algorithms.policy_gradient.kl_loss",
    inputs=_of_two_models,
    outputs=("k1", "k2", "k3"),
    gradients=("logprobs",),
    mistakes=(
        Mistake(
            "turned_round",
            "d is the reference minus the policy. It should be the policy minus the reference.",
            lambda logprobs, reference: _kl_estimators(reference, logprobs),
        ),
        Mistake(
            "sign_in_k3",
            "The exponential in k3 uses +d. It must use −d, the log of the ratio of reference to policy. Otherwise "
            "the mean of k3 is not the KL.",
            _of_difference(lambda d: (d, d**2 / 2, d.exp() - 1 - d)),
        ),
        Mistake(
            "no_half_in_k2",
            "k2 is d² / 2. Without the half it estimates twice the KL.",
            _of_difference(lambda d: (d, d**2, torch.exp(-d) - 1 + d)),
        ),
        Mistake(
            "no_one_in_k3",
            "The −1 in k3 is missing. Where policy and reference agree, k3 must be 0.",
            _of_difference(lambda d: (d, d**2 / 2, torch.exp(-d) + d)),
        ),
        Mistake(
            "clamped",
            "The difference is clamped. A token that has moved far is what the KL is to find, and a clamped difference has no "
            "gradient there.",
            _of_difference(lambda d: _k1_k2_k3(d.clamp(-5, 5))),
        ),
        Mistake(
            "absolute_k1",
            "k1 is the absolute value of d, so its mean is not the KL.",
            _of_difference(lambda d: (d.abs(), d**2 / 2, torch.exp(-d) - 1 + d)),
        ),
        Mistake(
            "averaged",
            "The result is averaged over the tokens. Return one estimate for each token.",
            lambda logprobs, reference: tuple(part.mean() for part in _kl_estimators(logprobs, reference)),
        ),
        Mistake(
            "detached",
            "The values are right, but they have no gradient, so they would have no effect as a term of the loss.",
            lambda logprobs, reference: _kl_estimators(logprobs.detach(), reference),
        ),
        Mistake(
            "exponential_detached",
            "The value of k3 is right, but its exponential has no gradient. So k3 has the gradient of k1, whose mean is 0, and does "
            "not hold the policy back.",
            _of_difference(lambda d: (d, d**2 / 2, torch.exp(-d).detach() - 1 + d)),
        ),
        Mistake(
            "zero_over_zero",
            "The ratio divides two probabilities. A probability below 1e-45 is 0 in float32, and 0 / 0 is NaN. Stay with logarithms: "
            "the ratio is exp(−d).",
            lambda logprobs, reference: _k1_k2_k3(-(reference.exp() / logprobs.exp()).log()),
            seen_in=not_finite_or_equal_to(_kl_estimators),
        ),
        Mistake(
            "another_multiple_in_k3",
            "k3 is d plus a wrong multiple of exp(−d) − 1. The slope of k3 must be 0 at d = 0, which determines the multiple.",
            _of_difference(lambda d: (d, d**2 / 2, d + 2 * (torch.exp(-d) - 1))),
            seen_in=_another_multiple,
        ),
    ),
)

# ---- truncated_weights ----------------------------------------------------------------------------------------------


def _truncated(logprobs, sampler_logprobs, cap):
    return policy_gradient.importance_weights(logprobs, sampler_logprobs, "truncated", cap)


def _of_ratio(weights):
    return lambda logprobs, sampler_logprobs, cap: weights((logprobs - sampler_logprobs).exp(), cap)


def _of_an_older_policy(draw: Draw) -> dict:
    """Log-probabilities with two ratios above the cap and a ratio far below 1/cap. The larger log-ratio exceeds the cap.

    In every second case, both probabilities of a token are 0 in float32.
    """
    sampler_logprobs = draw.logprobs(2, 4)
    sampler_logprobs[0, 1] -= draw.in_turn((0.0, 115.0))
    logprobs = sampler_logprobs + draw.normal(2, 4, scale=0.3)
    logprobs[0, 0], logprobs[1, 2] = sampler_logprobs[0, 0] + 1.5, sampler_logprobs[1, 2] + 4.0
    logprobs[1, 0] = sampler_logprobs[1, 0] - 2.0
    return {"logprobs": logprobs, "sampler_logprobs": sampler_logprobs, "cap": draw.one_of((2.0, 2.5, 3.0))}


TRUNCATED_WEIGHTS = Exercise(
    name="truncated_weights",
    notebook="07",
    title="weights for the responses of an older policy",
    minutes=7,
    difficulty=3,
    hint=r"The inputs are logarithms, so a ratio of probabilities is the exponential of a difference. The policy that learns "
    "stands in the numerator. The cap limits the ratio and not its logarithm, and from above only: compare both tokens of "
    "the example.",
    reference=_truncated,
    library="aligner_lib.algorithms.policy_gradient.importance_weights",
    inputs=_of_an_older_policy,
    outputs=("weights",),
    mistakes=(
        Mistake(
            "turned_round",
            "The ratio is the sampler's probability over the policy's. A token that the policy has made likelier must count "
            "more, not less.",
            lambda logprobs, sampler_logprobs, cap: _truncated(sampler_logprobs, logprobs, cap),
        ),
        Mistake(
            "difference",
            "The difference of log-probabilities is truncated, and its exponential is missing. A weight is a ratio of "
            "probabilities, which is 1 where policy and sampler agree.",
            lambda logprobs, sampler_logprobs, cap: (logprobs - sampler_logprobs).clamp(max=cap),
        ),
        Mistake(
            "truncated_before_exp",
            "The difference is truncated at the cap before the exponential, so weights reach e to the power of the cap.",
            lambda logprobs, sampler_logprobs, cap: (logprobs - sampler_logprobs).clamp(max=cap).exp(),
        ),
        Mistake(
            "not_truncated",
            "The ratios are not truncated, so a single token can dominate the update.",
            _of_ratio(lambda ratio, cap: ratio),
        ),
        Mistake(
            "masked",
            "Ratios above the cap become 0, which is the other correction (`masked`). Truncation sets these ratios to the cap.",
            _of_ratio(lambda ratio, cap: ratio * (ratio <= cap)),
        ),
        Mistake(
            "both_sides",
            "Small ratios are raised to 1 / cap. A token that the policy would hardly draw must count little.",
            _of_ratio(lambda ratio, cap: ratio.clamp(1 / cap, cap)),
        ),
        Mistake(
            "whole_responses",
            "Each token has the product of its response's ratios. Here every token has a ratio of its own.",
            _of_ratio(lambda ratio, cap: ratio.prod(dim=1, keepdim=True).clamp(max=cap).expand_as(ratio)),
        ),
        Mistake(
            "normalised",
            "The weights are divided by their mean. Then a batch from an older policy counts as much as a fresh batch.",
            _of_ratio(lambda ratio, cap: ratio.clamp(max=cap) / ratio.clamp(max=cap).mean()),
        ),
        Mistake(
            "zero_over_zero",
            "The ratio divides two probabilities. A probability below 1e-45 is 0 in float32, and 0 / 0 is NaN. Stay with logarithms: "
            "take the exponential of their difference.",
            lambda logprobs, sampler_logprobs, cap: (logprobs.exp() / sampler_logprobs.exp()).clamp(max=cap),
            seen_in=not_finite_or_equal_to(_truncated),
        ),
        Mistake(
            "clipped_around_1",
            "The ratio is clipped to the range from 1 − cap to 1 + cap, as PPO does with ε. The cap is the largest weight "
            "itself.",
            _of_ratio(lambda ratio, cap: ratio.clamp(1 - cap, 1 + cap)),
        ),
        Mistake(
            "cap_from_below",
            "The cap is a lower limit here: `clamp(min=cap)` raises the small ratios. Limit the ratio from above.",
            _of_ratio(lambda ratio, cap: ratio.clamp(min=cap)),
        ),
    ),
)

EXERCISES = (GRPO_ADVANTAGES, EXACT_MATCH, KL_ESTIMATORS, TRUNCATED_WEIGHTS)
