"""The outputs of a model's frozen layers, kept while several passes read the same rows of tokens.

A critic reads a rollout to compute its values, and reads it again in each training epoch. The reward model from which the
critic started reads the same rollout. The validations of a run all read the same samples. The frozen layers are the same in
all of these passes, so the outputs of one pass serve all.

B rows, S tokens in the longest row, H hidden
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

MOST_BYTES = 2 * 1024**3
"""The limit of kept outputs. Rows beyond the limit are computed again."""


class FrozenOutputs:
    """The outputs of a decoder's first `layers` layers, stored by the tokens of a row."""

    def __init__(self, decoder: nn.Module, layers: int):
        self._decoder, self._layers = decoder, layers
        self._rows: dict[bytes, Tensor] = {}
        self._bytes = 0
        self._last_frozen: Tensor | None = None
        decoder.layers[layers - 1].register_forward_hook(self._note)
        self.keeps = False
        """Whether passes keep the outputs that they compute. Kept outputs are used in any case."""

    def forget(self) -> None:
        """Drop all kept outputs."""
        self._rows.clear()
        self._bytes = 0

    def of(self, tokens: Tensor, lengths: Tensor) -> Tensor | None:
        """The kept outputs of the given rows, [B, S, H], 0 at padding; None unless the outputs of every row are kept.

        tokens: int64 [B, S]; lengths: int64 [B].
        """
        rows = [self._rows.get(key) for key in _keys(tokens, lengths)] if self._rows else [None]
        if any(row is None for row in rows):
            return None
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)

    @contextmanager
    def in_place_of_layers(self) -> Iterator[None]:
        """A context manager: inside, the decoder skips its frozen layers and takes their outputs as input."""
        layers = self._decoder.layers
        self._decoder.layers = layers[self._layers :]
        try:
            yield
        finally:
            self._decoder.layers = layers

    def keep(self, tokens: Tensor, lengths: Tensor, restored) -> None:
        """Keep the outputs of the last pass, if `keeps`. restored: a function from [T, H] to [B, S, H]."""
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
