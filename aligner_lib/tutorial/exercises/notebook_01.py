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
    """Every third batch has a single row and large logits: the rarest token's probability is 0 in float32."""
    rows, size, vocabulary = draw.in_turn((2, 3, 1)), draw.one_of((4, 5, 6)), draw.one_of((5, 7))
    return {
        "logits": draw.normal(rows, size, vocabulary, scale=draw.in_turn((2.0, 2.0, 150.0))),
        "tokens": draw.integers(0, vocabulary, rows, size),
    }


NEXT_LOGPROBS = Exercise(
    name="next_logprobs",
    notebook="01",
    title="the log-probability of each next token",
    minutes=8,
    difficulty=2,
    hint="The logits at position $t$ predict token $t+1$. So the last logits predict a token that does not exist, and "
    "no logits predict the first token. `torch.gather` picks one element of the last dimension for each index.",
    reference=_next_logprobs,
    inputs=_logits_and_tokens,
    outputs=("logprobs",),
    gradients=("logits",),
    mistakes=(
        Mistake(
            "no_shift",
            "Each position scores the token that it has just read. It should score the token that comes next.",
            lambda logits, tokens: _picked(logits[:, :-1].log_softmax(-1), tokens[:, :-1]),
        ),
        Mistake(
            "wrong_side_shifted",
            "The first logits are dropped, so token t+1 is scored with the logits at position t+1, which have "
            "already read the token. The logits that predict token t+1 stand at position t: drop the last logits "
            "instead (`logits[:, :-1]`).",
            lambda logits, tokens: _picked(logits[:, 1:].log_softmax(-1), tokens[:, 1:]),
        ),
        Mistake(
            "shifted_backwards",
            "Each position scores the token before it, which the model has already read.",
            lambda logits, tokens: _picked(logits[:, 1:].log_softmax(-1), tokens[:, :-1]),
        ),
        Mistake(
            "not_normalised",
            "These are logits. A log-probability is a logit minus the log of the sum of all exponentials.",
            lambda logits, tokens: _picked(logits[:, :-1], tokens[:, 1:]),
        ),
        Mistake(
            "probabilities",
            "These are probabilities: take their log.",
            lambda logits, tokens: _picked(logits[:, :-1].softmax(-1), tokens[:, 1:]),
        ),
        Mistake(
            "log_of_zero",
            "The log of a softmax fails for a rare token: below about e^−103, float32 rounds its probability to 0, and the "
            "log of 0 is infinite. `log_softmax` computes the log without the probability.",
            lambda logits, tokens: _picked(logits[:, :-1].softmax(-1).log(), tokens[:, 1:]),
        ),
        Mistake(
            "small_number_added",
            "A small number inside the log keeps it finite, but the log-probability of a rare token is then that of the small "
            "number, and its gradient vanishes. `log_softmax` needs no such number.",
            lambda logits, tokens: _picked((logits[:, :-1].softmax(-1) + 1e-8).log(), tokens[:, 1:]),
        ),
        Mistake(
            "squeezed",
            "`squeeze()` without a dimension removes every dimension of size 1, so a batch of one row loses its rows. Name "
            "the dimension: `squeeze(-1)`.",
            lambda logits, tokens: logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(),
        ),
        Mistake(
            "normalised_over_positions",
            "The softmax runs over the positions (dimension 1). It must run over the vocabulary (the last "
            "dimension).",
            lambda logits, tokens: _picked(logits[:, :-1].log_softmax(1), tokens[:, 1:]),
        ),
        Mistake(
            "base_two",
            "These values are in bits, because the log has base 2. All values in these notebooks are in nats.",
            lambda logits, tokens: _next_logprobs(logits, tokens) / 0.6931471805599453,
        ),
        Mistake(
            "sign",
            "This is the loss of each token, which is minus its log-probability. Log-probabilities are at most 0.",
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
    rarity = draw.in_turn((1.0, 8.0))  # in every second batch, some tokens have a tiny probability
    return {"logprobs": rarity * draw.logprobs(rows, size), "mask": draw.response_mask(rows, size)}


PERPLEXITY = Exercise(
    name="perplexity",
    notebook="01",
    title="perplexity, over all tokens except padding",
    minutes=5,
    difficulty=1,
    hint="The perplexity is $e$ to the power of the mean loss of a token. A mean of means would give the tokens of "
    "short texts more weight than the tokens of long texts. So compute the sum over all tokens first, then divide "
    "once.",
    reference=_perplexity,
    inputs=_logprobs_and_mask,
    outputs=("perplexity",),
    mistakes=(
        Mistake(
            "padding_counts",
            "The mean divides by the number of all positions, padding included.",
            lambda logprobs, mask: (-(logprobs * mask).mean()).exp(),
        ),
        Mistake(
            "mask_forgotten",
            "The log-probabilities at padding are in the sum, too.",
            lambda logprobs, mask: (-logprobs.mean()).exp(),
        ),
        Mistake(
            "mean_of_rows",
            "This is a mean of the rows' means, so the tokens of short texts get more weight than the tokens of "
            "long texts.",
            lambda logprobs, mask: _of_rows(logprobs, mask).mean().exp(),
        ),
        Mistake(
            "mean_of_perplexities",
            "This is a mean of the rows' perplexities. Take the exponential last, after averaging over all tokens.",
            lambda logprobs, mask: _of_rows(logprobs, mask).exp().mean(),
        ),
        Mistake(
            "sign",
            "The minus is missing. Without it the result is the (geometric) mean probability of a token, which is "
            "below 1.",
            lambda logprobs, mask: 1 / _perplexity(logprobs, mask),
        ),
        Mistake(
            "sum",
            "The sum is not divided by the number of tokens, so a long text gets a high perplexity only because it "
            "is long.",
            lambda logprobs, mask: (-(logprobs * mask).sum()).exp(),
        ),
        Mistake(
            "no_exponential",
            "This is the mean loss in nats. The perplexity is e to the power of the mean loss.",
            lambda logprobs, mask: _perplexity(logprobs, mask).log(),
        ),
    ),
)

EXERCISES = (NEXT_LOGPROBS, PERPLEXITY)
