"""Run folders as a trainer leaves them, with the values that a test says."""

import json
from collections.abc import Mapping
from pathlib import Path


def write_run(
    folder: Path, metrics: Mapping[str, list] | None = None, rollouts=(), seconds=1.0, **info
) -> Path:
    """A finished run folder with a record for each step of the metrics' values (None: not logged), and its completions.

    seconds: from one step to the next. info: more of run.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    info = {"kind": "sft", "status": "finished", "name": folder.name} | info
    (folder / "run.json").write_text(json.dumps(info))
    for name, records in {"metrics": _records(metrics or {}, seconds), "rollouts": rollouts}.items():
        if records:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def _records(metrics: Mapping[str, list], seconds: float) -> list[dict]:
    return [
        {"step": step, "time": 1e9 + seconds * step}
        | {name: value for name, value in zip(metrics, values, strict=True) if value is not None}
        for step, values in enumerate(zip(*metrics.values(), strict=True), start=1)
    ]
