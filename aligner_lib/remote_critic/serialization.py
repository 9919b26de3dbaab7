"""Records as named arrays, for sending between the two jobs. The arrays are padded, and checked on arrival.

B samples, L padded length, S longest sample
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aligner_lib.datasets.batches import TokenBatch
from aligner_lib.errors import UserError
from aligner_lib.rollouts.records import CriticExperience

Arrays = dict[str, np.ndarray]

_TEXT = (bytes, (1,))
_TOKENS = {"tokens": (np.int64, (-1,)), "lengths": (np.int64, (1,))}
_EXPERIENCE = {
    "tokens": (np.int64, (-1, -1)),
    "lengths": (np.int64, (-1,)),
    "response_mask": (np.bool_, (-1, -1)),
    "values": (np.float32, (-1, -1)),
    "returns": (np.float32, (-1, -1)),
}


@dataclass(frozen=True)
class Signature:
    """The arrays of an endpoint: name → (dtype, shape). batched: requests of the same shape may be answered together."""

    inputs: dict
    outputs: dict
    batched: bool = False


SIGNATURES = {
    "values": Signature(_TOKENS, {"values": (np.float32, (-1,)), "problem": _TEXT}, batched=True),
    "rewards": Signature(_TOKENS, {"rewards": (np.float32, (1,)), "problem": _TEXT}, batched=True),
    "train": Signature(_EXPERIENCE, {"answer": _TEXT}),
    "checkpoint": Signature({"request": _TEXT}, {"answer": _TEXT}),
    "status": Signature({"request": _TEXT}, {"answer": _TEXT}),
}


class WireError(UserError):
    """Data that must not be sent or used. The message names the sample."""


# ---- lengths --------------------------------------------------------------------------------------------------------


def padded_length(longest: int, pad_to: int | None = None) -> int:
    """The next of a few lengths (powers of 2 and the middles between them), so that many requests have the same shape.

    pad_to: the smallest length. Longer samples use the same few lengths.
    """
    if pad_to is not None and longest <= pad_to:
        return pad_to
    longest = max(longest, 16)
    power = 1 << (longest - 1).bit_length()
    return power * 3 // 4 if longest <= power * 3 // 4 else power


# ---- tokens in, scores out ------------------------------------------------------------------------------------------


def pack_tokens(batch: TokenBatch, length: int) -> Arrays:
    """tokens int64 [B, L], lengths int64 [B, 1]."""
    tokens = np.zeros((batch.size, length), np.int64)
    tokens[:, : batch.tokens.shape[1]] = batch.tokens.cpu().numpy()
    return {"tokens": tokens, "lengths": batch.lengths.cpu().numpy()[:, None].copy()}


def unpack_tokens(arrays: Arrays, vocab_size: int) -> TokenBatch:
    """The batch of arrays from `pack_tokens`. Raises WireError for impossible lengths and token ids."""
    tokens, lengths = arrays["tokens"], arrays["lengths"].reshape(-1)
    _check_tokens(tokens, lengths, vocab_size)
    return TokenBatch(tokens=torch.from_numpy(tokens.copy()), lengths=torch.from_numpy(lengths.copy()))


def pack_scores(kind: str, scores: Tensor, length: int) -> Arrays:
    """`values` float32 [B, S-1] as [B, L], or `rewards` float32 [B] as [B, 1]; problem: empty."""
    return _scores(kind, scores.reshape(len(scores), -1).float().numpy(), length, "")


def refused_scores(kind: str, arrays: Arrays, problem: str) -> Arrays:
    """The answer to a refused request for scores."""
    size, length = arrays["tokens"].shape
    return _scores(kind, np.zeros((size, 0), np.float32), length, problem)


def _scores(kind: str, rows: np.ndarray, length: int, problem: str) -> Arrays:
    padded = np.zeros((len(rows), length if kind == "values" else 1), np.float32)
    padded[:, : rows.shape[1]] = rows
    return {kind: padded, "problem": np.full((len(rows), 1), problem.encode(), dtype=object)}


def unpack_scores(kind: str, arrays: Arrays, batch: TokenBatch) -> Tensor:
    """A batch's values, float32 [B, S-1], or rewards, float32 [B]. Raises WireError, which names the sample."""
    scores, width = arrays[kind], batch.tokens.shape[1] - 1
    if len(scores) != batch.size or scores.ndim != 2:
        raise WireError(f"{kind} have shape {list(scores.shape)}, but {batch.size} samples were sent")
    if kind == "values" and scores.shape[1] < width:
        raise WireError(f"values have {scores.shape[1]} columns, but the longest sample needs {width}")
    for row, length in enumerate(batch.lengths.tolist()):
        bad = np.flatnonzero(~np.isfinite(scores[row, : length - 1 if kind == "values" else 1]))
        if len(bad) and kind == "values":
            raise WireError(
                f"the value of {_sample(row, batch)} at token {bad[0]} is {scores[row, bad[0]]}: "
                "lower the critic's model.optim.lr, and start both jobs from their last checkpoints"
            )
        if len(bad):
            raise WireError(f"the reward of {_sample(row, batch)} is {scores[row, 0]}")
    own = scores[:, :width] if kind == "values" else scores[:, 0]
    return torch.from_numpy(own.copy())


# ---- experience -----------------------------------------------------------------------------------------------------


def pack_experience(experience: CriticExperience) -> Arrays:
    return {
        name: getattr(experience, name).cpu().numpy().astype(dtype)
        for name, (dtype, _) in _EXPERIENCE.items()
    }


def unpack_experience(arrays: Arrays, vocab_size: int) -> CriticExperience:
    """The record of arrays from `pack_experience`. Raises WireError for shapes that differ, impossible token ids, and NaN."""
    tokens, lengths = arrays["tokens"], arrays["lengths"]
    _check_tokens(tokens, lengths, vocab_size)
    for name, (_, shape) in _EXPERIENCE.items():
        expected = [len(tokens), tokens.shape[1] - (name != "tokens")][: len(shape)]
        if list(arrays[name].shape) != expected:
            raise WireError(f"{name} has shape {list(arrays[name].shape)}, but tokens require {expected}")
    for name in ("values", "returns"):
        rows, places = np.nonzero(~np.isfinite(arrays[name]) & arrays["response_mask"])
        if len(rows):
            value = arrays[name][rows[0], places[0]]
            raise WireError(f"{name} of sample {rows[0]} of {len(tokens)} at token {places[0]} is {value}")
    return CriticExperience(**{name: torch.from_numpy(arrays[name].copy()) for name in _EXPERIENCE})


def _check_tokens(tokens: np.ndarray, lengths: np.ndarray, vocab_size: int) -> None:
    size, width = tokens.shape
    if lengths.shape != (size,):
        raise WireError(f"lengths have shape {list(lengths.shape)}, but there are {size} samples")
    for row, length in enumerate(lengths.tolist()):
        if not 1 <= length <= width:
            raise WireError(f"sample {row} of {size} has length {length}, but its row has {width} tokens")
    rows, places = np.nonzero((tokens < 0) | (tokens >= vocab_size))
    if len(rows):
        raise WireError(
            f"token {places[0]} of sample {rows[0]} of {size} is {tokens[rows[0], places[0]]}, but the model knows only "
            f"0 to {vocab_size - 1}: do actor and critic have the same tokenizer?"
        )


def _sample(row: int, batch: TokenBatch) -> str:
    return f"sample {row} of {batch.size} (tokens {batch.tokens[row, :6].tolist()}…)"


# ---- small messages -------------------------------------------------------------------------------------------------


def text(value: object, name: str = "answer") -> Arrays:
    """Any JSON value as a single array."""
    return {name: np.array([json.dumps(value).encode()], dtype=object)}


def value_of(arrays: Arrays, name: str = "answer") -> dict:
    return json.loads(arrays[name].reshape(-1)[0])
