"""Generation with the policy's own module."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.generate import ContinuousBatch


class MegatronGenerator:
    """A `Generator` that uses the weights in training."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer):
        self.engine = engine
        self.tokenizer = tokenizer

    def batch(self, rows: int) -> ContinuousBatch:
        """See Generator."""
        return ContinuousBatch(
            self.engine.module,
            rows,
            stop_ids=self.tokenizer.stop_ids,
            # an end string may be a special token, or begin with a space
            decode=partial(self.tokenizer.decode, special_tokens=True, continues=True),
        )

    def refresh(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Does nothing: the generator uses the policy's own weights."""
