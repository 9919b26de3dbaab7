"""The library of Aligner Lab. The import is fast: only the computing modules import torch and Megatron.

With the import, `data`, `cluster` and `widgets` are this project's packages, even if the working folder has folders with the
same names. The installation imports `aligner_lib` when Python starts (setup.py). A notebook's first import therefore also finds
the project's packages.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

__version__ = "0.1.0"

OWN_PACKAGES = ("aligner_lib", "cluster", "data", "widgets")


class OwnPackagesFinder:
    """Finds this project's packages next to `aligner_lib`, before Python searches the working folder."""

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

    @classmethod
    def find_spec(cls, name: str, path=None, target=None) -> ModuleSpec | None:
        """Return the spec of a package in OWN_PACKAGES, and None for every other package. See importlib.abc.MetaPathFinder."""
        return PathFinder.find_spec(name, [cls.folder]) if name in OWN_PACKAGES else None


sys.meta_path.insert(0, OwnPackagesFinder)
