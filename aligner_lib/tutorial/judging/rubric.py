"""The rubric of notebook 13, and the settings of a run whose judge has the rubric."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from aligner_lib.config.compose import literal
from aligner_lib.run_folder.turns import last_turn
from data import format_hh
from data.sources import SAMPLES

RUBRIC = {
    "The answer does what the user asked.": 2,
    "The answer says something true and useful in its own words.": 1,
}


def turns_in(prompts: Path) -> list[str]:
    """The users' last turns of a file of formatted prompts, {text}, without repetitions."""
    lines = prompts.read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(last_turn(json.loads(line)["text"]) for line in lines))


def write_turns(turns: Iterable[str], path: Path) -> str:
    """Write users' turns as prompts of an environment, {messages}. Returns the path as a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [{"messages": [{"role": "user", "content": turn}]} for turn in turns]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def write_drawn_turns(folder: Path) -> dict[str, str]:
    """Write the users' turns of the bundled drawn pairs, whose forms a program can check. Returns a file for each split."""
    files = {}
    for split, name in {"train": "train", "validation": "test"}.items():
        format_hh([SAMPLES / f"drawn-{name}.jsonl"], folder / "judged", name)
        turns = turns_in(folder / "judged" / f"{name}_prompts.jsonl")
        files[split] = write_turns(turns, folder / f"judged_{split}.jsonl")
    return files


def rubric_environment(
    prompts: dict[str, str], judge: dict[str, object], rubric: Mapping[str, float] = RUBRIC
) -> dict[str, object]:
    """Settings of a job whose responses a judge scores by a rubric, from the probability of Yes.

    prompts: a file for each split. judge: the judge's endpoint, as arguments of the environment `judge`. rubric: criterion → weight.
    """
    args = judge | {
        "prompts": prompts,
        # a list, because Hydra's keys have no apostrophes
        "rubric": [[literal(criterion), weight] for criterion, weight in rubric.items()],
        "verdict": "logprobs",
        "concurrency": 8,
        "timeout": 300,
    }
    return {"model.environments": {"judged": {"use": "judge", "timeout": 60, "args": args}}}
