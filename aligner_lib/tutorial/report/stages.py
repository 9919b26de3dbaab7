"""The results of the training stages: figures before and after training and a baseline, as a drawing and as numbers."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from aligner_lib.tutorial.comparison.evaluation import PolicyEvaluation, recorded_evaluation

WIDTH, HEIGHT, MARGIN = 260, 26, 8  # size of a row's drawing in CSS pixels
GOOD = "held-out answers that are good, judged by a program"
MINUS = str.maketrans("-", "−")


@dataclass(frozen=True)
class Reached:
    """A figure of a training stage."""

    stage: str
    what: str
    """The meaning of the figure, in words."""
    after: float
    """The figure after training."""
    before: float | None = None
    baseline: float | None = None
    """The figure of a trivial judge or policy."""
    note: str = ""
    share: bool = True
    """Whether the figure is a share, displayed as a percentage."""
    scale: tuple[float, float] = (0.0, 1.0)
    """The values at the left and the right end of the drawing."""

    def shown(self, value: float) -> str:
        """The value as text: a percentage for a share, otherwise two decimal places."""
        return (f"{100 * value:.0f} %" if self.share else f"{value:.2f}").translate(MINUS)

    @property
    def figures(self) -> str:
        """`before → after`, or `after` alone without a figure before training."""
        return " → ".join(self.shown(value) for value in (self.before, self.after) if value is not None)


def reached(summary: dict) -> Iterator[Reached]:
    """A row for each available figure. summary: the content of summary.json, without unknown figures.

    If notebook 08 evaluated the policies, every figure of a policy's answers is from this evaluation. Otherwise the figures are
    from the validations during training, which have other prompts.
    """
    evaluation = recorded_evaluation(summary)
    if evaluation is None:
        yield from _of_training(summary)
    else:
        yield from _of_evaluation(summary, evaluation)


def _of_evaluation(summary: dict, evaluation: PolicyEvaluation) -> Iterator[Reached]:
    figures = evaluation.table.figures
    sft, ppo, dpo, grpo = (figures[name] for name in ("SFT", "PPO", "DPO", "GRPO"))
    yield from _losses(summary)
    yield Reached("SFT", "SFT answers that end before the length limit", sft["ended"].value)
    yield from _reward_model(summary)
    if "good" in ppo:
        yield Reached(
            "PPO", GOOD, ppo["good"].value, sft["good"].value, note=_good_note(ppo["good_gain"].low, summary)
        )
    before, after, gain = sft["reward"], ppo["reward"], ppo["gain"]
    spread = summary.get("ppo", {}).get("val_reward_sft_std")
    reach = max(2 * (spread or 0.0), abs(gain.value), 1e-9)
    interval = f" ({gain.low:+.2f} to {gain.high:+.2f}, 95 % interval)" if math.isfinite(gain.low) else ""
    note = f"gain {gain.value:+.2f}{interval}".translate(MINUS)
    what = "reward on held-out prompts, estimated by the reward model"
    scale = before.value - reach, before.value + reach
    yield Reached("PPO", what, after.value, before.value, note=note, share=False, scale=scale)
    yield _wins(ppo["win_rate"].value)
    yield from _margins(summary)
    if "good" in dpo:
        yield Reached(
            "DPO", GOOD, dpo["good"].value, sft["good"].value, note=_good_note(dpo["good_gain"].low)
        )
    if "right_sums" in grpo:
        yield _sums(grpo["right_sums"].value, figures["downloaded"]["right_sums"].value, summary)


def _of_training(summary: dict) -> Iterator[Reached]:
    ppo, grpo = summary.get("ppo", {}), summary.get("grpo", {})
    yield from _losses(summary)
    if "ended_sft" in ppo:
        yield Reached(
            "SFT", "SFT answers that end before the length limit, measured before PPO", ppo["ended_sft"]
        )
    yield from _reward_model(summary)
    if {"good_sft", "good_ppo"} <= ppo.keys():
        note = _good_note(ppo.get("good_gain_low"), summary)
        yield Reached("PPO", GOOD, ppo["good_ppo"], ppo["good_sft"], note=note)
    if {"val_reward_sft", "val_reward_ppo"} <= ppo.keys():
        before, after = ppo["val_reward_sft"], ppo["val_reward_ppo"]
        spread = ppo.get("val_reward_sft_std")
        note = (
            f"{(after - before) / spread:+.1f} standard deviations of SFT’s".translate(MINUS)
            if spread
            else ""
        )
        what = "reward on held-out prompts, estimated by the reward model"
        reach = max(2 * (spread or 0.0), abs(after - before), 1e-9)
        scale = before - reach, before + reach
        yield Reached("PPO", what, after, before, note=note, share=False, scale=scale)
    if "win_rate" in ppo:
        yield _wins(ppo["win_rate"])
    yield from _margins(summary)
    if {"val_accuracy_before", "val_accuracy_after"} <= grpo.keys():
        yield _sums(grpo["val_accuracy_after"], grpo["val_accuracy_before"], summary)


def _losses(summary: dict) -> Iterator[Reached]:
    sft = summary.get("sft", {})
    if {"val_loss_before", "val_loss_after"} <= sft.keys():
        what = "loss on held-out answers in nats per token (lower is better)"
        before, after = sft["val_loss_before"], sft["val_loss_after"]
        yield Reached("SFT", what, after, before, share=False, scale=(0.0, max(before, after, 1e-9)))


def _reward_model(summary: dict) -> Iterator[Reached]:
    rm = summary.get("rm", {})
    if "val_acc" in rm:
        best = rm.get("best_baseline")
        note = f"the best trivial judge: {_percent(best)}" if best is not None else "a coin: 50 %"
        what = "held-out pairs in which the chosen answer has the higher reward"
        yield Reached("Reward model", what, rm["val_acc"], baseline=0.5 if best is None else best, note=note)


def _wins(rate: float) -> Reached:
    what = "held-out prompts where PPO’s answer scores higher than SFT’s"
    return Reached("PPO", what, rate, baseline=0.5, note="equals: 50 %")


def _margins(summary: dict) -> Iterator[Reached]:
    dpo = summary.get("dpo", {})
    if "val_acc" in dpo:
        margin = f"mean margin {dpo['val_margin']:.2f}".translate(MINUS) if "val_margin" in dpo else ""
        what = "held-out pairs where the chosen answer gained more"
        yield Reached("DPO", what, dpo["val_acc"], baseline=0.5, note=margin)


def _sums(after: float, before: float, summary: dict) -> Reached:
    best = summary.get("grpo", {}).get("val_best_of_4_before")
    note = f"untrained, the best of 4: {_percent(best)}" if best is not None else ""
    return Reached("GRPO", "held-out sums right", after, before, baseline=best, note=note)


def _good_note(low: float | None, summary: dict | None = None) -> str:
    """The gain of good answers in words. low: the lower end of its interval, None or NaN without an interval.

    summary: with the figures of cheats.
    """
    if low is None or math.isnan(low):
        return ""
    if low <= 0:
        note = "the 95 % interval of the gain includes 0 or lies below 0, so no gain is shown"
    else:
        points = math.floor(100 * low)
        size = f"at least {points} points" if points else "less than one point at its lower end"
        note = f"a gain of {size} (95 % interval)"
    cheat = (summary or {}).get("gold", {}).get("best_constant")
    return note if cheat is None else f"{note}; the best constant answer: {_percent(cheat)}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def stages_table(summary: dict) -> str:
    """The rows as an HTML table with a legend; empty without figures. summary: the content of summary.json."""
    summary = _with_known_figures(summary)
    rows = list(reached(summary))
    if not rows:
        return ""
    stages = [list(of_one) for _, of_one in groupby(rows, key=lambda row: row.stage)]
    body = "".join(_row(row, len(of_one) if row is of_one[0] else 0) for of_one in stages for row in of_one)
    legend = (
        f"<figcaption>{_key('before')} before · {_key('after')} after · {_key('baseline')} baseline without training: "
        f"a coin, a trivial judge, or the best of several samples. Percentages are drawn from 0 to 100, and a reward within two of its standard deviations, or further if it moved further.{_aside(summary)}</figcaption>"
    )
    return f'<figure class="stages"><table>{body}</table>{legend}</figure>'


def _with_known_figures(summary: dict) -> dict:
    """The summary without its stages' unknown figures. A diverged run has NaN or infinity, and JSON has null for NaN."""
    return {
        name: {key: figure for key, figure in figures.items() if _is_known(figure)}
        if isinstance(figures, dict)
        else figures
        for name, figures in summary.items()
    }


def _is_known(figure) -> bool:
    return figure is not None and not (isinstance(figure, float) and not math.isfinite(figure))


def _row(row: Reached, rows: int) -> str:
    """A table row. rows: for the first row of a stage, the number of the stage's rows; for the other rows, 0."""
    name = f'<th scope="rowgroup" rowspan="{rows}">{html.escape(row.stage)}</th>' if rows else ""
    note = f"<small>{html.escape(row.note)}</small>" if row.note else ""
    return (
        f"<tr>{name}<td>{html.escape(row.what)}{note}</td>"
        f'<td class="drawn">{_drawing(row)}</td><td class="number">{row.figures}</td></tr>'
    )


def _drawing(row: Reached) -> str:
    (low, high), middle = row.scale, HEIGHT / 2

    def at(value: float) -> float:
        return MARGIN + (value - low) / (high - low) * (WIDTH - 2 * MARGIN)

    parts = [f'<path class="axis" d="M{MARGIN} {middle}H{WIDTH - MARGIN}"/>']
    if row.baseline is not None:
        parts.append(f'<path class="baseline" d="M{at(row.baseline):.1f} {middle - 9}v18"/>')
    if row.before is not None:
        parts.append(f'<path class="change" d="M{at(row.before):.1f} {middle}H{at(row.after):.1f}"/>')
        parts.append(f'<circle class="before" cx="{at(row.before):.1f}" cy="{middle}" r="4.5"/>')
    parts.append(f'<circle class="after" cx="{at(row.after):.1f}" cy="{middle}" r="5.5"/>')
    words = f"{row.stage}, {row.what}: {row.figures}" + (f"; {row.note}" if row.note else "")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(words)}">{"".join(parts)}</svg>'


def _key(name: str) -> str:
    shape = (
        '<path class="baseline" d="M7 1v12"/>'
        if name == "baseline"
        else f'<circle class="{name}" cx="7" cy="7" r="4.5"/>'
    )
    return f'<svg class="key" viewBox="0 0 14 14" aria-hidden="true">{shape}</svg>'


def _aside(summary: dict) -> str:
    """Sentences about the source of the figures, and about the price of PPO's reward: KL and length."""
    evaluation, ppo = recorded_evaluation(summary), summary.get("ppo", {})
    source, lengths = "", [ppo.get(f"mean_length_{name}") for name in ("ppo", "sft")]
    if evaluation:
        figures = evaluation.table.figures
        answers = "; ".join(
            f"{kind}: {table.caption.partition(';')[0]}"
            for kind, table in (("conversations", evaluation.conversations), ("sums", evaluation.sums))
        )
        source = f" Figures of the policies’ answers are from notebook 08 ({answers})."
        lengths = [figures[name]["tokens"].value for name in ("PPO", "SFT")]
    parts = []
    if ppo.get("kl_per_token") is not None:
        parts.append(f"{ppo['kl_per_token']:.2f} nats of KL a token away from SFT")
    if None not in lengths:
        parts.append(f"answers of {lengths[0]:.0f} tokens, compared with SFT’s {lengths[1]:.0f}")
    return source + (f" PPO’s price: {', '.join(parts)}." if parts else "")
