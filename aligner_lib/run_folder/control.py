"""The run's side of control requests, which are files in control/.

    stop         end after this step, with a checkpoint
    checkpoint   save a checkpoint after this step
    set.json     {"kl_coef": 0.05, "lr": 5e-7}: use these values from the next step on

The run takes a request by renaming its file, and removes the file after handling the request. A file written in the meantime is
a new request. If the process dies with a request in hand, the next attempt takes the request again.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Requests:
    """The control requests received by a run."""

    stop: bool = False
    checkpoint: bool = False
    changes: dict[str, float] = field(default_factory=dict)
    """New values by control."""
    refused: tuple[str, ...] = ()
    """The reason for each refused change, as a part of a sentence."""


def take(control: Path, controls: tuple[str, ...]) -> Requests:
    """Take the requests in a control/ folder.

    controls: names of the values that this run can change. Invalid values, changes of other names, and a file in place of the
    folder go into `refused`.
    """
    if control.is_file():  # nothing inside can be read, and a run goes on without requests
        return Requests(
            refused=(
                f"{control} is a file, and requests are files in a folder of that name: remove the file",
            )
        )
    changes, refused = {}, []
    for text in _take(control / "set.json"):
        accepted, reasons = _read_changes(text, controls)
        changes |= accepted
        refused += reasons
    return Requests((control / "stop").exists(), bool(_take(control / "checkpoint")), changes, tuple(refused))


def done(control: Path) -> None:
    """Remove the taken requests. `stop` stays until the run starts again."""
    for name in ("set.json", "checkpoint"):
        with suppress(FileNotFoundError, NotADirectoryError):
            _taken(control / name).unlink()


def in_words(requests: Requests, step: int, saves_checkpoints: bool) -> str:
    """Describe the accepted and refused changes in a sentence; empty without changes.

    step: the step that has just ended; changes take effect from the next step. saves_checkpoints: whether the run saves a
    checkpoint of `step` before applying a change.
    """
    sentences = []
    if requests.changes:
        values = ", ".join(f"{name} = {value:g}" for name, value in requests.changes.items())
        way_back = (
            f"the checkpoint of step {step} is the way back, by `aligner undo`"
            if saves_checkpoints
            else "this run saves no checkpoints, so the change cannot be undone"
        )
        sentences.append(f"changed from step {step + 1} on: {values} ({way_back})")
    if requests.refused:
        sentences.append(f"not changed: {'; '.join(requests.refused)}")
    return "; ".join(sentences)


def _taken(request: Path) -> Path:
    return request.with_name(f"{request.name}.taken")


def _take(request: Path) -> list[str]:
    """The texts of a request: first the text taken by a dead attempt, then the current text."""
    taken, texts = _taken(request), []
    with suppress(FileNotFoundError):
        texts.append(taken.read_text(errors="replace"))
    with suppress(FileNotFoundError):
        if request.suffix and not request.stat().st_size:
            return texts  # a shell creates an empty file first and writes into the file afterwards
        request.rename(taken)
        texts.append(taken.read_text(errors="replace"))
    return texts


def _read_changes(text: str, controls: tuple[str, ...]) -> tuple[dict[str, float], list[str]]:
    """The (changes, refusals) in the text of a set.json."""
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
    """The reason to refuse a change; None for an accepted change."""
    shown = json.dumps(value)
    shown = shown if len(shown) <= 40 else shown[:39] + "…"
    if name not in controls:
        return f"{name}={shown}, for this run takes {', '.join(controls) or 'no change'}"
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        return f"{name}={shown}, for it takes a number that is not negative"
    return None
