"""The rubric of notebook 13, and the settings of a run whose judge has the rubric."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from aligner_lib.run_folder.turns import turns_of

RUBRIC = {
    "The answer does what the user asked.": 2,
    "The answer says something true and useful in its own words.": 1,
}


def turns_in(prompts: Path) -> list[str]:
    """The users' last turns of a file of formatted prompts, {text}, without repetitions."""
    lines = prompts.read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(turns_of(json.loads(line)["text"])[-1]["text"] for line in lines))


def write_turns(turns: Iterable[str], path: Path) -> str:
    """Write users' turns as prompts of an environment, {messages}. Returns the path as a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [{"messages": [{"role": "user", "content": turn}]} for turn in turns]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def rubric_environment(
    prompts: dict[str, str], judge: dict[str, object], rubric: Mapping[str, float] = RUBRIC
) -> dict[str, object]:
    """Settings of a job whose responses a judge scores by a rubric, from the probability of Yes.

    prompts: a file for each split. judge: the judge's endpoint, as arguments of the environment `judge`. rubric: criterion → weight.
    """
    args = judge | {
        "prompts": prompts,
        "rubric": dict(rubric),
        "verdict": "logprobs",
        "concurrency": 8,
        "timeout": 300,
    }
    return {"model.environments": {"judged": {"use": "judge", "timeout": 60, "args": args}}}
