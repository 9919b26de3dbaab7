"""A drawing of the policies' gains: a point and a 95 % interval for each policy, beside a line at 0."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

from aligner_lib.tutorial.comparison.conclusion import MEASURES
from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import Estimate

WIDTH, ROW, LEFT, RIGHT, TOP, BOTTOM = 270, 26, 84, 12, 24, 22  # CSS pixels of a panel and its margins
STYLE = """<style>
.lab-gains {display: flex; flex-wrap: wrap; gap: 12px 20px; max-width: 838px; margin: 0; font: 13px/1.4 var(--jp-ui-font-family, system-ui, sans-serif)}
.lab-gains svg {width: 270px; max-width: 100%}
.lab-gains text {font-size: 12px; fill: currentColor}
.lab-gains .zero {stroke: currentColor; opacity: .5; stroke-dasharray: 3 3}
.lab-gains .shown {stroke: #0072b2; fill: #0072b2}
.lab-gains .open {stroke: #8a8a8a; fill: #8a8a8a}
</style>"""


@dataclass(frozen=True)
class GainsPicture:
    """A panel for each measure. An interval that excludes 0 is blue, and any other interval is grey."""

    table: PolicyComparison
    against: str
    """The policy that the others are compared with."""

    def _repr_html_(self) -> str:
        panels = "".join(self._panel(measure, title) for measure, title in MEASURES.items())
        return f'{STYLE}<figure class="lab-gains">{panels}</figure>'

    def __repr__(self) -> str:
        return "\n".join(
            f"{title}: " + ", ".join(f"{name} {gain}" for name, gain in self.gains(measure).items())
            for measure, title in MEASURES.items()
            if self.gains(measure)
        )

    def gains(self, measure: str) -> dict[str, Estimate]:
        """By the policy's name: its gain, if the measure's value and interval are identifiable."""
        return {
            name: figures[measure]
            for name, figures in self.table.figures.items()
            if measure in figures and not any(map(math.isnan, figures[measure]))
        }

    def _panel(self, measure: str, title: str) -> str:
        gains = self.gains(measure)
        if not gains:
            return ""
        low, high = (
            min(0.0, *(gain.low for gain in gains.values())),
            max(0.0, *(gain.high for gain in gains.values())),
        )
        height = TOP + ROW * len(gains) + BOTTOM

        def at(value: float) -> float:
            return LEFT + (value - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT)

        rows = "".join(
            _row(name, gain, TOP + ROW * (place + 0.5), at)
            for place, (name, gain) in enumerate(gains.items())
        )
        zero = f'<path class="zero" d="M{at(0):.1f} {TOP}V{height - BOTTOM}"/>'
        axis = f'<text x="{at(0):.1f}" y="{height - 6}" text-anchor="middle">0</text>'
        words = "; ".join(f"{name} {gain}" for name, gain in gains.items())
        label = html.escape(f"gain over {self.against} in {title}: {words}")
        return (
            f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
            f'<text x="0" y="14">{html.escape(f"{title}, {self.against} = 0")}</text>{zero}{rows}{axis}</svg>'
        )


def _row(name: str, gain: Estimate, y: float, at) -> str:
    shown = "shown" if gain.low > 0 or gain.high < 0 else "open"
    return (
        f'<text x="0" y="{y + 4:.0f}">{html.escape(name)}</text>'
        f'<path class="{shown}" stroke-width="2" d="M{at(gain.low):.1f} {y}H{at(gain.high):.1f}"/>'
        f'<circle class="{shown}" cx="{at(gain.value):.1f}" cy="{y}" r="4.5"/>'
        f'<text x="{at(gain.value):.1f}" y="{y - 7:.0f}" text-anchor="middle">{gain.value:+.2f}</text>'
    )
