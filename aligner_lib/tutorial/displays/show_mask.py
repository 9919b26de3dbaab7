"""The loss mask of a sample, token by token: in colour in a notebook, between brackets on a terminal.

The mask comes from the sample (`shown` in aligner_lib.datasets.samples), so the display has the same mask as the trainers.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aligner_lib.datasets.samples import SampleRow
    from aligner_lib.datasets.tokenizer import Tokenizer

# learnt tokens have a background and an underline, so that readers who see no colours can find them, too
STYLE = """<style>
.lab-mask {font: 13px/1.9 var(--jp-ui-font-family, system-ui, sans-serif)}
.lab-mask p {white-space: pre-wrap; overflow-wrap: anywhere; margin: 2px 0 12px}
.lab-mask b {font-weight: 600}
.lab-mask span {border-right: 1px solid #8883; padding: 1px 0 2px}
.lab-mask .lab-learnt {background: rgba(0, 114, 178, .22); border-bottom: 2px solid #0072B2}
</style>"""
NEWLINE = "↵"


class MaskedSample(Protocol):
    def shown(self) -> list[SampleRow]: ...


@dataclass(frozen=True)
class Mask:
    """The rows of a sample. A row is a name and a list of tokens: (text, token id, whether the token is learnt)."""

    rows: tuple[tuple[str, tuple[tuple[str, int, bool], ...]], ...]

    def _repr_html_(self) -> str:
        parts = []
        for name, tokens in self.rows:
            spans = "".join(map(_span, tokens))
            parts.append(f"<b>{escape(name)}</b> · {escape(_count(tokens))}<p>{spans}</p>")
        return f'{STYLE}<div class="lab-mask mathjax_ignore tex2jax_ignore">{"".join(parts)}</div>'

    def __repr__(self) -> str:
        return self.text()

    def text(self, ends: int | None = None) -> str:
        """The mask for a terminal. ends: the tokens to show at each end of a long span; None: show all."""
        return "\n\n".join(
            f"{name}: {_count(tokens)}\n{_bracketed(tokens, ends)}" for name, tokens in self.rows
        )


def show_mask(sample: MaskedSample, tokenizer: Tokenizer) -> Mask:
    """The loss mask of an SFT sample, a preference pair or a prompt.

    A prompt has no learnt tokens, because training learns from the response, which does not exist yet. In a reward model's
    pair, the last token of each text is marked, because the reward is read there. tokenizer: of the sample.
    """
    return Mask(
        tuple(
            (row.name, tuple(zip(tokenizer.tokens(row.tokens), row.tokens, row.learnt)))
            for row in sample.shown()
        )
    )


def _count(tokens: tuple[tuple[str, int, bool], ...]) -> str:
    return f"{sum(learnt for *_, learnt in tokens)} of {len(tokens)} tokens are learnt"


def _span(token: tuple[str, int, bool]) -> str:
    text, token_id, learnt = token
    shown = escape(text).replace("\n", f"{NEWLINE}\n")
    mark = ' class="lab-learnt"' if learnt else ""
    return f'<span{mark} title="token {token_id}, {"learnt" if learnt else "read"}">{shown}</span>'


def _bracketed(tokens: tuple[tuple[str, int, bool], ...], ends: int | None) -> str:
    runs = groupby(tokens, key=lambda token: token[2])
    texts = ((learnt, _shortened([text for text, *_ in run], ends)) for learnt, run in runs)
    return "".join(f"⟦{text}⟧" if learnt else text for learnt, text in texts)


def _shortened(texts: list[str], ends: int | None) -> str:
    if ends is None or len(texts) <= 2 * ends:
        return "".join(texts)
    return f"{''.join(texts[:ends])} … {len(texts) - 2 * ends:,} tokens … {''.join(texts[-ends:])}"
