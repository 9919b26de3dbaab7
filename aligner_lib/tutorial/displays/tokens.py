"""Responses with a colour for each token. The table is static, so it stays in a saved notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from aligner_lib.run_folder.turns import last_turn

STRONGEST = 0.45  # the highest opacity of a background colour, so that the text stays readable
BLUE, ORANGE = "0, 114, 178", "213, 94, 0"  # of Okabe and Ito's palette, as in the widgets
STYLE = """<style>
.lab-tokens {font: 13px/1.5 var(--jp-ui-font-family, system-ui, sans-serif); font-variant-numeric: tabular-nums}
.lab-tokens table {border-collapse: collapse; margin: 2px 0 12px}
.lab-tokens caption {text-align: left; white-space: nowrap; padding: 2px 8px; font-weight: 600}
.lab-tokens th, .lab-tokens td {text-align: right; vertical-align: top; padding: 2px 8px; font-weight: 400; border-bottom: 1px solid #8883}
.lab-tokens .lab-said {text-align: left; white-space: pre-wrap; overflow-wrap: anywhere}
.lab-tokens i {font-style: normal; padding: 0 10px}
</style>"""
MEASURES = {"token_advantage": "advantage", "token_kl": "KL to the reference in nats"}


class TokenTable:
    """Training responses of a run, each token in the colour of its advantage or its KL.

    records: of rollouts.jsonl, split `train`. measure: a key of MEASURES. Blue is above 0 and orange below 0.
    """

    def __init__(self, records: Sequence[dict], measure: str = "token_advantage"):
        self.records, self.measure = list(records), measure

    def _repr_html_(self) -> str:
        most = strongest(value for record in self.records for value in record[self.measure])
        rows = "".join(self._row(record, most) for record in self.records)
        head = '<tr><th scope="col">step</th><th scope="col">reward</th><th scope="col" class="lab-said">prompt and response</th></tr>'
        caption = f"<caption>Colour: the {MEASURES[self.measure]} of each token</caption>"
        return f'{STYLE}<div class="lab-tokens mathjax_ignore tex2jax_ignore">{scale(most)}<table>{caption}{head}{rows}</table></div>'

    def __repr__(self) -> str:
        return "\n".join(
            f"step {record['step']}, reward {record['reward']:.2f}: "
            + " ".join(
                f"{token}({value:+.2f})" for token, value in zip(record["tokens"], record[self.measure])
            )
            for record in self.records
        )

    def _row(self, record: dict, most: float) -> str:
        prompt = escape(last_turn(record["prompt"]))
        answer = "".join(
            coloured(token, value, most) for token, value in zip(record["tokens"], record[self.measure])
        )
        return (
            f"<tr><td>{record['step']}</td><td>{record['reward']:.2f}</td>"
            f'<td class="lab-said">{prompt}\n{answer}</td></tr>'
        )


def coloured(text: str, value: float, most: float, tag: str = "span") -> str:
    """A token as HTML: blue above 0, orange below 0, full colour from |value| = most."""
    strength = STRONGEST * min(1.0, abs(value) / most)
    colour = f"rgba({ORANGE if value < 0 else BLUE}, {strength:.3f})"
    return f'<{tag} title="{value:.3g}" style="background: {colour}">{escape(text)}</{tag}>'


def scale(most: float) -> str:
    """A line with the colours of five values from −most to most."""
    steps = (-most, -most / 2, 0.0, most / 2, most)
    return f"<p>{''.join(coloured(f'{value:.2g}', value, most, tag='i') for value in steps)}</p>"


def strongest(values: Iterable[float]) -> float:
    """The value from which tokens have the full colour: the 98th percentile of the absolute values, never 0."""
    sizes = sorted(map(abs, values))
    return (sizes[int(0.98 * (len(sizes) - 1))] or sizes[-1] or 1.0) if sizes else 1.0
