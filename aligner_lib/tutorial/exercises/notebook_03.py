"""The exercises of notebook 03: which tokens count, the loss over them, and what it is before anything is learnt."""

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
    """A mask from first(P) to before last(L)."""

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
    hint="Write down a row with $P=2$ and $L=5$: tokens 0 to 4, predictions 0 to 3, where prediction $i$ is of token $i+1$. "
    "The response's first token is token $P$. Which prediction is of it? `torch.arange(size)` compared with "
    "`prompt_lengths[:, None]` gives all rows at once.",
    reference=lambda *inputs: ppo.response_mask(*inputs),
    library="aligner_lib.algorithms.ppo.response_mask",
    inputs=_lengths,
    outputs=("mask",),
    mistakes=(
        Mistake(
            "one_late",
            "the response's first token is predicted at P − 1, and that prediction is missing: nobody learns how to begin.",
            _between(lambda prompt: prompt, lambda length: length - 1),
        ),
        Mistake(
            "one_early",
            "a prediction of the prompt's last token counts, too.",
            _between(lambda prompt: prompt - 2, lambda length: length - 1),
        ),
        Mistake(
            "no_stop_token",
            "the prediction of the last token is missing, which is the stop token: the model never learns to end.",
            _between(lambda prompt: prompt - 1, lambda length: length - 2),
        ),
        Mistake(
            "past_the_end",
            "the last token's own prediction counts, but nothing follows it: that is padding.",
            _between(lambda prompt: prompt - 1, lambda length: length),
        ),
        Mistake(
            "of_tokens",
            "these are the places of the response's tokens. The predictions of them stand one place to the left.",
            _between(lambda prompt: prompt, lambda length: length),
        ),
        Mistake(
            "prompt_counts",
            "the predictions of the prompt count, too: the model learns to ask.",
            _between(lambda prompt: 0 * prompt, lambda length: length - 1),
        ),
        Mistake(
            "padding_counts",
            "everything behind the prompt counts, padding included.",
            _without_end,
        ),
        Mistake(
            "inverted",
            "the prompt counts in place of the response.",
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
    hint="A mean of means is right only where all have the same number of tokens. Add up the sums and the numbers of all micro "
    "batches, and divide once. (So does this library: a loss is a sum with a count, and Megatron divides at the end.)",
    reference=_masked_loss,
    inputs=_micro_batches,
    outputs=("loss",),
    gradients=("logprobs",),
    mistakes=(
        Mistake(
            "mean_of_means",
            "each micro batch is averaged before they are: a token counts more in a micro batch that has few.",
            lambda logprobs, masks: _mean(
                [-(values * mask).sum() / mask.sum() for values, mask in zip(logprobs, masks)]
            ),
        ),
        Mistake(
            "mean_of_responses",
            "each response is averaged first: a token counts more in a short response.",
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
            "the sum is divided by all places of the micro batches, the masked ones included.",
            lambda logprobs, masks: (
                -sum((values * mask).sum() for values, mask in zip(logprobs, masks))
                / sum(mask.numel() for mask in masks)
            ),
        ),
        Mistake(
            "mask_forgotten",
            "prompts and padding count, too.",
            lambda logprobs, masks: _masked_loss(logprobs, [torch.ones_like(mask) for mask in masks]),
        ),
        Mistake(
            "divided_by_responses",
            "the sum is divided by the number of responses: long responses make the loss large.",
            lambda logprobs, masks: (
                -sum((values * mask).sum() for values, mask in zip(logprobs, masks))
                / sum(len(mask) for mask in masks)
            ),
        ),
        Mistake(
            "sign",
            "the minus is missing: whoever makes this smaller makes the right tokens less likely.",
            lambda logprobs, masks: -_masked_loss(logprobs, masks),
        ),
        Mistake(
            "only_the_last_learns",
            "the value is right, but only the last micro batch has a gradient. `.item()` or `.detach()` has cut off the others.",
            _only_the_last_learns,
        ),
    ),
)

# ---- first_losses ---------------------------------------------------------------------------------------------------

FIRST_LOSSES = Exercise(
    name="first_losses",
    notebook="03",
    title="the loss before anything is learnt",
    minutes=6,
    difficulty=2,
    hint="Who knows nothing gives each of $n$ possibilities $1/n$. A reward model has two: the chosen answer is the better one, or "
    "it isn't. DPO's margin is the difference of what policy and reference think; at the beginning they are the same model. "
    r"IPO's loss is $(h - \frac{1}{2\beta})^2$ with that same margin $h$.",
    reference=lambda vocabulary_size, beta: (log(vocabulary_size), log(2), log(2), (1 / (2 * beta)) ** 2),
    inputs=lambda draw: {
        "vocabulary_size": draw.random.randint(100, 60000),
        "beta": draw.between(0.05, 0.45),
    },
    outputs=("sft", "reward_model", "dpo", "ipo"),
    mistakes=(
        Mistake(
            "bits",
            "these are logs to the base 2; the losses here are in nats, with the natural log.",
            lambda size, beta: (log2(size), 1.0, 1.0, (1 / (2 * beta)) ** 2),
        ),
        Mistake(
            "probabilities",
            "these are the probabilities of guessing right; the loss is minus the log of them.",
            lambda size, beta: (1 / size, 0.5, 0.5, (1 / (2 * beta)) ** 2),
        ),
        Mistake(
            "nothing_learnt_nothing_lost",
            "a margin of 0 is no loss of 0: −log σ(0) is ln 2. Only a model that is sure, and right, has a loss of 0.",
            lambda size, beta: (log(size), 0.0, 0.0, (1 / (2 * beta)) ** 2),
        ),
        Mistake(
            "scaled_by_beta",
            "β stands inside the sigmoid. It multiplies a margin of 0, and can't change what comes out.",
            lambda size, beta: (log(size), log(2), beta * log(2), (1 / (2 * beta)) ** 2),
        ),
        Mistake(
            "not_squared",
            "IPO's loss is the square of the distance to 1 / 2β.",
            lambda size, beta: (log(size), log(2), log(2), 1 / (2 * beta)),
        ),
        Mistake(
            "two_forgotten",
            "IPO's goal is 1 / (2β); this is the square of 1 / β, four times the loss. The 2 stands within the square.",
            lambda size, beta: (log(size), log(2), log(2), (1 / beta) ** 2),
        ),
        Mistake(
            "half_of_beta",
            "IPO's goal is 1 / (2β), not β / 2 and not 1/2 · β.",
            lambda size, beta: (log(size), log(2), log(2), (beta / 2) ** 2),
        ),
        Mistake(
            "two_sided",
            "a pair has two answers, but one loss: ln 2 once.",
            lambda size, beta: (log(size), 2 * log(2), 2 * log(2), (1 / (2 * beta)) ** 2),
        ),
    ),
)

EXERCISES = (RESPONSE_MASK, MASKED_LOSS, FIRST_LOSSES)
