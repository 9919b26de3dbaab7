"""Compile the modules of the commands to bytecode: `python -m aligner_lib.cli.bytecode`, the end of `./lab`'s set-up.

The environment has 17,000 modules, and the commands import 4,000. Python keeps the bytecode of each imported module, so importing
the 4,000 is the whole work.
"""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

PROJECT = ("aligner_lib", "cluster", "data", "widgets")
TOOLS = (
    "ipykernel.kernelapp",
    "jupyterlab.labapp",
    "nbconvert.exporters",
    "papermill",
    "pytriton.client",
    "pytriton.triton",
    "transformers.models.auto.tokenization_auto",
)
"""Modules that notebooks, servers and jobs import inside of functions."""


def project_modules(root: Path) -> Iterator[str]:
    """Names of the project's modules under `root`, except programs (`__main__`)."""
    for package in PROJECT:
        for path in sorted((root / package).rglob("*.py")):
            if path.stem != "__main__":
                yield ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def import_all(names: Iterable[str]) -> None:
    """Import each module. A module whose import fails, for example for want of an extra, is left out."""
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


if __name__ == "__main__":
    import_all([*project_modules(Path(__file__).parents[2]), *TOOLS])
