"""The interface between exporters and a service: a small class and the two records that the class receives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

Row = dict[str, object]  # a record of rollouts.jsonl

# split → NeMo-Aligner's name of the split's table
TABLES = {
    "train": "table/train_rollouts",
    "validation": "table/val_rollouts",
    "evaluation": "table/evaluation_rollouts",
}


@dataclass(frozen=True)
class RunRecord:
    """The description of a run for a service."""

    path: Path
    """The run folder."""
    name: str
    """The folder's name."""
    config: dict
    """All settings, nested."""
    options: dict
    """The service's own settings: exp_manager.*_logger_kwargs."""
    attempt: int
    """Starts at 1. The number grows by 1 each time the run goes back and all steps are sent again."""
    id: str
    """Eight letters and digits that identify the attempt, also after a restart of the exporter."""


@dataclass(frozen=True)
class LoggedStep:
    """The records of a run for a step."""

    step: int
    time: float
    """Unix seconds."""
    metrics: dict[str, float]
    rollouts: dict[str, list[Row]]
    """The first rows of each split."""


class Service(ABC):
    """A service that shows runs. After an error in any call, the exporter closes the service, waits, and opens a new object."""

    rows = 64
    """Rows in a table for a step and split; rollouts.jsonl has all rows."""

    @abstractmethod
    def open(self, run: RunRecord, noted: list[int]) -> int:
        """Start the run, or continue it.

        noted: the steps that were given to `send`. The last of them may not have arrived. Returns the last step that the
        service certainly has, including all earlier steps; −1 for none. Later steps are sent (again).
        """

    @abstractmethod
    def send(self, step: LoggedStep) -> None:
        """Add a step. Each step is later than all steps before."""

    def flush(self) -> None:
        """Return after all sent steps are stored safely."""
        return

    def take_back(self, step: int) -> bool:
        """Remove all steps after `step`. False: the service can't remove steps, so the run is sent again as another attempt."""
        return False

    @abstractmethod
    def close(self, status: str) -> None:
        """End the run. status: the run's status, or `superseded` before another attempt."""


def as_columns(rows: list[Row]) -> tuple[list[str], list[list]]:
    """(names, cells) of a table of rollouts. Token columns (`tokens`, `token_kl`, …) have a list in each cell."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name != "split"]
    return names, [[row.get(name) for name in names] for row in rows]
