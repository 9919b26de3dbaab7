"""A static view of some prompts with the answers of all policies, and a program's verdict on each answer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from html import escape

from aligner_lib.run_folder.turns import turns_of
from data.forms import instruction_in
from data.gold import GoldParts, judge_all
from widgets.completions.tables import completions, reward_of

STYLE = """<style>
.lab-side {font: 13px/1.5 var(--jp-ui-font-family, system-ui, sans-serif); max-width: 838px; margin: 0 0 1.2em}
.lab-side p {margin: 0; padding: 6px 12px; border-radius: 12px; white-space: pre-wrap; overflow-wrap: anywhere}
.lab-side .turn {background: #0072b222; width: fit-content; max-width: 80%; margin: 0 0 6px auto}
.lab-side .answer {display: grid; grid-template-columns: 6.5em 1fr 11em; gap: 0 10px; padding: 3px 0; align-items: start}
.lab-side .answer p {background: #8881}
.lab-side .name {padding-top: 6px; font-weight: 600}
.lab-side .verdict {padding-top: 6px; opacity: .85}
@media (max-width: 560px) {.lab-side .answer {grid-template-columns: 1fr}}
</style>"""


class SideBySide:
    """Random prompts, each with every policy's first answer, the answer's reward, and the failed parts of `data.gold`.

    runs: evaluations of the same prompts, by the policies' names. environment: the environment of the prompts. seed: of the
    random choice of prompts, which prevents a biased choice. n: the number of prompts. If a program can't judge the answers,
    only the rewards are shown. Raises ValueError for policies without common prompts.
    """

    def __init__(self, runs: Mapping[str, object], environment: str, seed: int, n: int = 4):
        answers = {name: _by_prompt(run, environment) for name, run in runs.items()}
        common = sorted(set.intersection(*(set(of_policy) for of_policy in answers.values())))
        if not common:
            raise ValueError(
                f"{', '.join(runs)} answered no prompt of {environment} in common: evaluate them with the same settings"
            )
        self.prompts = random.Random(seed).sample(common, min(n, len(common)))
        verdicts = {name: _verdicts(of_policy) for name, of_policy in answers.items()}
        self.shown = {
            prompt: {name: (answers[name][prompt], verdicts[name].get(prompt)) for name in runs}
            for prompt in self.prompts
        }

    def _repr_html_(self) -> str:
        blocks = []
        for answers in self.shown.values():
            rows = "".join(
                f'<div class="answer"><span class="name">{escape(name)}</span>'
                f'<p dir="auto">{escape(record["response"].strip()) or "(empty)"}</p>'
                f'<span class="verdict">{escape(_verdict(record, parts))}</span></div>'
                for name, (record, parts) in answers.items()
            )
            blocks.append(
                f'<div class="lab-side tex2jax_ignore mathjax_ignore"><p class="turn" dir="auto">{escape(_question(answers))}</p>{rows}</div>'
            )
        return STYLE + "".join(blocks)

    def __repr__(self) -> str:
        lines = []
        for answers in self.shown.values():
            lines += [f"user        {_question(answers)}"]
            lines += [
                f"{name:12}{record['response'].strip()}\n{'':12}{_verdict(record, parts)}"
                for name, (record, parts) in answers.items()
            ]
            lines += [""]
        return "\n".join(lines)


def _by_prompt(run, environment: str) -> dict[int, dict]:
    """A policy's first answer by the prompt's number. The prompt's text may differ, because chat templates differ."""
    first: dict[int, dict] = {}
    for record in completions(run):
        if record.get("environment") == environment:
            first.setdefault(record["group"], record)
    return first


def _verdicts(answers: Mapping[int, dict]) -> dict[int, GoldParts]:
    """The program's judgement by prompt; empty if a prompt has no instruction that the program can check."""
    turns = [_turn(record) for record in answers.values()]
    if any(instruction_in(turn) is None for turn in turns):
        return {}
    texts, ends = ([record[key] for record in answers.values()] for key in ("response", "finished"))
    return dict(zip(answers, judge_all(turns, texts, ends)))


def _question(answers: Mapping[str, tuple[dict, GoldParts | None]]) -> str:
    record, _ = next(iter(answers.values()))
    return _turn(record)


def _turn(record: dict) -> str:
    return turns_of(record["prompt"])[-1]["text"]


def _verdict(record: dict, parts: GoldParts | None) -> str:
    reward = reward_of(record)
    shown = f"reward {reward:+.2f}" if isinstance(reward, float) else str(reward or "")
    if parts is None:
        return shown
    missed = [name.replace("_", " ") for name, holds in parts._asdict().items() if not holds]
    return f"✗ {', '.join(missed)} · {shown}" if missed else f"✓ good · {shown}"
