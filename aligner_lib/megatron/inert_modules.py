"""Inert modules in place of packages that Megatron Core imports and never uses in a job on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextmanager
def inert_modules(packages: Sequence[str]) -> Iterator[None]:
    """A context manager: inside, an import of these packages or their modules gives an inert module, installed or not. Modules of an
    earlier import stay. Afterwards an import gives the real module again.

    Every name in an inert module is an empty class that accepts all arguments, so `isinstance(value, DTensor)` is False, and
    `@triton.jit` makes an inert object. Modules imported inside keep these classes.
    """
    finder = _InertFinder(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.made:
            del sys.modules[name]
            parent, _, attribute = name.rpartition(".")
            if vars(package := sys.modules.get(parent, finder)).get(attribute):
                delattr(package, attribute)


class _InertModule(ModuleType):
    __version__ = "0"  # older than any release, so comparisons of versions exclude the module

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_InertClass,), {})


class _InertClass:
    def __init__(self, *_, **__):
        pass

    def __call__(self, *_, **__):
        return self


class _InertFinder(MetaPathFinder, Loader):
    """Finds and makes the inert modules. made: the names of all modules made so far."""

    def __init__(self, packages: Sequence[str]):
        self.packages = packages
        self.made: list[str] = []

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{package}.") for package in self.packages):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self.made.append(spec.name)
        return _InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass
