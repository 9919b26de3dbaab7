"""Models in the notebook's own process, for `widgets.Chat` and `widgets.Pairs`. For a model on a server see `served`.

answer = answering("runs/sft")     # answer("How are you?") is the policy's text
score = scoring("runs/rm")         # score("How are you?", "Well.") is the reward
logprobs = log_probability("runs/sft")  # logprobs("How are you?", "Well.") are its tokens' log-probabilities
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
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.jobs.drawn_answer import DrawnAnswer
from aligner_lib.kinds.inputs import check_head
from aligner_lib.megatron import parallel
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


def as_prompt(text: str) -> str:
    """A question as the first turn of a conversation; a conversation that waits for its answer stays as it is."""
    return text if text.endswith(ANSWER) else f"User: {text}\n\n{ANSWER}"


def tokenizer_of(folder: Path) -> Tokenizer:
    """A model folder's tokenizer, which writes conversations in the template that the model was trained on. Without a record,
    a downloaded model uses its tokenizer's own template, and a model that was trained here plain texts."""
    tokenizer = Tokenizer(folder)
    tokenizer.date = recorded_date(folder)  # None, which means today, when no date is recorded
    return use_template(tokenizer, template_in_use(tokenizer))


def answering(model: str | Path, max_length: int = 64, seed: int = 0, **sampling) -> Callable[[str], str]:
    """A function that returns the model's answer to a question or a conversation, as a DrawnAnswer. Equal calls, equal answers.

    model: a model folder, checkpoint or run folder. max_length: tokens of an answer. sampling: fields of Sampling,
    such as temperature. Raises ValueError for invalid sampling, UserError for a reward model.
    """
    start = resolve_with_head(model, "lm")
    tokenizer, drawn = tokenizer_of(start), Sampling(max_length=max_length, **sampling)
    module = load_engine(start).module

    def answer(text: str) -> str:
        prompt = encode_prompt(tokenizer, as_prompt(text))
        # with special tokens, because end strings are found in this text, as in a rollout
        decode = partial(tokenizer.decode, special_tokens=True, continues=True)
        (response,) = generate(module, [prompt], [seed], drawn, stop_ids=tokenizer.stop_ids, decode=decode)
        text = tokenizer.decode(response.tokens).strip()
        return DrawnAnswer(text, response.finished, response.tokens, tokenizer.hash)

    return answer


SCORED_TOGETHER = 16  # answers in a micro batch of `Scorer`


@dataclass(frozen=True)
class Scorer:
    """A reward model that scores the answer to a question or a conversation. See `scoring`."""

    tokenizer: Tokenizer
    judge: RewardModel

    def __call__(self, text: str, answer: str) -> float:
        return self.of_all([(text, answer)])[0]

    def of_all(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The rewards of many answers, in the order of `pairs`: a text and its answer each. Answers to one text, given together, cost
        the text once."""
        rows = [scored_tokens(self.tokenizer, as_prompt(text), answer) for text, answer in pairs]
        if not rows:
            return []
        return self.judge.score(TokenBatch(*pad_rows(rows, self.tokenizer.pad_id))).result().tolist()


def scoring(reward_model: str | Path) -> Scorer:
    """A function that returns the reward of an answer to a question or a conversation, standardised as in PPO.

    An answer from `answering` is scored with exactly the tokens that were drawn, so a truncated answer has no stop token, as in
    a rollout. A text that a person wrote counts as complete, and gets a stop token. `scoring(model).of_all` scores many answers
    at once. Raises UserError for a language model.
    """
    start = resolve_with_head(reward_model, "scalar")
    return Scorer(
        tokenizer_of(start),
        RewardModel(load_engine(start), RewardScale.load(start), micro_batch_size=SCORED_TOGETHER),
    )


def scored_tokens(tokenizer: Tokenizer, prompt: str, answer: str) -> list[int]:
    """The token ids that a reward model reads for a prompt and its answer. See `scoring`."""
    drawn = isinstance(answer, DrawnAnswer)
    if drawn and answer.tokens and answer.tokenizer == tokenizer.hash:
        return [*encode_prompt(tokenizer, prompt), *answer.tokens]
    row, begins = with_response(tokenizer, prompt, f" {answer}")
    # cut before the stop token, behind which a template may write more text
    if drawn and not answer.finished:
        return row[: next(at for at in range(begins, len(row)) if row[at] in tokenizer.stop_ids)]
    return row


def log_probability(policy: str | Path) -> Callable[[str, str], list[tuple[str, float]]]:
    """A function that returns the tokens of an answer to a question or a conversation, the stop token last, each with its
    log-probability under the policy in nats.

    Raises UserError for a reward model.
    """
    start = resolve_with_head(policy, "lm")
    tokenizer, engine = tokenizer_of(start), load_engine(start)

    def logprobs(text: str, answer: str) -> list[tuple[str, float]]:
        row, begins = with_response(tokenizer, as_prompt(text), f" {answer}")
        batch = TokenBatch(*pad_rows([row], tokenizer.pad_id))
        mask = (torch.arange(len(row) - 1) >= begins - 1)[None]
        (values,) = engine.map(
            [batch], lambda model, batch, hidden: selected_logprobs(model, batch.tokens, hidden, mask)[0]
        )
        return list(zip(tokenizer.tokens(row[begins:]), values.tolist()))

    return logprobs


def resolve_with_head(model: str | Path, head: str) -> Path:
    folder = resolve(model)
    check_head(folder, head, str(model))
    return folder


def load_engine(start: Path) -> Engine:
    """A model without an optimizer. A run's model computes in the run's precision, where this machine is quick in it; another one in
    float32."""
    parallel.initialize()
    engine = Engine(
        Architecture.load(start), Numerics(bf16=computed_precision(_precision_of(start)) == "bf16")
    )
    engine.load(start)
    return engine


def _precision_of(start: Path) -> str:
    runs = [RunFolder(folder) for folder in (start, *start.parents[:2]) if (folder / "run.json").exists()]
    return runs[0].info.get("precision", "32") if runs else "32"
