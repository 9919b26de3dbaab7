"""What a model's frozen layers put out for rows of tokens, kept while several passes read the same rows.

A critic reads a rollout for its values and again in each of its epochs, and the reward model that it started from reads it, too. The
layers that the critic does not train are the same in all of these passes, so one of them is enough.

B rows, S tokens in the longest, H hidden
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

MOST_BYTES = 2 * 1024**3
"""Of kept outputs. Rows beyond it are computed again."""


class FrozenOutputs:
    """The outputs of the first `layers` layers of a decoder, by the tokens of a row."""

    def __init__(self, decoder: nn.Module, layers: int):
        self._decoder, self._layers = decoder, layers
        self._rows: dict[bytes, Tensor] = {}
        self._bytes = 0
        self._last_frozen: Tensor | None = None
        decoder.layers[layers - 1].register_forward_hook(self._note)
        self.keeps = False
        """Whether passes keep what they compute; they use what is kept in any case."""

    def forget(self) -> None:
        """Drop all kept outputs."""
        self._rows.clear()
        self._bytes = 0

    def of(self, tokens: Tensor, lengths: Tensor) -> Tensor | None:
        """The outputs for some rows, [B, S, H], 0 at padding; None unless every row's are kept.

        tokens: int64 [B, S]; lengths: int64 [B].
        """
        rows = [self._rows.get(key) for key in _keys(tokens, lengths)] if self._rows else [None]
        if any(row is None for row in rows):
            return None
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)

    @contextmanager
    def in_place_of_layers(self) -> Iterator[None]:
        """The decoder without its frozen layers, whose outputs are then its input."""
        layers = self._decoder.layers
        self._decoder.layers = layers[self._layers :]
        try:
            yield
        finally:
            self._decoder.layers = layers

    def keep(self, tokens: Tensor, lengths: Tensor, restored) -> None:
        """Keep the outputs of the last pass, if `keeps`. restored: gives [T, H] the shape [B, S, H]."""
        hidden, self._last_frozen = self._last_frozen, None
        if not self.keeps or hidden is None:
            return
        for key, length, row in zip(_keys(tokens, lengths), lengths.tolist(), restored(hidden[:, 0])):
            size = length * row.shape[-1] * row.element_size()
            if key not in self._rows and self._bytes + size <= MOST_BYTES:
                self._rows[key] = row[:length].clone()
                self._bytes += size

    def _note(self, layer, arguments, output) -> None:
        self._last_frozen = output[0].detach() if self.keeps else None


def _keys(tokens: Tensor, lengths: Tensor) -> list[bytes]:
    return [row[:length].cpu().numpy().tobytes() for row, length in zip(tokens, lengths.tolist())]
