"""The exercises of notebook 03: the response mask, the masked loss, and the losses before any training."""

from __future__ import annotations

from math import log, log2

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake

torch = ImportedLate("torch")
ppo = ImportedLate("aligner_lib.algorithms.ppo")

# ---- response_mask --------------------------------------------------------------------------------------------------


def _columns(prompt_lengths, lengths, size):
    return torch.arange(size)[None], prompt_lengths[:, None], lengths[:, None]


def _between(first, last):
    """A wrong response mask: True from column first(P) up to, but not including, column last(L)."""

    def mask(prompt_lengths, lengths, size):
        column, prompt, length = _columns(prompt_lengths, lengths, size)
        return (column >= first(prompt)) & (column < last(length))

    return mask


def _lengths(draw: Draw) -> dict:
    size = draw.one_of((7, 8, 9))
    prompts, lengths = draw.lengths(draw.one_of((2, 3, 4)), size + 1)
    return {"prompt_lengths": prompts, "lengths": lengths, "size": size}


def _of_the_prompt(prompt_lengths, lengths, size):
    column, prompt, _ = _columns(prompt_lengths, lengths, size)
    return column < prompt - 1


def _without_end(prompt_lengths, lengths, size):
    column, prompt, _ = _columns(prompt_lengths, lengths, size)
    return column >= prompt - 1


RESPONSE_MASK = Exercise(
    name="response_mask",
    notebook="03",
    title="which predictions count",
    minutes=8,
    difficulty=2,
    hint="Write down a row with $P=2$ and $T=5$: tokens 0 to 4, and predictions 0 to 3, where prediction $i$ predicts "
    "token $i+1$. The first token of the response is token $P$. Which prediction predicts token $P$? Compare "
    "`torch.arange(size)` with `prompt_lengths[:, None]` to get all rows at once.",
    reference=lambda *inputs: ppo.response_mask(*inputs),
    library="aligner_lib.algorithms.ppo.response_mask",
    inputs=_lengths,
    outputs=("mask",),
    mistakes=(
        Mistake(
            "one_late",
            "Prediction P − 1 is missing, which predicts the response's first token. So the model never learns to "
            "begin.",
            _between(lambda prompt: prompt, lambda length: length - 1),
        ),
        Mistake(
            "one_early",
            "The prediction of the prompt's last token counts, too.",
            _between(lambda prompt: prompt - 2, lambda length: length - 1),
        ),
        Mistake(
            "no_stop_token",
            "The prediction of the last token is missing. The last token is the stop token, so the model never "
            "learns to end.",
            _between(lambda prompt: prompt - 1, lambda length: length - 2),
        ),
        Mistake(
            "past_the_end",
            "The prediction after the last token counts, too. Nothing follows the last token, so this prediction "
            "is padding.",
            _between(lambda prompt: prompt - 1, lambda length: length),
        ),
        Mistake(
            "of_tokens",
            "The mask marks the positions of the response's tokens. The predictions of these tokens stand one "
            "position further left.",
            _between(lambda prompt: prompt, lambda length: length),
        ),
        Mistake(
            "prompt_counts",
            "The predictions of the prompt's tokens count, too, so the model learns to write prompts.",
            _between(lambda prompt: 0 * prompt, lambda length: length - 1),
        ),
        Mistake(
            "padding_counts",
            "All positions after the prompt count, padding included.",
            _without_end,
        ),
        Mistake(
            "inverted",
            "The prompt counts in place of the response.",
            _of_the_prompt,
        ),
    ),
)

# ---- masked_loss ----------------------------------------------------------------------------------------------------


def _masked_loss(logprobs, masks):
    total = sum((values * mask).sum() for values, mask in zip(logprobs, masks))
    return -total / sum(mask.sum() for mask in masks)


def _mean(losses):
    return sum(losses) / len(losses)


def _only_the_last_learns(logprobs, masks):
    return _masked_loss([*(values.detach() for values in logprobs[:-1]), logprobs[-1]], masks)


def _micro_batches(draw: Draw) -> dict:
    sizes = [(draw.one_of((1, 2, 3)), draw.one_of((5, 6, 7, 8))) for _ in range(draw.one_of((2, 3)))]
    return {
        "logprobs": [draw.logprobs(*size) for size in sizes],
        "masks": [draw.response_mask(*size) for size in sizes],
    }


MASKED_LOSS = Exercise(
    name="masked_loss",
    notebook="03",
    title="one loss, however the batch is cut",
    minutes=10,
    difficulty=2,
    hint="A mean of means is right only if all parts have the same number of tokens. Add up the sums and the counts of "
    "all micro batches, and divide once. (The library works in the same way: a loss is a sum with a count, and "
    "Megatron divides at the end.)",
    reference=_masked_loss,
    inputs=_micro_batches,
    outputs=("loss",),
    gradients=("logprobs",),
    mistakes=(
        Mistake(
            "mean_of_means",
            "Each micro batch is averaged first, and the averages are averaged again. So a token counts more in a "
            "micro batch with few tokens.",
            lambda logprobs, masks: _mean(
                [-(values * mask).sum() / mask.sum() for values, mask in zip(logprobs, masks)]
            ),
        ),
        Mistake(
            "mean_of_responses",
            "Each response is averaged first, so a token counts more in a short response.",
            lambda logprobs, masks: _mean(
                [
                    -(row * counts).sum() / counts.sum()
                    for values, mask in zip(logprobs, masks)
                    for row, counts in zip(values, mask)
                ]
            ),
        ),
        Mistake(
            "divided_by_padding",
            "The sum is divided by the number of all positions, the masked positions included.",
            lambda logprobs, masks: (
                -sum((values * mask).sum() for values, mask in zip(logprobs, masks))
                / sum(mask.numel() for mask in masks)
            ),
        ),
        Mistake(
            "mask_forgotten",
            "The tokens of prompts and padding count, too.",
            lambda logprobs, masks: _masked_loss(logprobs, [torch.ones_like(mask) for mask in masks]),
        ),
        Mistake(
            "divided_by_responses",
            "The sum is divided by the number of responses, so long responses make the loss large.",
            lambda logprobs, masks: (
                -sum((values * mask).sum() for values, mask in zip(logprobs, masks))
                / sum(len(mask) for mask in masks)
            ),
        ),
        Mistake(
            "sign",
            "The minus is missing: minimising this value makes the right tokens less likely.",
            lambda logprobs, masks: -_masked_loss(logprobs, masks),
        ),
        Mistake(
            "only_the_last_learns",
            "The value is right, but only the last micro batch has a gradient. `.item()` or `.detach()` has cut "
            "off the gradients of the others.",
            _only_the_last_learns,
        ),
    ),
)

# ---- first_losses ---------------------------------------------------------------------------------------------------

FIRST_LOSSES = Exercise(
    name="first_losses",
    notebook="03",
    title="the loss before any training",
    minutes=6,
    difficulty=2,
    hint="A model that knows nothing gives each of $n$ possibilities the probability $1/n$. A reward model has two "
    "possibilities: either answer may be the better one. DPO's margin is β times $h$, the chosen answer's "
    "gain in log-probability over the reference minus the rejected answer's, and at the beginning the policy equals the "
    r"reference. IPO's loss is $(h - \frac{1}{2\beta})^2$, in which $h$ has gains per token.",
    reference=lambda vocabulary_size, beta: (log(vocabulary_size), log(2), log(2), (1 / (2 * beta)) ** 2),
    inputs=lambda draw: {
        "vocabulary_size": draw.random.randint(100, 60000),
        "beta": draw.between(0.05, 0.45),
    },
    outputs=("sft", "reward_model", "dpo", "ipo"),
    mistakes=(
        Mistake(
            "bits",
            "These are logs to the base 2. The losses are in nats, so use the natural log.",
            lambda size, beta: (log2(size), 1.0, 1.0, (1 / (2 * beta)) ** 2),
        ),
        Mistake(
            "probabilities",
            "These are the probabilities of a right guess. The loss is minus the log of the probability.",
            lambda size, beta: (1 / size, 0.5, 0.5, (1 / (2 * beta)) ** 2),
        ),
        Mistake(
            "nothing_learnt_nothing_lost",
            "A margin of 0 does not give a loss of 0: −log σ(0) is ln 2. The loss is near 0 only for a model that "
            "is right and certain.",
            lambda size, beta: (log(size), 0.0, 0.0, (1 / (2 * beta)) ** 2),
        ),
        Mistake(
            "scaled_by_beta",
            "β multiplies the margin inside the sigmoid. The margin is 0, so β cannot change the loss.",
            lambda size, beta: (log(size), log(2), beta * log(2), (1 / (2 * beta)) ** 2),
        ),
        Mistake(
            "not_squared",
            "The square is missing: IPO's loss is the squared distance to 1 / (2β).",
            lambda size, beta: (log(size), log(2), log(2), 1 / (2 * beta)),
        ),
        Mistake(
            "two_forgotten",
            "This is the square of 1 / β, which is four times the right loss. IPO's target is 1 / (2β), and the 2 "
            "stands inside the square.",
            lambda size, beta: (log(size), log(2), log(2), (1 / beta) ** 2),
        ),
        Mistake(
            "half_of_beta",
            "This uses β / 2. IPO's target is 1 / (2β).",
            lambda size, beta: (log(size), log(2), log(2), (beta / 2) ** 2),
        ),
        Mistake(
            "two_sided",
            "This counts ln 2 twice. A pair has two answers, but only a single loss.",
            lambda size, beta: (log(size), 2 * log(2), 2 * log(2), (1 / (2 * beta)) ** 2),
        ),
    ),
)

EXERCISES = (RESPONSE_MASK, MASKED_LOSS, FIRST_LOSSES)
