"""Aligner Lab's backing library. Importing it loads nothing heavy: torch and Megatron come with the modules that compute.

Importing it also makes sure that `data`, `cluster` and `widgets` are this project's packages, whatever folders of these
names a user keeps where Python starts. The installation imports it when Python starts (setup.py), so that this holds for a
notebook's first import, too.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

__version__ = "0.1.0"

OWN_PACKAGES = ("aligner_lib", "cluster", "data", "widgets")


class OwnPackagesFinder:
    """Finds this project's packages beside this one, before Python looks for them in the working folder."""

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

    @classmethod
    def find_spec(cls, name: str, path=None, target=None) -> ModuleSpec | None:
        """See importlib.abc.MetaPathFinder. None for every other package."""
        return PathFinder.find_spec(name, [cls.folder]) if name in OWN_PACKAGES else None


sys.meta_path.insert(0, OwnPackagesFinder)
