"""The exercises of notebook 06: the reward that a policy is, and DPO's loss of it."""

from __future__ import annotations

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake

torch = ImportedLate("torch")
preference = ImportedLate("aligner_lib.algorithms.preference")

# ---- implicit_reward ------------------------------------------------------------------------------------------------


def _implicit_reward(logprobs, reference_logprobs, mask, beta):
    return beta * ((logprobs - reference_logprobs) * mask).sum(1)


def _both_models(draw: Draw) -> dict:
    rows, size = draw.one_of((2, 3, 4)), draw.one_of((6, 7, 8))
    return {
        "logprobs": draw.logprobs(rows, size),
        "reference_logprobs": draw.logprobs(rows, size),
        "mask": draw.response_mask(rows, size),
        "beta": draw.between(0.05, 0.5),
    }


IMPLICIT_REWARD = Exercise(
    name="implicit_reward",
    notebook="06",
    title="the reward that a policy is",
    minutes=5,
    difficulty=1,
    hint="The log-probability of a whole response is the sum over its tokens, and so is that of the reference. The prompt's tokens "
    "are not part of the response: the mask leaves them out.",
    reference=_implicit_reward,
    inputs=_both_models,
    outputs=("rewards",),
    gradients=("logprobs",),
    mistakes=(
        Mistake(
            "mean_over_tokens",
            "it is the mean over the response's tokens. The log-probability of a response is the sum (SimPO and IPO take means, "
            "DPO does not).",
            lambda logprobs, reference, mask, beta: (
                _implicit_reward(logprobs, reference, mask, beta) / mask.sum(1)
            ),
        ),
        Mistake(
            "mask_forgotten",
            "prompt and padding are in the sum.",
            lambda logprobs, reference, mask, beta: beta * (logprobs - reference).sum(1),
        ),
        Mistake(
            "sign",
            "it is the reference less the policy: what the policy has come to like gets a low reward.",
            lambda logprobs, reference, mask, beta: -_implicit_reward(logprobs, reference, mask, beta),
        ),
        Mistake(
            "no_reference",
            "without the reference every rare word is a bad one: only what the policy has gained counts.",
            lambda logprobs, reference, mask, beta: beta * (logprobs * mask).sum(1),
        ),
        Mistake(
            "no_beta",
            "β is missing: the units are nats of probability, not those of the reward.",
            lambda logprobs, reference, mask, beta: _implicit_reward(logprobs, reference, mask, 1.0),
        ),
        Mistake(
            "divided_by_beta",
            "β multiplies; it is in the denominator of the policy's own formula, and comes out of there.",
            lambda logprobs, reference, mask, beta: _implicit_reward(logprobs, reference, mask, 1 / beta),
        ),
        Mistake(
            "one_for_all",
            "it is summed over the batch, too: each response has a reward of its own.",
            lambda logprobs, reference, mask, beta: _implicit_reward(logprobs, reference, mask, beta).sum(),
        ),
    ),
)

# ---- dpo_losses -----------------------------------------------------------------------------------------------------


def _loss(margin):
    return -torch.nn.functional.logsigmoid(margin)


def _sums(draw: Draw) -> dict:
    pairs = draw.one_of((3, 4, 5))
    names = "chosen rejected reference_chosen reference_rejected".split()
    return {name: draw.normal(pairs, scale=4.0) - 15.0 for name in names} | {"beta": draw.between(0.05, 0.5)}


DPO_LOSSES = Exercise(
    name="dpo_losses",
    notebook="06",
    title="DPO's loss",
    minutes=7,
    difficulty=2,
    hint="Put the implicit rewards of both answers into the loss of the reward model. Then you have it: "
    "`-logsigmoid(beta * (gain_of_the_chosen - gain_of_the_rejected))`, where a gain is the policy's log-probability less the "
    "reference's.",
    reference=lambda *inputs: preference.dpo_loss(*inputs),
    library="aligner_lib.algorithms.preference.dpo_loss",
    trains=("dpo", "loss"),
    inputs=_sums,
    outputs=("loss",),
    gradients=("chosen", "rejected"),
    mistakes=(
        Mistake(
            "no_reference",
            "without the reference the loss asks whether the chosen answer is likelier, not whether it has become so.",
            lambda c, r, rc, rr, beta: _loss(beta * (c - r)),
        ),
        Mistake(
            "reference_added",
            "the reference's margin is added; it is to be taken away.",
            lambda c, r, rc, rr, beta: _loss(beta * ((c - r) + (rc - rr))),
        ),
        Mistake(
            "turned_round",
            "the rejected answer is made likelier.",
            lambda c, r, rc, rr, beta: preference.dpo_loss(r, c, rr, rc, beta),
        ),
        Mistake(
            "beta_outside",
            "β multiplies the loss: it then changes the size of the steps and not where they lead.",
            lambda c, r, rc, rr, beta: beta * preference.dpo_loss(c, r, rc, rr, 1.0),
        ),
        Mistake(
            "divided_by_beta",
            "β multiplies the margin; this divides by it.",
            lambda c, r, rc, rr, beta: preference.dpo_loss(c, r, rc, rr, 1 / beta),
        ),
        Mistake(
            "no_log",
            "this is the probability of being wrong; the loss is minus the log of that of being right.",
            lambda c, r, rc, rr, beta: 1 - torch.sigmoid(beta * ((c - r) - (rc - rr))),
        ),
        Mistake(
            "averaged",
            "the pairs are averaged already. What comes back has one loss for each.",
            lambda *inputs: preference.dpo_loss(*inputs).mean(),
        ),
        Mistake(
            "rejected_detached",
            "the value is right, but no gradient reaches the rejected answer.",
            lambda c, r, rc, rr, beta: preference.dpo_loss(c, r.detach(), rc, rr, beta),
        ),
    ),
)

EXERCISES = (IMPLICIT_REWARD, DPO_LOSSES)
