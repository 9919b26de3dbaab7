"""Weights & Biases: online where there is a key, else into the run folder's wandb/, which `wandb sync` sends later.

Steps can only be added, and an offline run can't be continued: its file is written anew, whole.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import wandb

from aligner_lib.run_folder.exporters.base import TABLES, Row, RunRecord, Service, Step, as_columns

logger = logging.getLogger(__name__)

PROJECT = "aligner-lab"
PROBE_BYTES = 1 << 17  # more than is on the way to the disk between two steps


class Wandb(Service):
    """Metrics as history, rollouts as tables."""

    def __init__(self):
        self._run = None

    def open(self, run: RunRecord, noted: list[int]) -> int:
        """Begin, or online resume the run, whose server knows its last step."""
        try:
            self._run = _begin(run, os.environ.get("WANDB_MODE", "online"))
        except wandb.errors.UsageError as error:  # no key
            logger.warning("%s It is written into %s", error, run.path / "wandb")
            self._run = _begin(run, "offline")
        return -1 if self._run.offline else self._run.step - 1

    def send(self, step: Step) -> None:
        """One row of history."""
        tables = {TABLES.get(split, split): _table(rows) for split, rows in step.rollouts.items()}
        self._run.log(step.metrics | tables | {"_timestamp": step.time}, step=step.step)

    def flush(self) -> None:
        """Raise OSError where the offline file's disk is full: its writer, another process, tells that to its log alone."""
        if self._run.offline:
            probe = Path(self._run.dir) / ".room"
            try:
                probe.write_bytes(bytes(PROBE_BYTES))
            finally:
                probe.unlink(missing_ok=True)

    def close(self, status: str) -> None:
        """Wait until all is sent, or written."""
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
