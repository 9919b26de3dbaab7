"""Weights & Biases: online with a key, else into the run folder's wandb/, which `wandb sync` sends later.

Steps can only be added, and an offline run can't be continued: its file is written again from the start.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import wandb

from aligner_lib.run_folder.exporters.base import TABLES, LoggedStep, Row, RunRecord, Service, as_columns

logger = logging.getLogger(__name__)

PROJECT = "aligner-lab"
PROBE_BYTES = 1 << 17  # more than wandb writes to the disk between two steps


class Wandb(Service):
    """Metrics as history, rollouts as tables."""

    def __init__(self):
        self._run = None

    def open(self, run: RunRecord, noted: list[int]) -> int:
        """Start the run, or resume an online run. The server of an online run knows its last step."""
        try:
            self._run = _begin(run, os.environ.get("WANDB_MODE", "online"))
        except wandb.errors.UsageError as error:  # there is no key
            logger.warning("%s It is written into %s", error, run.path / "wandb")
            self._run = _begin(run, "offline")
        return -1 if self._run.offline else self._run.step - 1

    def send(self, step: LoggedStep) -> None:
        """Log a row of history with the metrics and tables."""
        tables = {TABLES.get(split, split): _table(rows) for split, rows in step.rollouts.items()}
        self._run.log(step.metrics | tables | {"_timestamp": step.time}, step=step.step)

    def flush(self) -> None:
        """Raise OSError if the disk of an offline file is full. The file's writer is another process, which only logs such an
        error."""
        if self._run.offline:
            probe = Path(self._run.dir) / ".room"
            try:
                probe.write_bytes(bytes(PROBE_BYTES))
            finally:
                probe.unlink(missing_ok=True)

    def close(self, status: str) -> None:
        """Wait until everything is sent or written."""
        if self._run is not None:
            self._run.finish(exit_code=int(status in ("failed", "lost")))
            self.flush()


def _begin(run: RunRecord, mode: str) -> wandb.Run:
    name = run.options.get("name") or run.name
    return wandb.init(
        project=run.options.get("project") or PROJECT,
        name=name if run.attempt == 1 else f"{name} ({run.attempt})",
        id=run.id,
        group=run.name,
        config=run.config,
        dir=str(run.path),
        mode=mode,
        resume="allow" if mode == "online" else None,
        settings=wandb.Settings(x_disable_stats=True, console="off", silent=True, save_code=False),
    )


def _table(rows: list[Row]) -> wandb.Table:
    names, cells = as_columns(rows)
    cells = [
        [json.dumps(cell, ensure_ascii=False) if isinstance(cell, dict) else cell for cell in row]
        for row in cells
    ]
    return wandb.Table(columns=names, data=cells, allow_mixed_types=True)
