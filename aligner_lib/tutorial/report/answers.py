"""The policies' answers and figures: of notebook 08's evaluation, or else of PPO's first and last validation."""

from __future__ import annotations

import html
import re
from collections.abc import Collection
from pathlib import Path

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.comparison.drawn_prompts import DrawnPrompt
from aligner_lib.tutorial.comparison.evaluation import PolicyEvaluation, recorded_evaluation
from aligner_lib.tutorial.comparison.good_answers import first_and_last

PROMPTS = 3
MINUS = str.maketrans("-", "−")

Answers = dict[str, dict]  # prompt → record of rollouts.jsonl


def evaluation_section(summary: dict, runs: Path, without: Collection[str] = ()) -> str:
    """The evaluation of notebook 08 as HTML: drawn prompts, table, picture and conclusion.

    Without an evaluation: some answers of PPO's first and last validation, or "" if PPO has fewer than two validations.
    summary: the content of summary.json, or of all files in results/. runs: the folder with the run folders.
    without: names of runs that are not shown.
    """
    evaluation = recorded_evaluation(summary)
    if evaluation is not None:
        return _evaluated(evaluation)
    return "" if "ppo" in without else _validation(runs)


def _evaluated(evaluation: PolicyEvaluation) -> str:
    cards = "".join(map(_drawn_card, evaluation.drawn))
    sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in evaluation.conclusion.splitlines())
    return (
        f"<h2>Answers of the policies</h2><p>A random draw selected {len(evaluation.drawn)} of the held-out prompts of notebook 08. "
        f'Rewards are estimates of the reward model, so judge for yourself.</p><div class="answers">{cards}</div>'
        f'<h2>Evaluation</h2><div class="wide">{evaluation.table._repr_html_()}</div>'
        f"{evaluation.picture._repr_html_()}{sentences}"
    )


def _drawn_card(prompt: DrawnPrompt) -> str:
    boxes = "".join(
        _box(name, answer.verdict, answer.text, answer.finished) for name, answer in prompt.answers.items()
    )
    return _card(prompt.turn, boxes)


def _validation(runs: Path) -> str:
    """Answers to a few prompts of PPO's first and last validation; "" with fewer than two validations."""
    policies = _validated(runs)
    if not policies:
        return ""
    before, after = policies.values()
    prompts = sorted(
        before.keys() & after.keys(),
        key=lambda prompt: (before[prompt]["reward"] - after[prompt]["reward"], prompt),
    )
    count = min(PROMPTS, len(prompts))
    chosen = [prompts[round(i * (len(prompts) - 1) / max(count - 1, 1))] for i in range(count)]
    cards = "".join(
        _card(
            _question(prompt),
            "".join(
                _box(
                    name,
                    _judged(answers[prompt]),
                    answers[prompt]["response"],
                    answers[prompt].get("finished", True),
                )
                for name, answers in policies.items()
            ),
        )
        for prompt in chosen
    )
    return (
        f"<h2>Answers of the policies</h2><p>{count} of {len(prompts)} held-out prompts of PPO's validation, sorted by how much reward PPO "
        "gains over SFT, largest gain first. Rewards are estimates of the reward model, so judge for yourself."
        f'</p><div class="answers">{cards}</div>'
    )


def _validated(runs: Path) -> dict[str, Answers]:
    """The answers of PPO's first validation (as SFT) and of its last validation; empty with fewer than two validations."""
    records = [r for r in RunFolder(runs / "ppo").rollouts() if r.get("split") == "validation"]
    sides = first_and_last(records).values()
    return dict(zip(("SFT", "PPO"), map(_by_prompt, sides))) if len(sides) > 1 else {}


def _by_prompt(records: list[dict]) -> Answers:
    """The first answer with a reward to each prompt. An answer has no reward if its environment failed."""
    answers: Answers = {}
    for record in records:
        if record["reward"] is not None:
            answers.setdefault(record["prompt"], record)
    return answers


def _card(turn: str, boxes: str) -> str:
    return (
        f'<article><p class="prompt" dir="auto">{_text(turn)}</p><div class="sides">{boxes}</div></article>'
    )


def _box(name: str, verdict: str, text: str, finished: bool) -> str:
    return (
        f'<div><h3>{html.escape(name)} <span class="number">{html.escape(verdict)}</span></h3>'
        f'<p dir="auto">{_text(text)}{"" if finished else " … <em>cut off</em>"}</p></div>'
    )


def _judged(record: dict) -> str:
    """The reward in words, and the verdict of a program on the instruction, if the prompt has an instruction."""
    obeys = (record.get("metrics") or {}).get("obeys")
    obedience = (
        "" if obeys is None else " · follows the instruction" if obeys else " · breaks the instruction"
    )
    return f"reward {record['reward']:+.2f}{obedience}".translate(MINUS)


def _question(prompt: str) -> str:
    """A prompt without the parts of the chat template: the system turn, and the role names at the beginning and the end."""
    prompt = re.sub(r"\A\s*(system\n.*?\n)?user\n", "", prompt, flags=re.DOTALL)
    return re.sub(r"\n(assistant|Assistant:)\s*\Z", "", prompt)


def _text(text: str) -> str:
    """A prompt or response as HTML. A model's response may contain markup, so all special characters are escaped."""
    return html.escape(text.strip()) or "<em>(empty)</em>"
