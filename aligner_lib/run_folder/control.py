"""The files of control/ as the run sees them: what is asked of it, what of that it can do, and that it is done.

    stop         end after this step, with a checkpoint
    checkpoint   save one after this step
    set.json     {"kl_coef": 0.05, "lr": 5e-7}: go on with these from the next step on

A request is taken by giving its file another name and removed when it is done. So what is written meanwhile is a new
request, and what a run had taken when it died is taken again by the next attempt.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Requests:
    """What somebody asked of a run."""

    stop: bool = False
    checkpoint: bool = False
    changes: dict[str, float] = field(default_factory=dict)  # control → value
    refused: tuple[str, ...] = ()  # a sentence's part for each change that can't be made


def take(control: Path, controls: tuple[str, ...]) -> Requests:
    """The requests in a control/ folder; `controls` are the values that this run can change."""
    changes, refused = {}, []
    for text in _take(control / "set.json"):
        accepted, reasons = _read_changes(text, controls)
        changes |= accepted
        refused += reasons
    return Requests((control / "stop").exists(), bool(_take(control / "checkpoint")), changes, tuple(refused))


def done(control: Path) -> None:
    """Remove what was taken; `stop` stays, for whoever wonders, until the run is started again."""
    for name in ("set.json", "checkpoint"):
        _taken(control / name).unlink(missing_ok=True)


def in_words(requests: Requests, step: int) -> str:
    """What became of the changes that were asked for, for a person; empty when there were none."""
    sentences = []
    if requests.changes:
        values = ", ".join(f"{name} = {value:g}" for name, value in requests.changes.items())
        sentences.append(f"changed from step {step + 1} on: {values}")
    if requests.refused:
        sentences.append(f"not changed: {'; '.join(requests.refused)}")
    return "; ".join(sentences)


def _taken(request: Path) -> Path:
    return request.with_name(f"{request.name}.taken")


def _take(request: Path) -> list[str]:
    """The request's texts: first what an attempt that died had taken, then what is asked now."""
    taken, texts = _taken(request), []
    with suppress(FileNotFoundError):
        texts.append(taken.read_text(errors="replace"))
    with suppress(FileNotFoundError):
        if request.suffix and not request.stat().st_size:
            return texts  # a shell makes the file first and writes into it then
        request.rename(taken)
        texts.append(taken.read_text(errors="replace"))
    return texts


def _read_changes(text: str, controls: tuple[str, ...]) -> tuple[dict[str, float], list[str]]:
    """(changes, refusals) of a set.json."""
    try:
        written = json.loads(text)
    except ValueError:
        written = None
    if not isinstance(written, dict):
        return {}, ["set.json is not {name: number}"]
    reasons = {name: _reason(name, value, controls) for name, value in written.items()}
    changes = {name: float(value) for name, value in written.items() if reasons[name] is None}
    return changes, [reason for reason in reasons.values() if reason is not None]


def _reason(name: str, value: object, controls: tuple[str, ...]) -> str | None:
    """Why a change can't be made; None when it can."""
    shown = json.dumps(value)
    shown = shown if len(shown) <= 40 else shown[:39] + "…"
    if name not in controls:
        return f"{name}={shown}, for this run takes {', '.join(controls) or 'no change'}"
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        return f"{name}={shown}, for it takes a number that is not negative"
    return None
