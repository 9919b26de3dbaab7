"""The checkout of the project: the folders only a clone has, the packages of the environment, and the programs to run."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
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


def way_to_install(packages: Iterable[str]) -> str:
    """The advice how to install packages into this environment. packages: with versions, as pip takes packages."""
    stamp = Path(sys.prefix) / "lab.stamp"
    if stamp.exists():
        return f"remove {stamp}, and `./lab doctor` installs the pinned versions"
    return f"run `python -m pip install {shlex.join(packages)}`"


def with_pin(package: str) -> str:
    """A package as pip takes packages, with the version in the project's lock; without a version for an unknown package."""
    with suppress(importlib.metadata.PackageNotFoundError):
        for pin in importlib.metadata.requires("aligner-lab") or ():
            if pin.startswith(f"{package}=="):
                return pin.partition(";")[0].strip()
    return package


def run_module(name: str, arguments: list) -> None:
    """Run `python -m name` in place of this process."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", name, *map(str, arguments)])
