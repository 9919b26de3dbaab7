"""Samples of a data conversion, shown token by token."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from aligner_lib.datasets.lengths import converted_samples
from aligner_lib.tutorial.displays.show_mask import Mask, show_mask

if TYPE_CHECKING:
    from aligner_lib.datasets.tokenizer import Tokenizer
    from data import Conversion

ENDS = 60  # tokens that a terminal shows at each end of a span


@dataclass(frozen=True)
class ConvertedSamples:
    """The loss masks of samples, as HTML for a notebook and, shortened, as text for a terminal."""

    masks: tuple[Mask, ...]

    def _repr_html_(self) -> str:
        return "".join(f"<p><b>{escape(title)}</b></p>{mask._repr_html_()}" for title, mask in self._titled())

    def __repr__(self) -> str:
        return "\n\n".join(f"{title}\n{mask.text(ENDS)}" for title, mask in self._titled())

    def _titled(self):
        return (
            (f"sample {number} of {len(self.masks)}", mask) for number, mask in enumerate(self.masks, start=1)
        )


def show_converted(conversion: Conversion, tokenizer: Tokenizer, count: int = 10) -> ConvertedSamples:
    """Show up to `count` random samples of a conversion, token by token, with the loss mask.

    tokenizer: of the model to train. The tokenizer's chat template formats the conversations. Raises ValueError if
    no sample is usable.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "drawn.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in conversion.drawn[:count]))
        samples, _ = converted_samples([file], conversion.to, tokenizer)
    return ConvertedSamples(tuple(show_mask(sample, tokenizer) for sample in samples))
