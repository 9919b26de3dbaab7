"""The exercises of notebook 07: a reward as a program, groups in place of a critic, and three estimates of the KL."""

from __future__ import annotations

import re

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake

torch = ImportedLate("torch")
policy_gradient = ImportedLate("aligner_lib.algorithms.policy_gradient")

# ---- grpo_advantages -----------------------------------------------------------------------------------------------


def _by_group(advantages, guarded=True):
    """advantages(rewards of one group, of all), written back to where its responses stand; guarded: not of one that is alike."""

    def answer(rewards, group):
        found = torch.zeros_like(rewards)
        for one in group.unique():
            mine = rewards[group == one]
            if not guarded or mine.min() < mine.max():
                found[group == one] = advantages(mine, rewards)
        return found

    return answer


def _deviation(rewards):
    """std(), NaN for a single reward as there, but without torch's warning: a learner who has not asked for it would read it."""
    return rewards.std() if len(rewards) > 1 else torch.tensor(float("nan"))


def _standardized(rewards):
    return (rewards - rewards.mean()) / (_deviation(rewards) + 1e-4)


def _in_the_order_of_groups(rewards, group):
    found = policy_gradient.grpo_advantages(rewards, group)
    return torch.cat([found[group == one] for one in group.unique()])


def _groups(draw: Draw) -> dict:
    """Of different sizes, their responses in no order; all rewards of one are alike, and one has a single response."""
    sizes = [draw.one_of((3, 4)), draw.one_of((3, 5)), 3, 1]
    group = [number for number, size in enumerate(sizes) for _ in range(size)]
    draw.random.shuffle(group)
    group = torch.tensor(group)
    rewards = draw.normal(len(group)) + 0.5
    rewards[group == 2] = draw.one_of((0.0, 1.0))
    return {"rewards": rewards, "group": group}


GRPO_ADVANTAGES = Exercise(
    name="grpo_advantages",
    notebook="07",
    title="a group in place of a critic",
    minutes=10,
    difficulty=2,
    hint="A loop over `group.unique()` will do: `rewards[group == one]` are the rewards of one group, and the same index writes its "
    "advantages back. `std()` divides by n − 1, as it should here. Leave a group alone whose rewards are all alike (its smallest is its "
    "largest): its advantages stay 0, and nothing is divided by a deviation of 0, or by that of a single reward, which is NaN.",
    reference=lambda *inputs: policy_gradient.grpo_advantages(*inputs),
    library="aligner_lib.algorithms.policy_gradient.grpo_advantages",
    trains=("grpo", "advantages"),
    inputs=_groups,
    outputs=("advantages",),
    mistakes=(
        Mistake(
            "groups_ignored",
            "mean and deviation are those of the whole batch, and the groups don't matter: a response to an easy prompt looks good "
            "whatever it says. Each response is compared with those to the same prompt, group by group.",
            lambda rewards, group: _standardized(rewards),
        ),
        Mistake(
            "mean_of_the_batch",
            "the mean is that of all prompts: a response to an easy prompt looks good whatever it says.",
            _by_group(lambda mine, everyone: (mine - everyone.mean()) / (mine.std() + 1e-4)),
        ),
        Mistake(
            "deviation_of_the_batch",
            "the deviation is that of all prompts together.",
            _by_group(lambda mine, everyone: (mine - mine.mean()) / (everyone.std() + 1e-4)),
        ),
        Mistake(
            "not_divided",
            "there is no division by the deviation (that is Dr. GRPO, and a good idea; GRPO divides).",
            _by_group(lambda mine, everyone: mine - mine.mean()),
        ),
        Mistake(
            "compared_with_the_others",
            "each response is compared with the mean of the others (as RLOO does); GRPO's mean has the response in it.",
            _by_group(lambda mine, everyone: _standardized(mine) * len(mine) / (len(mine) - 1)),
        ),
        Mistake(
            "uncorrected_deviation",
            "the deviation divides by n; here it divides by n − 1.",
            _by_group(lambda mine, everyone: (mine - mine.mean()) / (mine.std(correction=0) + 1e-4)),
        ),
        Mistake(
            "divided_by_zero",
            "a group whose rewards are all alike has a deviation of 0, and 0 / 0 is NaN: it would destroy the model.",
            _by_group(lambda mine, everyone: (mine - mine.mean()) / _deviation(mine), guarded=False),
        ),
        Mistake(
            "alone",
            "a response that is alone in its group, since the reward of all others has failed, has no deviation: it is NaN. With "
            "nothing to compare the advantage is 0.",
            _by_group(lambda mine, everyone: _standardized(mine), guarded=False),
        ),
        Mistake(
            "variance",
            "it is divided by the variance; the deviation is the root of it.",
            _by_group(lambda mine, everyone: (mine - mine.mean()) / (mine.var() + 1e-4)),
        ),
        Mistake(
            "order_lost",
            "the advantages come group by group, not in the order of the responses: most tokens learn from a stranger's reward.",
            _in_the_order_of_groups,
        ),
    ),
)

# ---- exact_match ----------------------------------------------------------------------------------------------------

NUMBER = r"-?\d+(?:\.\d+)?"


def _exact_match(response, answer, numbers=NUMBER, of=-1):
    found = re.findall(numbers, response)
    return float(bool(found) and float(found[of]) == float(answer))


def _any_number(response, answer):
    return float(any(float(one) == float(answer) for one in re.findall(NUMBER, response)))


def _digits_joined(response, answer):
    return float("".join(filter(str.isdigit, response)) == answer)


RESPONSES = (
    "{a}", "1{a}", "The answer is {a}.", "{a}{d}", "{d} + 1 = {a}", "{a} is wrong, it is {b}", "-{a}", "{b}, no: {a}",
    "{a}.5", "no idea", "{a}.0", "", "{b}", "it is {a}, I think", "{a}\n",
)  # fmt: skip


def _response(draw: Draw) -> dict:
    answer = draw.random.randint(2, 9)
    written = draw.in_turn(RESPONSES).format(a=answer, b=answer + 3, d=draw.random.randint(1, 9))
    return {"response": written, "answer": str(answer)}


EXACT_MATCH = Exercise(
    name="exact_match",
    notebook="07",
    title="a reward that 17 does not get for 7",
    minutes=8,
    difficulty=2,
    hint=r"`re.findall(r'-?\d+(?:\.\d+)?', response)` gives all numbers of a text, with sign and decimals, as texts. Compare the last "
    "one with the answer as a number: 7.0 is 7.",
    reference=_exact_match,
    inputs=_response,
    outputs=("reward",),
    cases=2 * len(RESPONSES),
    mistakes=(
        Mistake(
            "substring",
            "the answer stands somewhere in the text: 17 has a 7 in it, and so does a list of all digits.",
            lambda response, answer: float(answer in response),
        ),
        Mistake(
            "ending",
            "the text ends with the answer's digits; so does 17.",
            lambda response, answer: float(response.strip().rstrip(".").endswith(answer)),
        ),
        Mistake(
            "first_number",
            "the first number counts. In “3 + 4 = 7” the answer comes last.",
            lambda response, answer: _exact_match(response, answer, of=0),
        ),
        Mistake(
            "any_number",
            "any number counts: whoever lists them all is always right.",
            _any_number,
        ),
        Mistake(
            "sign_lost",
            "−7 passes for 7.",
            lambda response, answer: _exact_match(response, answer, numbers=r"\d+(?:\.\d+)?"),
        ),
        Mistake(
            "decimals_cut",
            "7.5 is read as 7 and 5: decimals belong to their number.",
            lambda response, answer: _exact_match(response, answer, numbers=r"-?\d+"),
        ),
        Mistake(
            "nothing_but_the_answer",
            "only the bare number passes: “The answer is 7.” is right, too, and 7.0 is.",
            lambda response, answer: float(response.strip() == answer),
        ),
        Mistake(
            "digits_joined",
            "all digits of the text are joined to one number.",
            _digits_joined,
        ),
    ),
)

# ---- kl_estimators --------------------------------------------------------------------------------------------------


def _kl_estimators(logprobs, reference_logprobs):
    return tuple(policy_gradient.kl_loss(logprobs, reference_logprobs, name) for name in ("k1", "k2", "k3"))


def _of_difference(estimators):
    return lambda logprobs, reference_logprobs: estimators(logprobs - reference_logprobs)


def _of_two_models(draw: Draw) -> dict:
    tokens = draw.one_of((5, 6, 8))
    return {"logprobs": draw.logprobs(tokens), "reference_logprobs": draw.logprobs(tokens)}


KL_ESTIMATORS = Exercise(
    name="kl_estimators",
    notebook="07",
    title="three estimates of the KL from one token",
    minutes=8,
    difficulty=3,
    hint=r"With $d = \log \pi - \log \pi_{ref}$ of the drawn token: $k_1 = d$, $k_2 = d^2/2$, $k_3 = e^{-d} - 1 + d$. The third is "
    r"never below 0: $e^{-d} \ge 1 - d$.",
    reference=_kl_estimators,
    library="aligner_lib.algorithms.policy_gradient.kl_loss",
    inputs=_of_two_models,
    outputs=("k1", "k2", "k3"),
    gradients=("logprobs",),
    mistakes=(
        Mistake(
            "turned_round",
            "d is the reference less the policy: this estimates, if anything, the KL of the reference to the policy.",
            lambda logprobs, reference: _kl_estimators(reference, logprobs),
        ),
        Mistake(
            "sign_in_k3",
            "the exponential in k3 is of +d; it is of −d, the ratio of reference to policy. Only so its mean is the KL.",
            _of_difference(lambda d: (d, d**2 / 2, d.exp() - 1 - d)),
        ),
        Mistake(
            "no_half_in_k2",
            "k2 is d² / 2: without the half it estimates twice the KL.",
            _of_difference(lambda d: (d, d**2, torch.exp(-d) - 1 + d)),
        ),
        Mistake(
            "no_one_in_k3",
            "k3 has lost its −1: where policy and reference agree it has to be 0.",
            _of_difference(lambda d: (d, d**2 / 2, torch.exp(-d) + d)),
        ),
        Mistake(
            "absolute_k1",
            "the absolute value of d is never below 0, and its mean is not the KL.",
            _of_difference(lambda d: (d.abs(), d**2 / 2, torch.exp(-d) - 1 + d)),
        ),
        Mistake(
            "averaged",
            "the tokens are averaged already. What comes back has one estimate for each.",
            lambda logprobs, reference: tuple(part.mean() for part in _kl_estimators(logprobs, reference)),
        ),
        Mistake(
            "detached",
            "the values are right, but they have no gradient: as a term of the loss they would do nothing.",
            lambda logprobs, reference: _kl_estimators(logprobs.detach(), reference),
        ),
    ),
)

EXERCISES = (GRPO_ADVANTAGES, EXACT_MATCH, KL_ESTIMATORS)
