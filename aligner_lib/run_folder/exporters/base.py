"""What every service is to the exporters: one small class, and the two records that it is given."""

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
    """The run as a service is told of it."""

    path: Path  # of the run folder
    name: str  # the folder's, and the attempt's number from the second on
    config: dict  # every setting, nested
    options: dict  # the service's own settings: exp_manager.*_logger_kwargs
    attempt: int  # 1; one more each time that all is sent anew, because the run went back
    id: str  # of this attempt: eight letters and digits, kept over restarts of the exporter


@dataclass(frozen=True)
class Step:
    """What a run has told of one step."""

    step: int
    time: float  # Unix seconds
    metrics: dict[str, float]
    rollouts: dict[str, list[Row]]  # split → the first rows


class Service(ABC):
    """A service that shows runs. Any call may raise: the exporter closes it, waits, opens a new one and goes on."""

    rows = 64  # of one step and split in a table; rollouts.jsonl has them all

    @abstractmethod
    def open(self, run: RunRecord, noted: list[int]) -> int:
        """Begin the run, or go on with it.

        noted: the steps that have been given to `send`; the last ones may have got lost on the way. Returns the last
        step that is there for certain, with all before it; −1 for none. The later ones are sent (again).
        """

    @abstractmethod
    def send(self, step: Step) -> None:
        """Add one step, later than those before."""

    def flush(self) -> None:
        """Return when all that was sent is safe."""
        return

    def take_back(self, step: int) -> bool:
        """Undo what was sent of later steps. False: it can't be, and the run is sent anew, as another attempt."""
        return False

    @abstractmethod
    def close(self, status: str) -> None:
        """End it. status: the run's, or `superseded` where another attempt follows."""


def as_columns(rows: list[Row]) -> tuple[list[str], list[list]]:
    """(names, cells) of a table of rollouts. Token columns (`tokens`, `token_kl`, …) have a list in each cell."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name != "split"]
    return names, [[row.get(name) for name in names] for row in rows]
