"""Weights & Biases: online where there is a key, else into the run folder's wandb/, which `wandb sync` sends later.

Steps can only be added, and an offline run can't be continued: its file is written anew, whole.
"""

from __future__ import annotations

import json
import os

import wandb

from aligner_lib.run_folder.exporters.base import TABLES, Row, RunRecord, Service, Step, as_columns

PROJECT = "aligner-lab"


class Wandb(Service):
    """Metrics as history, rollouts as tables."""

    def __init__(self):
        self._run = None

    def open(self, run: RunRecord, noted: list[int]) -> int:
        """Begin, or online resume the run, whose server knows its last step."""
        offline = _is_offline()
        options = run.options
        name = options.get("name") or run.name
        self._run = wandb.init(
            project=options.get("project") or PROJECT,
            name=name if run.attempt == 1 else f"{name} ({run.attempt})",
            id=run.id,
            group=run.name,
            config=run.config,
            dir=str(run.path),
            mode="offline" if offline else "online",
            resume=None if offline else "allow",
            settings=wandb.Settings(x_disable_stats=True, console="off", silent=True, save_code=False),
        )
        return -1 if offline else self._run.step - 1

    def send(self, step: Step) -> None:
        """One row of history."""
        tables = {TABLES.get(split, split): _table(rows) for split, rows in step.rollouts.items()}
        self._run.log(step.metrics | tables | {"_timestamp": step.time}, step=step.step)

    def close(self, status: str) -> None:
        """Wait until all is sent, or written."""
        if self._run is not None:
            self._run.finish(exit_code=int(status in ("failed", "lost")))


def _is_offline() -> bool:
    return os.environ.get("WANDB_MODE") == "offline" or not wandb.setup().settings.api_key


def _table(rows: list[Row]) -> wandb.Table:
    names, cells = as_columns(rows)
    cells = [
        [json.dumps(cell, ensure_ascii=False) if isinstance(cell, dict) else cell for cell in row]
        for row in cells
    ]
    return wandb.Table(columns=names, data=cells, allow_mixed_types=True)
