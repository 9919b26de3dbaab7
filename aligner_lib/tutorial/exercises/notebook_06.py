"""The exercises of notebook 06: the implicit reward of a policy, and the DPO loss."""

from __future__ import annotations

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake
from aligner_lib.tutorial.exercises.recognition import not_finite_or_equal_to

torch = ImportedLate("torch")
preference = ImportedLate("aligner_lib.algorithms.preference")

# ---- implicit_reward ------------------------------------------------------------------------------------------------


def _implicit_reward(logprobs, reference_logprobs, mask, beta):
    return beta * ((logprobs - reference_logprobs) * mask).sum(1)


def _both_models(draw: Draw) -> dict:
    """Log-probabilities of tokens. In every third batch, the first row's prompt has a single token: its response begins at index 0."""
    rows, size = draw.one_of((2, 3, 4)), draw.one_of((6, 7, 8))
    # in every second batch, some tokens have a tiny probability, and both models give the response a probability of 0 in float32
    rarity, rare = draw.in_turn(((1.0, 0.0), (10.0, 60.0)))
    mask = draw.response_mask(rows, size)
    if draw.in_turn((False, True, False)):
        mask[0, : mask[0].int().argmax()] = True
    return {
        "logprobs": rarity * draw.logprobs(rows, size) - rare,
        "reference_logprobs": draw.logprobs(rows, size) - rare,
        "mask": mask,
        "beta": draw.between(0.05, 0.5),
    }


IMPLICIT_REWARD = Exercise(
    name="implicit_reward",
    notebook="06",
    title="the reward that a policy implies",
    minutes=7,
    difficulty=1,
    hint="The log-probability of a whole response is the sum over its tokens, under the policy and under the reference. "
    "The prompt's tokens do not belong to the response, so the mask leaves them out.",
    reference=_implicit_reward,
    inputs=_both_models,
    outputs=("rewards",),
    gradients=("logprobs",),
    mistakes=(
        Mistake(
            "mean_over_tokens",
            "This is the mean over the response's tokens. The log-probability of a response is the sum (SimPO and "
            "IPO use means, DPO does not).",
            lambda logprobs, reference, mask, beta: (
                _implicit_reward(logprobs, reference, mask, beta) / mask.sum(1)
            ),
        ),
        Mistake(
            "mask_forgotten",
            "The sum includes the tokens of prompt and padding.",
            lambda logprobs, reference, mask, beta: beta * (logprobs - reference).sum(1),
        ),
        Mistake(
            "sign",
            "This is the reference minus the policy, so a response that became likelier gets a low reward.",
            lambda logprobs, reference, mask, beta: -_implicit_reward(logprobs, reference, mask, beta),
        ),
        Mistake(
            "no_reference",
            "The reference is missing. Without it every rare word lowers the reward. Only the gain over the "
            "reference counts.",
            lambda logprobs, reference, mask, beta: beta * (logprobs * mask).sum(1),
        ),
        Mistake(
            "no_beta",
            "β is missing: the result is in nats of probability and not in units of the reward.",
            lambda logprobs, reference, mask, beta: _implicit_reward(logprobs, reference, mask, 1.0),
        ),
        Mistake(
            "divided_by_beta",
            "The result is divided by β. Multiply by β: it is a divisor in the formula of the best policy, and "
            "solving for the reward makes it a factor.",
            lambda logprobs, reference, mask, beta: _implicit_reward(logprobs, reference, mask, 1 / beta),
        ),
        Mistake(
            "one_for_all",
            "The sum runs over the batch, too. Each response has its own reward.",
            lambda logprobs, reference, mask, beta: _implicit_reward(logprobs, reference, mask, beta).sum(),
        ),
        Mistake(
            "first_column_left_out",
            "Column 0 is left out. A response begins there if its prompt has one token; otherwise the mask is False there.",
            lambda logprobs, reference, mask, beta: _implicit_reward(
                logprobs[:, 1:], reference[:, 1:], mask[:, 1:], beta
            ),
        ),
        Mistake(
            "mean_over_columns",
            "The sum is divided by the number of columns, prompt and padding included. The log-probability of a response is the "
            "sum over its tokens.",
            lambda logprobs, reference, mask, beta: (
                _implicit_reward(logprobs, reference, mask, beta) / mask.shape[1]
            ),
        ),
        Mistake(
            "mask_inverted",
            "The mask is inverted: the sum has the tokens of prompt and padding.",
            lambda logprobs, reference, mask, beta: _implicit_reward(logprobs, reference, ~mask, beta),
        ),
        Mistake(
            "reference_without_mask",
            "The mask applies to the policy only, so the reference's prompt and padding enter the sum. Mask both.",
            lambda logprobs, reference, mask, beta: beta * (logprobs * mask - reference).sum(1),
        ),
    ),
)

# ---- dpo_losses -----------------------------------------------------------------------------------------------------


def _dpo_losses(chosen, rejected, reference_chosen, reference_rejected, beta):
    return preference.dpo_loss(chosen, rejected, reference_chosen, reference_rejected, beta)


def _loss(margin):
    return -torch.nn.functional.logsigmoid(margin)


def _sums(draw: Draw) -> dict:
    """Summed log-probabilities of some pairs. The implicit margin of the last pair is so negative that its sigmoid is 0."""
    pairs, beta = draw.one_of((3, 4, 5)), draw.between(0.05, 0.5)
    names = "chosen rejected reference_chosen reference_rejected".split()
    sums = {name: draw.normal(pairs, scale=4.0) - 15.0 for name in names}
    sums["chosen"][-1] -= 150.0 / beta
    sums["rejected"][0] -= 30.0
    return sums | {"beta": beta}


DPO_LOSSES = Exercise(
    name="dpo_losses",
    notebook="06",
    title="DPO's loss",
    minutes=8,
    difficulty=3,
    hint="A gain is the policy's log-probability minus the reference's, and the implicit reward is beta times the gain. Call "
    "`torch.nn.functional.logsigmoid` with the chosen minus the rejected reward: the loss of the reward model in notebook 04.",
    reference=_dpo_losses,
    library="aligner_lib.algorithms.preference.dpo_loss",
    trains=("dpo", "loss"),
    inputs=_sums,
    outputs=("loss",),
    gradients=("chosen", "rejected"),
    mistakes=(
        Mistake(
            "no_reference",
            "The reference is missing. Without it the loss asks whether the chosen answer is likelier. It should "
            "ask whether the chosen answer has become likelier.",
            lambda c, r, rc, rr, beta: _loss(beta * (c - r)),
        ),
        Mistake(
            "reference_added",
            "The reference's margin is added: either by its sign, or because each answer is compared with the reference's "
            "log-probability of the other answer. Subtract the reference's log-probability of the same answer.",
            lambda c, r, rc, rr, beta: _loss(beta * ((c - r) + (rc - rr))),
        ),
        Mistake(
            "turned_round",
            "Chosen and rejected are exchanged, so the rejected answer becomes likelier.",
            lambda c, r, rc, rr, beta: preference.dpo_loss(r, c, rr, rc, beta),
        ),
        Mistake(
            "beta_outside",
            "β multiplies the loss. Then β changes the size of the steps, but not the policy to which they lead.",
            lambda c, r, rc, rr, beta: beta * preference.dpo_loss(c, r, rc, rr, 1.0),
        ),
        Mistake(
            "divided_by_beta",
            "The margin is divided by β. It must be multiplied by β.",
            lambda c, r, rc, rr, beta: preference.dpo_loss(c, r, rc, rr, 1 / beta),
        ),
        Mistake(
            "no_log",
            "This is the probability of being wrong. The loss is minus the log of the probability of being right.",
            lambda c, r, rc, rr, beta: 1 - torch.sigmoid(beta * ((c - r) - (rc - rr))),
        ),
        Mistake(
            "log_of_zero",
            "The loss is right for small margins, but fails for large ones: the sigmoid becomes exactly 0 in float32, and the "
            "log of 0 is infinite. `logsigmoid` computes the log without the sigmoid.",
            lambda c, r, rc, rr, beta: -torch.sigmoid(beta * ((c - r) - (rc - rr))).log(),
        ),
        Mistake(
            "averaged",
            "The result is averaged over the pairs. Return one loss for each pair.",
            lambda *inputs: preference.dpo_loss(*inputs).mean(),
        ),
        Mistake(
            "rejected_detached",
            "The value is right, but no gradient reaches the rejected answer.",
            lambda c, r, rc, rr, beta: preference.dpo_loss(c, r.detach(), rc, rr, beta),
        ),
    ),
)

# ---- pair_weights ---------------------------------------------------------------------------------------------------


def _pair_weights(differences, beta):
    return beta * torch.sigmoid(-beta * differences)


def _differences(draw: Draw) -> dict:
    """Differences of gains as after some steps: a few pairs are far apart in either direction.

    In every second case, a difference is so negative that exp(−β · difference) is infinite in float32.
    """
    differences, beta = draw.normal(6, scale=15.0), draw.one_of((0.05, 0.1, 0.3))
    if draw.in_turn((False, True)):
        differences[0] = -120.0 / beta
    return {"differences": differences, "beta": beta}


PAIR_WEIGHTS = Exercise(
    name="pair_weights",
    notebook="06",
    title="how strongly each pair moves the policy",
    minutes=10,
    difficulty=3,
    hint="The derivative of $-\\log \\sigma(x)$ is $-\\sigma(-x)$. Here $x$ is β times the difference, so the chain rule gives "
    "another factor β. Test two cases: a difference of 0 has the weight β/2, and a large difference has a weight near 0.",
    reference=_pair_weights,
    inputs=_differences,
    outputs=("weights",),
    mistakes=(
        Mistake(
            "beta_outside_is_missing",
            "The factor β of the chain rule is missing.",
            lambda differences, beta: torch.sigmoid(-beta * differences),
        ),
        Mistake(
            "beta_inside_is_missing",
            "The difference is not multiplied by β inside the sigmoid.",
            lambda differences, beta: beta * torch.sigmoid(-differences),
        ),
        Mistake(
            "grows_with_the_difference",
            "The weight grows with the difference. A pair that the policy already gets right has to move the policy less.",
            lambda differences, beta: beta * torch.sigmoid(beta * differences),
        ),
        Mistake(
            "slope_of_the_sigmoid",
            "This is the slope of σ itself. The loss is the negative *logarithm* of σ, so a pair that the policy gets "
            "badly wrong keeps its weight.",
            lambda differences, beta: (
                beta * torch.sigmoid(beta * differences) * torch.sigmoid(-beta * differences)
            ),
        ),
        Mistake(
            "sign",
            "This is the derivative itself, which is negative. The weight is its size.",
            lambda differences, beta: -_pair_weights(differences, beta),
        ),
        Mistake(
            "the_loss",
            "This is the loss of each pair. Its derivative with respect to the difference is asked for.",
            lambda differences, beta: -torch.nn.functional.logsigmoid(beta * differences),
        ),
        Mistake(
            "infinite_over_infinite",
            "The exponential of a number above 88 is infinite in float32, and infinite over infinite is NaN. `torch.sigmoid` does not "
            "overflow.",
            lambda differences, beta: beta * (-beta * differences).exp() / (1 + (-beta * differences).exp()),
            seen_in=not_finite_or_equal_to(_pair_weights),
        ),
        Mistake(
            "beta_twice",
            "β² stands in front. The chain rule gives a single factor β.",
            lambda differences, beta: beta * _pair_weights(differences, beta),
        ),
        Mistake(
            "absolute_margin",
            "The absolute value of the margin is taken, so a pair that the policy gets badly wrong has a small weight. The "
            "weight must be near β there.",
            lambda differences, beta: _pair_weights(differences.abs(), beta),
        ),
    ),
)

EXERCISES = (IMPLICIT_REWARD, DPO_LOSSES, PAIR_WEIGHTS)
