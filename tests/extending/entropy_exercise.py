"""An exercise: its text, its reference, its inputs and the mistakes that `check` knows."""

from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake

torch = ImportedLate("torch")


def _entropy(logits):
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


ENTROPY = Exercise(
    name="entropy",
    notebook="20",
    title="the entropy of each next-token distribution",
    minutes=5,
    difficulty=1,
    hint="Entropy is the mean of $-\\log p$ over the distribution itself.",
    reference=_entropy,
    inputs=lambda draw: {"logits": draw.normal(draw.one_of((2, 3)), draw.one_of((5, 7)), scale=2.0)},
    outputs=("entropy",),
    gradients=("logits",),
    mistakes=(
        Mistake("sign", "the minus is missing: entropy is never negative.", lambda logits: -_entropy(logits)),
        Mistake(
            "base_two",
            "the result is in bits. Use the natural logarithm.",
            lambda logits: _entropy(logits) / 0.6931471805599453,
        ),
        Mistake(
            "unweighted",
            "every token counts the same. Weight the log-probabilities by the probabilities.",
            lambda logits: -logits.log_softmax(-1).mean(-1),
        ),
        Mistake(
            "over_rows",
            "the softmax runs over the rows (dimension 0). The vocabulary is the last dimension.",
            lambda logits: -(logits.softmax(0) * logits.log_softmax(0)).sum(-1),
        ),
        Mistake(
            "averaged",
            "the rows are averaged. Return the entropy of each row.",
            lambda logits: _entropy(logits).mean(),
        ),
    ),
)
EXERCISES = (ENTROPY,)
