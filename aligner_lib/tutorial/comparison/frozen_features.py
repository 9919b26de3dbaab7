"""A linear reward head on the frozen hidden states of a language model.

The head's accuracy shows how much the model knows about good answers before any reward-model training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

RIDGE = 1e-2  # regularisation, because there are more features than pairs
TEXTS_AT_ONCE = 16
SIDES = ("chosen", "rejected")


def hidden_states(model: Path, pairs: Sequence[dict]) -> list[tuple[Tensor, Tensor]]:
    """The last layer's hidden states of the chosen texts, and of the rejected texts.

    Returns (states, lengths) for either: float32 [B, S, H] and int64 [B]. model: a model folder, checkpoint or run folder of a
    language model. pairs: dicts {prompt, chosen, rejected}.
    """
    import torch

    from aligner_lib.datasets.batches import TokenBatch, alike_grouped, pad_rows
    from aligner_lib.jobs.inference import (
        as_prompt,
        load_in_notebook,
        resolve_with_head,
        row_of,
        tokenizer_of,
    )

    start = resolve_with_head(model, "lm")
    tokenizer, engine = tokenizer_of(start), load_in_notebook(start)
    texts = [(as_prompt(pair["prompt"]), pair[side]) for side in SIDES for pair in pairs]
    batch = TokenBatch(*pad_rows([row_of(tokenizer, *text)[0] for text in texts], tokenizer.pad_id))
    # both answers to a prompt together, so the prompt is computed once
    groups = alike_grouped(batch, TEXTS_AT_ONCE)
    parts = engine.map(
        [batch.rows(group) for group in groups], lambda model, batch, hidden: hidden.transpose(0, 1)
    )
    states = torch.zeros(*batch.tokens.shape, parts[0].shape[-1])
    for group, part in zip(groups, parts):
        states[group, : part.shape[1]] = part.float().cpu()
    print(f"the model has read both answers of {len(pairs)} pairs", flush=True)
    return [*zip(states.chunk(len(SIDES)), batch.lengths.chunk(len(SIDES)))]


def fitted_accuracy(train: Sequence[Tensor], test: Sequence[Tensor]) -> float:
    """The accuracy on test pairs of a linear head that is fitted to the training pairs.

    A test pair is right if the chosen text gets the higher reward. train, test: features of the chosen and of the rejected
    texts, float [B, H] each. The loss is the Bradley-Terry loss with L2 regularisation.
    """
    import torch

    from aligner_lib.algorithms.preference import preference_accuracy, preference_loss

    scale = train[0].std(dim=0) + 1e-6
    (good, bad), (of_good, of_bad) = ([side / scale for side in sides] for sides in (train, test))
    head = torch.zeros(good.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([head], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = preference_loss(good @ head, bad @ head).mean() + RIDGE * (head**2).sum()
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        return preference_accuracy(of_good @ head, of_bad @ head).mean().item()
