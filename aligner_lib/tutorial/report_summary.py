"""The top of the tutorial's report: what came out in a few cards, one picture, and answers before and after."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aligner_lib.run_folder.reader import RunFolder, flatten

ANSWERS = 5
WIDTH, HEIGHT = 250, 130  # of a panel of the picture, in CSS pixels
LEFT, RIGHT, TOP, BOTTOM = 38, 8, 8, 18


def summary_section(summary: dict, runs: Path) -> str:
    """The section as HTML. summary: the figures of the notebooks, as in summary.json; runs: the folder of their runs."""
    seconds = sum(summary.get("seconds", {}).values())
    facts = [
        f"profile {summary['profile']}" if "profile" in summary else "",
        summary.get("model", {}).get("name", ""),
        f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s" if seconds else "",
        f"largest process {summary['peak_memory_gib']:.1f} GiB" if "peak_memory_gib" in summary else "",
    ]
    failed = (
        f'<p class="failed">Stopped in {html.escape(summary["failed"])}</p>' if "failed" in summary else ""
    )
    return "\n".join(
        [
            "<h1>What came out</h1>",
            f'<p class="facts">{html.escape(" · ".join(filter(None, facts)))}</p>',
            failed,
            _cards(summary),
            _picture(runs),
            _answers(runs),
            f"<details><summary>All figures</summary>{_figures(summary)}</details>",
        ]
    )


# ---- cards ----------------------------------------------------------------------------------------------------------


def _cards(summary: dict) -> str:
    cards = "".join(
        f'<li><h3>{title}</h3><p class="figure">{figure}</p><p>{meaning}</p></li>'
        for title, figure, meaning in _headlines(summary)
    )
    return f'<ul class="cards">{cards}</ul>' if cards else ""


def _headlines(summary: dict) -> Iterator[tuple[str, str, str]]:
    """(title, figure, what it is) for each figure that the notebooks which ran have left."""
    sft, rm, ppo, dpo, grpo = (summary.get(name, {}) for name in ("sft", "rm", "ppo", "dpo", "grpo"))
    if {"val_loss_before", "val_loss_after"} <= sft.keys():
        before, after = sft["val_loss_before"], sft["val_loss_after"]
        change = _percent(after / before - 1)
        yield "SFT", f"{before:.2f} → {after:.2f}", f"loss on held-out answers, nats a token ({change})"
    if "val_acc" in rm:
        yield "Reward model", _percent(rm["val_acc"], sign=""), "of the held-out pairs the right way round"
    if {"val_reward_sft", "val_reward_ppo"} <= ppo.keys():
        before, after = ppo["val_reward_sft"], ppo["val_reward_ppo"]
        spread = ppo.get("val_reward_sft_std")
        gain = f", {(after - before) / spread:+.1f} standard deviations of the SFT policy's" if spread else ""
        yield "PPO", f"{before:.2f} → {after:.2f}".replace("-", "−"), f"reward on held-out prompts{gain}"
    if "win_rate" in ppo:
        yield (
            "PPO against SFT",
            _percent(ppo["win_rate"], sign=""),
            "of the held-out prompts: PPO's answer scores higher",
        )
    if "kl_per_token" in ppo:
        meaning = "KL to the reference, nats a token: mean of log π − log π_ref, as in the monitor"
        yield "Distance", f"{ppo['kl_per_token']:.2f}", meaning
    if {"mean_length_sft", "mean_length_ppo"} <= ppo.keys():
        figure = f"{ppo['mean_length_sft']:.0f} → {ppo['mean_length_ppo']:.0f}"
        yield "Length", figure, "tokens of a response, SFT → PPO"
    if "val_acc" in dpo:
        meaning = "of the held-out pairs: the chosen answer gained more than the rejected one"
        yield "DPO", _percent(dpo["val_acc"], sign=""), meaning
    if {"val_accuracy_before", "val_accuracy_after"} <= grpo.keys():
        before, after = (_percent(grpo[f"val_accuracy_{when}"], sign="") for when in ("before", "after"))
        yield (
            "GRPO",
            f"{before} → {after}",
            f"of held-out sums right, in {grpo['train_seconds']:.0f} s of training",
        )


def _percent(share: float, sign: str = "+") -> str:
    return f"{share:{sign}.0%}".replace("%", " %").replace("-", "−")


# ---- the picture ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """One chart of the picture. metrics: those on held-out data first, drawn strong; the others are drawn faint."""

    run: str
    title: str
    metrics: tuple[str, ...]


PANELS = (
    Panel("sft", "SFT: loss", ("validation/loss", "train/loss")),
    Panel("rm", "Reward model: accuracy", ("validation/acc", "train/acc")),
    Panel("ppo", "PPO: reward", ("val_rollouts/rewards", "train_rollouts/rewards")),
    Panel("ppo", "PPO: KL to the reference", ("train_rollouts/kl",)),  # of the training rollouts alone
    Panel("dpo", "DPO: accuracy", ("validation/acc", "train/acc")),
    Panel("grpo", "GRPO: reward on sums", ("val_rollouts/rewards", "train_rollouts/rewards")),
)


def _picture(runs: Path) -> str:
    panels = "".join(_panel(panel, RunFolder(runs / panel.run)) for panel in PANELS)
    if not panels:
        return ""
    legend = "<figcaption>By step. Strong: on held-out data; faint: on the training data. The KL is that of the training rollouts.</figcaption>"
    return f'<figure class="picture"><div>{panels}</div>{legend}</figure>'


def _panel(panel: Panel, run: RunFolder) -> str:
    lines = [line for metric in panel.metrics if len((line := run.series(metric))[0]) > 1]
    if not lines:
        return ""
    steps = [step for line in lines for step in line[0]]
    values = [value for line in lines for value in line[1]]
    (x0, x1), (y0, y1) = (min(steps), max(steps)), (min(values), max(values))
    y1 = y1 if y1 > y0 else y0 + 1

    def at(step: float, value: float) -> str:
        x = LEFT + (step - x0) / max(x1 - x0, 1) * (WIDTH - LEFT - RIGHT)
        return f"{x:.1f},{HEIGHT - BOTTOM - (value - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM):.1f}"

    drawn = "".join(
        f'<polyline class="{"strong" if i == 0 else "faint"}" points="{" ".join(map(at, *line))}"/>'
        for i, line in reversed(list(enumerate(lines)))
    )
    labels = "".join(
        f'<text x="{LEFT - 6}" y="{at(x0, value).split(",")[1]}" dy="0.32em" text-anchor="end">{value:.3g}</text>'
        for value in (y0, y1)
    )
    labels += f'<text x="{LEFT}" y="{HEIGHT - 4}">{x0}</text><text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{x1}</text>'
    (_, strong), words = lines[0], html.escape(panel.title)
    alt = f"{words}: {strong[0]:.3g} at first, {strong[-1]:.3g} at last"
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{alt}">{drawn}{labels}</svg>'
    return f"<div><h3>{words}</h3>{svg}</div>"


# ---- answers --------------------------------------------------------------------------------------------------------


def _answers(runs: Path) -> str:
    """Both policies' answers to a few held-out prompts: those of notebook 08, else PPO's first and last validation."""
    before, after = (
        _by_prompt(RunFolder(runs / name).rollouts()) for name in ("evaluate-sft", "evaluate-ppo")
    )
    if not (before and after):
        validation = [r for r in RunFolder(runs / "ppo").rollouts() if r.get("split") == "validation"]
        steps = sorted({record["step"] for record in validation})
        if len(steps) < 2:
            return ""
        before, after = (
            _by_prompt([r for r in validation if r["step"] == step]) for step in (steps[0], steps[-1])
        )
    prompts = sorted(before.keys() & after.keys(), key=lambda p: after[p]["reward"] - before[p]["reward"])
    count = min(ANSWERS, len(prompts))
    chosen = [prompts[round(i * (len(prompts) - 1) / max(count - 1, 1))] for i in range(count)]
    rows = "".join(
        f"<tr><td>{_text(prompt)}</td>{_answer(before[prompt])}{_answer(after[prompt])}</tr>"
        for prompt in reversed(chosen)
    )
    head = "<tr><th>prompt</th><th>SFT</th><th>reward</th><th>PPO</th><th>reward</th></tr>"
    return (
        f"<h2>Answers, before and after PPO</h2><p>{count} of {len(prompts)} held-out prompts, at equal distances from "
        f"the largest gain in reward to the largest loss.</p><table class='answers'>{head}{rows}</table>"
    )


def _by_prompt(records: list[dict]) -> dict[str, dict]:
    """Those that have a reward: an environment that failed gave none."""
    return {record["prompt"]: record for record in records if record["reward"] is not None}


def _answer(record: dict) -> str:
    cut = "" if record.get("finished", True) else " …"
    return f"<td>{_text(record['response'])}{cut}</td><td class='number'>{record['reward']:.2f}</td>"


def _text(text: str) -> str:
    """A prompt or response as HTML; what a model wrote is text, whatever it holds."""
    return html.escape(text.strip().removesuffix("Assistant:").strip())


# ---- all figures ----------------------------------------------------------------------------------------------------


def _figures(summary: dict) -> str:
    rows = "\n".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(_shown(value))}</td></tr>"
        for name, value in flatten(summary).items()
    )
    return f"<table>{rows}</table>"


def _shown(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
