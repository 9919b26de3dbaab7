"""The checkout of the project: the folders that only a clone has, and the programs that run in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from aligner_lib.errors import UserError

ROOT = Path(__file__).resolve().parents[2]  # contains notebooks/, tests/ and benchmarks/


def folder_of_checkout(name: str) -> Path:
    """Return a folder of the checkout. Raises UserError if the project was installed without the folder."""
    if not (ROOT / name).is_dir():
        raise UserError(
            f"{ROOT} has no {name}/: the command works only in a clone of the project, so install the clone with "
            "pip install -e ."
        )
    return ROOT / name


def run_module(name: str, arguments: list) -> None:
    """Run `python -m name` in place of this process."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", name, *map(str, arguments)])
