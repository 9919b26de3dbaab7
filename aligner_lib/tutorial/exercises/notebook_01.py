"""The exercises of notebook 01: from logits to log-probabilities and to a perplexity."""

from __future__ import annotations

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake

torch = ImportedLate("torch")

# ---- next_logprobs --------------------------------------------------------------------------------------------------


def _picked(values, tokens):
    return values.gather(-1, tokens[..., None])[..., 0]


def _next_logprobs(logits, tokens):
    return _picked(logits[:, :-1].log_softmax(-1), tokens[:, 1:])


def _logits_and_tokens(draw: Draw) -> dict:
    rows, size, vocabulary = draw.one_of((2, 3)), draw.one_of((4, 5, 6)), draw.one_of((5, 7))
    return {
        "logits": draw.normal(rows, size, vocabulary, scale=2.0),
        "tokens": draw.integers(0, vocabulary, rows, size),
    }


NEXT_LOGPROBS = Exercise(
    name="next_logprobs",
    notebook="01",
    title="the log-probability of each next token",
    minutes=8,
    difficulty=2,
    hint="The logits at position $t$ are a prediction of token $t+1$. So the last logits predict nothing that is there, and "
    "nothing predicts the first token. `torch.gather` picks one element of the last dimension for each index.",
    reference=_next_logprobs,
    inputs=_logits_and_tokens,
    outputs=("logprobs",),
    gradients=("logits",),
    mistakes=(
        Mistake(
            "no_shift",
            "each position is asked for the token that it has just read, in place of the one that comes next.",
            lambda logits, tokens: _picked(logits[:, :-1].log_softmax(-1), tokens[:, :-1]),
        ),
        Mistake(
            "wrong_side_shifted",
            "the logits are shifted where the tokens should be: token t+1 is scored with the logits at position t+1, which have "
            "already read it. Those that predict it stand one place before: drop the last logits (`logits[:, :-1]`), not the first.",
            lambda logits, tokens: _picked(logits[:, 1:].log_softmax(-1), tokens[:, 1:]),
        ),
        Mistake(
            "shifted_backwards",
            "each position is asked for the token before it, which it knows.",
            lambda logits, tokens: _picked(logits[:, 1:].log_softmax(-1), tokens[:, :-1]),
        ),
        Mistake(
            "not_normalised",
            "a logit is no log-probability before the log of the sum of all exponentials is taken away.",
            lambda logits, tokens: _picked(logits[:, :-1], tokens[:, 1:]),
        ),
        Mistake(
            "probabilities",
            "these are probabilities: their log is missing.",
            lambda logits, tokens: _picked(logits[:, :-1].softmax(-1), tokens[:, 1:]),
        ),
        Mistake(
            "normalised_over_positions",
            "the softmax runs over the positions (dimension 1), where it has to run over the vocabulary (the last one).",
            lambda logits, tokens: _picked(logits[:, :-1].log_softmax(1), tokens[:, 1:]),
        ),
        Mistake(
            "base_two",
            "these are bits: the log to the base 2. Everything here is in nats.",
            lambda logits, tokens: _next_logprobs(logits, tokens) / 0.6931471805599453,
        ),
        Mistake(
            "sign",
            "this is the loss of each token, minus its log-probability; log-probabilities are at most 0.",
            lambda logits, tokens: -_next_logprobs(logits, tokens),
        ),
    ),
)

# ---- perplexity -----------------------------------------------------------------------------------------------------


def _perplexity(logprobs, mask):
    return (-(logprobs * mask).sum() / mask.sum()).exp()


def _of_rows(logprobs, mask):
    return -(logprobs * mask).sum(1) / mask.sum(1)


def _logprobs_and_mask(draw: Draw) -> dict:
    rows, size = draw.one_of((2, 3, 4)), draw.one_of((6, 7, 8))
    return {"logprobs": draw.logprobs(rows, size), "mask": draw.response_mask(rows, size)}


PERPLEXITY = Exercise(
    name="perplexity",
    notebook="01",
    title="perplexity, over all tokens that are there",
    minutes=5,
    difficulty=1,
    hint="It is $e$ to the mean loss of a token. A mean of means counts the tokens of short texts more than those of long "
    "ones: first the sum over everything, then one division.",
    reference=_perplexity,
    inputs=_logprobs_and_mask,
    outputs=("perplexity",),
    mistakes=(
        Mistake(
            "padding_counts",
            "the mean divides by all places of the rectangle, padding included.",
            lambda logprobs, mask: (-(logprobs * mask).mean()).exp(),
        ),
        Mistake(
            "mask_forgotten",
            "the log-probabilities at padding are added, too.",
            lambda logprobs, mask: (-logprobs.mean()).exp(),
        ),
        Mistake(
            "mean_of_rows",
            "it is a mean of the rows' means: tokens of short texts count more than those of long ones.",
            lambda logprobs, mask: _of_rows(logprobs, mask).mean().exp(),
        ),
        Mistake(
            "mean_of_perplexities",
            "it is a mean of the rows' perplexities: the exponential comes last, when all is averaged.",
            lambda logprobs, mask: _of_rows(logprobs, mask).exp().mean(),
        ),
        Mistake(
            "sign",
            "the minus is missing: this is the (geometric) mean probability of a token, which is below 1.",
            lambda logprobs, mask: 1 / _perplexity(logprobs, mask),
        ),
        Mistake(
            "sum",
            "the sum is not divided by the number of tokens: the longer the text, the more perplexed the model.",
            lambda logprobs, mask: (-(logprobs * mask).sum()).exp(),
        ),
        Mistake(
            "no_exponential",
            "this is the mean loss in nats; the perplexity is e to the power of it.",
            lambda logprobs, mask: _perplexity(logprobs, mask).log(),
        ),
    ),
)

EXERCISES = (NEXT_LOGPROBS, PERPLEXITY)
