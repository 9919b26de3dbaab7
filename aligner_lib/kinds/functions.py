"""The functions of a job: the library's functions, or a user's replacements from the settings, with checks of their
results."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from omegaconf import DictConfig
from torch import Tensor

from aligner_lib.config.functions import FunctionFile, library_functions
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import ConfigError, FunctionError

logger = logging.getLogger(__name__)


def functions_of(kind: str, config: DictConfig) -> SimpleNamespace:
    """Return the functions of a run of this kind, by name. Raises ConfigError for a file that can't be used."""
    functions = library_functions(kind)
    for name, use in config.functions.items():
        try:
            file = FunctionFile.read(use, kind_of(kind).functions[name], name)
            function = file.load()
        except ConfigError as error:
            raise ConfigError(f"functions.{name}: {error}") from error
        setattr(functions, name, Watched(name, file, function, getattr(functions, name)))
        logger.info(
            f"functions.{name}: {file.name} of {file.path}, in place of {kind_of(kind).functions[name]}"
        )
    return functions


@dataclass
class Watched:
    """A user's function that replaces a library function. The library function determines the required form of the result.

    Both functions are called. Their results must agree in type, shape, dtype and device, in whether the first result has a
    gradient, and in where numbers are finite. The values come from the user's function. Raises FunctionError with the file and
    the line.
    """

    setting: str
    file: FunctionFile
    function: Callable
    library: Callable

    def __call__(self, *args, **kwargs):
        expected = self.library(*args, **kwargs)
        tensors = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, Tensor)]
        versions = [tensor._version for tensor in tensors]
        try:
            given = self.function(*args, **kwargs)
        except Exception as error:
            line = self.file.line_of(error)
            raise self._error(f"raises {type(error).__name__}: {error}", line) from error
        if versions != [tensor._version for tensor in tensors]:
            raise self._error(
                "changes an input tensor in place: write x = x + y instead of x += y, or clone the tensor"
            )
        if difference := next(_differences(given, expected), None):
            raise self._error(f"returns {difference}")
        return given

    def _error(self, problem: str, line: int | None = None) -> FunctionError:
        line = line or getattr(getattr(self.function, "__code__", None), "co_firstlineno", 1)
        return FunctionError(
            f"{self.file.name} (functions.{self.setting}: {self.file.path}, line {line}) {problem}"
        )


def _differences(given, expected, gradient: bool = True) -> Iterator[str]:
    """List the differences between the form of a result and the form of the library's result."""
    if isinstance(expected, tuple):
        if not isinstance(given, tuple | list) or len(given) != len(expected):
            yield f"{_described(given)}; {_described(expected)} was expected"
            return
        for place, (part, expected_part) in enumerate(zip(given, expected), 1):
            yield from (
                f"{difference} (result {place})"
                for difference in _differences(part, expected_part, gradient=place == 1)
            )
    elif isinstance(expected, Tensor):
        if _described(given) != _described(expected):
            yield f"{_described(given)}; {_described(expected)} was expected"
            return
        odd = expected.isfinite() & ~given.isfinite() if expected.is_floating_point() else torch.zeros(0)
        if odd.any():
            first = tuple(odd.nonzero()[0].tolist())
            yield f"{given[first].item()} at {list(first)} ({int(odd.sum())} of {given.numel()} are not finite)"
        elif gradient and expected.requires_grad and not given.requires_grad:
            yield "a result without a gradient: .detach(), .item() or torch.no_grad() cut it off"
    elif isinstance(expected, float):
        if isinstance(given, bool) or not isinstance(given, int | float):
            yield f"{_described(given)}; a number was expected"
        elif not math.isfinite(given):
            yield f"{given}; a finite number was expected"
    elif not isinstance(given, type(expected)):
        yield f"{_described(given)}; a {type(expected).__name__} was expected"


def _described(value) -> str:
    """A short description, such as `float32 [8, 11]`."""
    if isinstance(value, Tensor):
        where = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{where}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(map(_described, value))}"
    return "None (is a return missing?)" if value is None else f"a {type(value).__name__}"
