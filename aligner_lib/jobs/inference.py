"""Models in the notebook's own process, for `widgets.Chat` and `widgets.Pairs`. For a model on a server see `served`.

answer = answering("runs/sft")     # answer("How are you?") is the policy's text
score = scoring("runs/rm")         # score("How are you?", "Well.") is the reward
logprobs = log_probability("runs/sft")  # logprobs("How are you?", "Well.") are the log-probabilities of the answer's tokens
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.datasets.chat_template import (
    ANSWER,
    encode_prompt,
    recorded_date,
    template_in_use,
    use_template,
    with_response,
)
from aligner_lib.datasets.load.turns import after_prompt
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.jobs.drawn_answer import DrawnAnswer
from aligner_lib.kinds.inputs import check_head
from aligner_lib.megatron import cpu, parallel
from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.generate import Sampling, generate
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.megatron.model import Numerics
from aligner_lib.megatron.precision import computed_precision
from aligner_lib.models import resolve
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.rollouts.critic import RewardModel
from aligner_lib.run_folder.reader import RunFolder
from data.conversations import is_templated


def as_prompt(text: str) -> str:
    """Format a question as the first turn of a conversation. A conversation that ends before an answer, and a prompt that a
    chat template has written, stay unchanged."""
    return text if text.endswith(ANSWER) or is_templated(text) else f"User: {text}\n\n{ANSWER}"


def tokenizer_of(folder: Path) -> Tokenizer:
    """Load a model folder's tokenizer, with the conversation template that the model was trained with.

    If the folder has no record of a template, the model uses its tokenizer's own template, if there is one, else plain texts.
    """
    tokenizer = Tokenizer(folder)
    tokenizer.date = recorded_date(folder)  # None if no date is recorded; the template then uses today's date
    return use_template(tokenizer, template_in_use(tokenizer))


ANSWERED_TOGETHER = 32  # the rows of an Answerer's generation


@dataclass(frozen=True)
class Answerer:
    """A policy that answers a question or continues a conversation. See `answering`."""

    tokenizer: Tokenizer
    engine: Engine
    sampling: Sampling
    seed: int
    """Of each answer's random numbers."""

    def __call__(self, text: str) -> DrawnAnswer:
        return self.of_all([text])[0]

    def of_all(self, texts: Sequence[str]) -> list[DrawnAnswer]:
        """Return the answers to many texts, in order. The model generates up to ANSWERED_TOGETHER answers at the same time.

        Each answer's random numbers are those of a call with its text alone. An answer can still differ by rounding. Raises
        UserError when a text and its answer may be longer than the model's positions.
        """
        prompts = [encode_prompt(self.tokenizer, as_prompt(text)) for text in texts]
        for text, prompt in zip(texts, prompts):
            _check_positions(self.engine, text, len(prompt) + self.sampling.max_length)
        # keep special tokens, because end strings are searched in this text, as in a rollout
        decode = partial(self.tokenizer.decode, special_tokens=True, continues=True)
        seeds, stop_ids = [self.seed] * len(prompts), self.tokenizer.stop_ids
        rows = min(len(prompts), ANSWERED_TOGETHER)
        responses = generate(
            self.engine.module, prompts, seeds, self.sampling, stop_ids=stop_ids, rows=rows, decode=decode
        )
        return [
            DrawnAnswer(self.tokenizer.decode(r.tokens).strip(), r.finished, r.tokens, self.tokenizer.hash)
            for r in responses
        ]


def answering(model: str | Path, max_length: int = 64, seed: int = 0, **sampling) -> Answerer:
    """Return a function that answers a question or continues a conversation. The answer is a DrawnAnswer.

    Equal calls give equal answers. `answering(model).of_all` answers many texts at once. model: a model folder, checkpoint or
    run folder; a downloaded model answers in the faster precision of this machine, as in a job of the laptop profile.
    max_length: the answer's maximal length in tokens. sampling: fields of Sampling, such as temperature. Raises ValueError for
    invalid sampling, UserError for a reward model.
    """
    start = resolve_with_head(model, "lm")
    sampled = Sampling(max_length=max_length, **sampling)
    return Answerer(tokenizer_of(start), load_in_notebook(start, without_run="auto"), sampled, seed)


SCORED_TOGETHER = 16  # answers in a micro batch of `Scorer`
SCORED_BEFORE_A_LINE = 128  # on a laptop, a cell with more answers waits for longer than ten seconds


@dataclass(frozen=True)
class Scorer:
    """A reward model that scores the answer to a question or a conversation. See `scoring`."""

    tokenizer: Tokenizer
    judge: RewardModel

    def __call__(self, text: str, answer: str) -> float:
        return self.of_all([(text, answer)])[0]

    def of_all(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the rewards of many answers, in the order of `pairs`. A pair is a text and its answer.

        If several answers to the same text are scored together, the model computes the text only once. Many answers print a
        line for each part that is scored. Raises UserError for a pair that is longer than the model's positions.
        """
        rows = [scored_tokens(self.tokenizer, as_prompt(text), answer) for text, answer in pairs]
        for (text, _), row in zip(pairs, rows):
            _check_positions(self.judge.engine, text, len(row))
        rewards = []
        for first in range(0, len(rows), SCORED_BEFORE_A_LINE):
            part = TokenBatch(*pad_rows(rows[first : first + SCORED_BEFORE_A_LINE], self.tokenizer.pad_id))
            rewards += self.judge.score(part).result().tolist()
            if len(rows) > SCORED_BEFORE_A_LINE:
                print(f"{len(rewards)} of {len(rows)} answers are scored", flush=True)
        return rewards


def scoring(reward_model: str | Path) -> Scorer:
    """Return a function that computes the reward of an answer to a question or a conversation, standardized as in PPO.

    An answer from `answering` is scored with exactly the sampled tokens, so a truncated answer has no stop token, as in a
    rollout. A text written by a person counts as complete and gets a stop token. `scoring(model).of_all` scores many answers at
    once. Raises UserError for a language model.
    """
    start = resolve_with_head(reward_model, "scalar")
    return Scorer(
        tokenizer_of(start),
        RewardModel(load_in_notebook(start), RewardScale.load(start), micro_batch_size=SCORED_TOGETHER),
    )


def scored_tokens(tokenizer: Tokenizer, prompt: str, answer: str) -> list[int]:
    """The token ids that a reward model reads for a prompt and its answer. See `scoring`."""
    drawn = isinstance(answer, DrawnAnswer)
    if drawn and answer.tokens and answer.tokenizer == tokenizer.hash:
        return [*encode_prompt(tokenizer, prompt), *answer.tokens]
    row, begins = row_of(tokenizer, prompt, answer)
    # truncate before the stop token, because a template may add text after it
    if drawn and not answer.finished:
        return row[: next(at for at in range(begins, len(row)) if row[at] in tokenizer.stop_ids)]
    return row


def row_of(tokenizer: Tokenizer, prompt: str, answer: str) -> tuple[list[int], int]:
    """Token ids of a prompt with an answer and its stop token, and the index of the answer's first token. Raises UserError when
    the answer contains a stop token."""
    try:
        return with_response(tokenizer, prompt, after_prompt(prompt, answer))
    except ValueError as error:
        raise UserError(f"{error}. Remove the token from the answer {answer[:80]!r}") from None


def log_probability(policy: str | Path) -> Callable[[str, str], list[tuple[str, float]]]:
    """Return a function that computes the log-probabilities of an answer's tokens under the policy, in nats.

    The function takes a question or a conversation, and an answer. The result has each token's text and log-probability,
    including the stop token. A downloaded model computes in float32. Raises UserError for a reward model, and the function for
    texts that are longer than the model's positions.
    """
    start = resolve_with_head(policy, "lm")
    tokenizer, engine = tokenizer_of(start), load_in_notebook(start)

    def logprobs(text: str, answer: str) -> list[tuple[str, float]]:
        row, begins = row_of(tokenizer, as_prompt(text), answer)
        _check_positions(engine, text, len(row))
        batch = TokenBatch(*pad_rows([row], tokenizer.pad_id))
        mask = (torch.arange(len(row) - 1) >= begins - 1)[None]
        (values,) = engine.map(
            [batch], lambda model, batch, hidden: selected_logprobs(model, batch.tokens, hidden, mask)[0]
        )
        return list(zip(tokenizer.tokens(row[begins:]), values.tolist()))

    return logprobs


def _check_positions(engine: Engine, text: str, tokens: int) -> None:
    """Raise UserError if a text and its answer together have more tokens than the model has positions."""
    positions = engine.module.architecture.max_position_embeddings
    if tokens > positions:
        raise UserError(
            f"{text[:80]!r} and its answer have up to {tokens} tokens, beyond the {positions} positions of the model: "
            "shorten the text or the answer (a drawn answer by max_length)"
        )


def resolve_with_head(model: str | Path, head: str) -> Path:
    folder = resolve(model)
    check_head(folder, head, str(model))
    return folder


def load_engine(start: Path, without_run: str = "32") -> Engine:
    """Load a model without an optimizer.

    A run's model computes in the run's precision, if this machine supports it in hardware. without_run: the precision of other
    models, as in trainer.precision.
    """
    parallel.initialize()
    precision = computed_precision(_precision_of(start) or without_run)
    engine = Engine(Architecture.load(start), Numerics(bf16=precision == "bf16"))
    engine.load(start)
    return engine


def load_in_notebook(start: Path, without_run: str = "32") -> Engine:
    """Load a model as `load_engine` does, with a single thread for narrow models: a notebook asks for a few answers only."""
    cpu.fit_threads(Architecture.load(start).hidden_size)
    return load_engine(start, without_run)


def _precision_of(start: Path) -> str | None:
    """The precision of the run that trained a model; None without a run."""
    runs = [RunFolder(folder) for folder in (start, *start.parents[:2]) if (folder / "run.json").exists()]
    return runs[0].info.get("precision", "32") if runs else None
