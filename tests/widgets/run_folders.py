"""Run folders as a trainer leaves them, with the values that a test says."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path


def write_run(
    folder: Path, metrics: Mapping[str, list] | list[dict] = (), rollouts=(), seconds=1.0, **info
) -> Path:
    """A finished run folder with its metrics and its completions.

    metrics: each metric's values, a step's each (None: not logged), or whole records. seconds: from one step to the next.
    info: more of run.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    info = {"kind": "sft", "status": "finished", "name": folder.name} | info
    (folder / "run.json").write_text(json.dumps(info))
    records = _records(metrics, seconds) if isinstance(metrics, Mapping) else metrics
    for name, lines in {"metrics": records, "rollouts": rollouts}.items():
        if lines:
            write_lines(folder / f"{name}.jsonl", lines)
    return folder


def write_lines(path: Path, records: Iterable[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def change_info(run: Path, **changes) -> None:
    """Change entries of a run's run.json."""
    file = run / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def _records(metrics: Mapping[str, list], seconds: float) -> list[dict]:
    return [
        {"step": step, "time": 1e9 + seconds * step}
        | {name: value for name, value in zip(metrics, values, strict=True) if value is not None}
        for step, values in enumerate(zip(*metrics.values(), strict=True), start=1)
    ]
