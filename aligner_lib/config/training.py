"""Metrics, charts and replaceable functions that every kind of job with an optimiser has."""

from __future__ import annotations

from aligner_lib.config.kind import MetricGroup, chart, metric

TRAINING_FUNCTIONS = {"learning_rate": "aligner_lib.algorithms.schedule:learning_rate"}

TRAINING = MetricGroup(
    "Training",
    "Of every optimiser step, or over the samples so far.",
    (
        metric(
            "train/grad_norm",
            "",
            "norm of the whole gradient, before it is clipped",
            "steady, within a factor of ten",
            "above `gradient_clip_val` the update is scaled down to it",
        ),
        metric(
            "train/lr",
            "",
            "learning rate of this step",
            "warm-up, then decay",
            "`model.optim.lr`, `model.optim.sched`",
        ),
        metric(
            "train/step_time",
            "s",
            "the optimiser step. NeMo-Aligner's name for what is `timers/step_time` here; they differ by microseconds",
            "constant after the first step",
            "`micro_batch_size`",
        ),
        metric(
            "train/tokens",
            "tokens",
            "of the global batch, prompts included, padding not",
            "",
            "`global_batch_size`, `encoder_seq_length`",
        ),
        metric(
            "train/padding",
            "",
            "share of padding in the padded rows of the step's micro batches, which attention alone computes",
            "below 0.2: samples of similar length share a micro batch",
            "`model.data.packed_sequence`, `micro_batch_size`, `global_batch_size`",
        ),
        metric("train/consumed_samples", "samples", "trained on so far, repeats included"),
        metric(
            "train/epoch",
            "epochs",
            "`consumed_samples` over the size of the training set",
            "above 1: samples repeat",
            "`max_steps`, `max_epochs`",
        ),
    ),
)

TIMERS = MetricGroup(
    "Seconds",
    "Wall-clock time on the first rank. The first step is much slower than the rest: libraries set themselves up in it.",
    (
        metric("timers/step_time", "s", "the whole step, without validation and checkpoint"),
        metric("timers/validation_time", "s", "one validation"),
    ),
)

# The least heights of axes, by what is drawn: a line that moves by less moves by rounding or by a batch's noise.
LEAST_SHARE = 0.05  # accuracies and other shares: of 64 pairs the standard error of a share of 0.5 is 0.06
LEAST_REWARD = 0.01  # rewards and margins: a margin of 0.01 lowers the loss of a pair by 0.005 nats
LEAST_LOSS = 0.001  # nats of a token or a pair
LEAST_GRAD_NORM = 0.01  # of a norm that is clipped at 1 unless set otherwise
LEAST_SECONDS = 0.01  # of a step

LOSS = chart(
    "Loss",
    ("train", "train/loss"),
    ("validation", "validation/loss"),
    hint="Falls, steeply at first. Validation that rises while training falls is overfitting.",
    least=LEAST_LOSS,
)
GRAD_NORM = chart(
    "Gradient norm",
    ("train", "train/grad_norm", "train_optim/grad_norm"),
    hint="Steady; spikes are clipped.",
    least=LEAST_GRAD_NORM,
)
LEARNING_RATE = chart("Learning rate", ("train", "train/lr", "train_optim/lr"), exact=True)
STEP_TIME = chart("Step time", ("train", "train/step_time"), least=LEAST_SECONDS)
