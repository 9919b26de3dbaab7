"""A side-by-side view of the policies' answers: from notebook 08, or else from PPO's first and last validation."""

from __future__ import annotations

import html
import re
from pathlib import Path

from aligner_lib.run_folder.reader import RunFolder

PROMPTS = 3
POLICIES = {"SFT": "evaluate-sft", "PPO": "evaluate-ppo", "DPO": "evaluate-dpo"}
CONVERSATIONS = (
    "conversations"  # the environment whose answers are shown, if an evaluation has several environments
)

Answers = dict[str, dict]  # prompt → record of rollouts.jsonl


def answers_section(runs: Path) -> str:
    """Answers to a few held-out prompts as HTML; empty if fewer than two policies have answers."""
    policies = _evaluated(runs) or _validated(runs)
    if len(policies) < 2:
        return ""
    (first, before), *others = policies.items()
    last = "PPO" if "PPO" in policies else others[-1][0]
    common = set.intersection(*(set(answers) for answers in policies.values()))
    prompts = sorted(common, key=lambda p: (before[p]["reward"] - policies[last][p]["reward"], p))
    count = min(PROMPTS, len(prompts))
    chosen = [prompts[round(i * (len(prompts) - 1) / max(count - 1, 1))] for i in range(count)]
    cards = "".join(
        _card(prompt, {name: answers[prompt] for name, answers in policies.items()}) for prompt in chosen
    )
    return (
        f"<h2>Answers of the policies</h2><p>{count} of {len(prompts)} held-out prompts, sorted by how much reward {last} gains over "
        f"{first}, largest gain first. Rewards are estimates of the reward model, so judge for yourself."
        f'</p><div class="answers">{cards}</div>'
    )


def _evaluated(runs: Path) -> dict[str, Answers]:
    """For each policy, the first answer to each prompt of the evaluation. Empty without evaluations of both SFT and PPO."""
    rollouts = {name: RunFolder(runs / folder).rollouts() for name, folder in POLICIES.items()}
    rollouts = {
        name: _by_prompt(
            [r for r in records if r.get("environment", CONVERSATIONS) == CONVERSATIONS] or records
        )
        for name, records in rollouts.items()
    }
    rollouts = {name: answers for name, answers in rollouts.items() if answers}
    return rollouts if {"SFT", "PPO"} <= rollouts.keys() else {}


def _validated(runs: Path) -> dict[str, Answers]:
    """The answers of PPO's first validation (as SFT) and of its last validation; empty with fewer than two validations."""
    records = [r for r in RunFolder(runs / "ppo").rollouts() if r.get("split") == "validation"]
    steps = sorted({record["step"] for record in records})
    if len(steps) < 2:
        return {}
    of_step = {step: _by_prompt([r for r in records if r["step"] == step]) for step in (steps[0], steps[-1])}
    return {"SFT": of_step[steps[0]], "PPO": of_step[steps[-1]]}


def _by_prompt(records: list[dict]) -> Answers:
    """The first answer with a reward to each prompt. An answer has no reward if its environment failed."""
    answers: Answers = {}
    for record in records:
        if record["reward"] is not None:
            answers.setdefault(record["prompt"], record)
    return answers


def _card(prompt: str, answers: Answers) -> str:
    boxes = "".join(
        f'<div><h3>{html.escape(name)} <span class="number">{_judged(record)}</span></h3>'
        f"<p>{_text(record['response'])}{'' if record.get('finished', True) else ' … <em>cut off</em>'}</p></div>"
        for name, record in answers.items()
    )
    return (
        f'<article><p class="prompt">{_text(_question(prompt))}</p><div class="sides">{boxes}</div></article>'
    )


def _judged(record: dict) -> str:
    """The reward in words, and the verdict of a program on the instruction, if the prompt has an instruction."""
    obeys = (record.get("metrics") or {}).get("obeys")
    obedience = (
        "" if obeys is None else " · follows the instruction" if obeys else " · breaks the instruction"
    )
    return f"reward {record['reward']:+.2f}{obedience}".replace("-", "−")


def _question(prompt: str) -> str:
    """A prompt without the parts of the chat template: the system turn, and the role names at the beginning and the end."""
    prompt = re.sub(r"\A\s*(system\n.*?\n)?user\n", "", prompt, flags=re.DOTALL)
    return re.sub(r"\n(assistant|Assistant:)\s*\Z", "", prompt)


def _text(text: str) -> str:
    """A prompt or response as HTML. A model's response may contain markup, so all special characters are escaped."""
    return html.escape(text.strip()) or "<em>(empty)</em>"
