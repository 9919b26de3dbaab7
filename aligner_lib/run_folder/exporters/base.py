"""The interface of a service to the exporters: one small class, and the two records that it receives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

Row = dict[str, object]  # a record of rollouts.jsonl

# split → name of its table, NeMo-Aligner's
TABLES = {
    "train": "table/train_rollouts",
    "validation": "table/val_rollouts",
    "evaluation": "table/evaluation_rollouts",
}


@dataclass(frozen=True)
class RunRecord:
    """The description of a run that a service receives."""

    path: Path
    """The run folder."""
    name: str
    """The folder's name, with the attempt's number from the second attempt on."""
    config: dict
    """All settings, nested."""
    options: dict
    """The service's own settings: exp_manager.*_logger_kwargs."""
    attempt: int
    """1, and one more each time that everything is sent again because the run went back."""
    id: str
    """Eight letters and digits that identify the attempt, also after a restart of the exporter."""


@dataclass(frozen=True)
class LoggedStep:
    """The records that a run has written for one step."""

    step: int
    time: float
    """Unix seconds."""
    metrics: dict[str, float]
    rollouts: dict[str, list[Row]]
    """The first rows of each split."""


class Service(ABC):
    """A service that shows runs. Any call may raise: the exporter then closes the service, waits, and opens a new one."""

    rows = 64
    """Rows of a step and split in a table; rollouts.jsonl has all rows."""

    @abstractmethod
    def open(self, run: RunRecord, noted: list[int]) -> int:
        """Begin the run, or continue it.

        noted: the steps that were given to `send`; the last ones may have been lost on the way. Returns the last step that
        the service certainly has, together with all steps before it; −1 for none. Later steps are sent (again).
        """

    @abstractmethod
    def send(self, step: LoggedStep) -> None:
        """Add a step that is later than all steps before it."""

    def flush(self) -> None:
        """Return when all sent steps are stored safely."""
        return

    def take_back(self, step: int) -> bool:
        """Remove all steps after this one. False: the service can't; the run is then sent again as another attempt."""
        return False

    @abstractmethod
    def close(self, status: str) -> None:
        """End the run. status: the run's status, or `superseded` when another attempt follows."""


def as_columns(rows: list[Row]) -> tuple[list[str], list[list]]:
    """(names, cells) of a table of rollouts. Token columns (`tokens`, `token_kl`, …) have a list in each cell."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name != "split"]
    return names, [[row.get(name) for name in names] for row in rows]
