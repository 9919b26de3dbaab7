"""A job's functions: the library's own, or those of the user's that its settings name in their place, watched as they run."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from omegaconf import DictConfig
from torch import Tensor

from aligner_lib.config.functions import FunctionFile, own_functions, place_in
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import FunctionError
from aligner_lib.models.hash import file_hash

logger = logging.getLogger(__name__)


def functions_of(kind: str, config: DictConfig) -> SimpleNamespace:
    """What a run of this kind computes with, by name. Raises ConfigError for a file that can't be used."""
    functions = own_functions(kind)
    for name, use in config.functions.items():
        file = FunctionFile.read(use, kind_of(kind).functions[name])
        setattr(functions, name, Watched(name, file, file.load(), getattr(functions, name)))
        logger.info(
            f"functions.{name}: {file.name} of {file.path}, in place of {kind_of(kind).functions[name]}"
        )
    return functions


def hashes_of_functions(config: DictConfig) -> dict[str, str]:
    """Of the files that a run's functions and its environments come from, by setting: a run does not go on with others."""
    used = {f"functions.{name}": use for name, use in (config.get("functions") or {}).items()}
    for name, environment in ((config.get("model") or {}).get("environments") or {}).items():
        if ".py" in (environment.get("use") or ""):
            used[f"model.environments.{name}.use"] = environment["use"]
    return {key: file_hash(place_in(use)[0]) for key, use in used.items()}


@dataclass
class Watched:
    """A function of the user's in place of the library's own, which says what it has to return.

    Both are called: results are compared in kind, shape, dtype and device, in whether a gradient goes through the first
    one, and in where numbers are finite. Their values are the user's. Raises FunctionError, with the file and the line.
    """

    setting: str
    file: FunctionFile
    function: Callable
    own: Callable

    def __call__(self, *args, **kwargs):
        expected = self.own(*args, **kwargs)
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        versions = [one._version for one in tensors]
        try:
            given = self.function(*args, **kwargs)
        except Exception as error:
            raise self._error(f"raises {type(error).__name__}: {error}", self._line(error)) from error
        if versions != [one._version for one in tensors]:
            raise self._error(
                "changes a tensor that it was given: write x = x + y in place of x += y, or clone it"
            )
        if wrong := next(_differences(given, expected), None):
            raise self._error(f"returns {wrong}")
        return given

    def _line(self, error: Exception) -> int | None:
        frames = traceback.extract_tb(error.__traceback__)
        return next((one.lineno for one in reversed(frames) if one.filename == self.file.path), None)

    def _error(self, what: str, line: int | None = None) -> FunctionError:
        line = line or getattr(getattr(self.function, "__code__", None), "co_firstlineno", 1)
        return FunctionError(
            f"{self.file.name} (functions.{self.setting}: {self.file.path}, line {line}) {what}"
        )


def _differences(given, expected, gradient: bool = True) -> Iterator[str]:
    """What of a result is not as the library's own."""
    if isinstance(expected, tuple):
        if not isinstance(given, tuple | list) or len(given) != len(expected):
            yield f"{_described(given)}; {_described(expected)} was expected"
            return
        for place, (one, other) in enumerate(zip(given, expected), 1):
            yield from (
                f"{wrong} (result {place})" for wrong in _differences(one, other, gradient=place == 1)
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
            yield "a result without a gradient: .detach(), .item() or torch.no_grad() has cut it off"
    elif isinstance(expected, float):
        if isinstance(given, bool) or not isinstance(given, int | float):
            yield f"{_described(given)}; a number was expected"
        elif not math.isfinite(given):
            yield f"{given}; a finite number was expected"
    elif not isinstance(given, type(expected)):
        yield f"{_described(given)}; a {type(expected).__name__} was expected"


def _described(value) -> str:
    """As in `float32 [8, 11]`."""
    if isinstance(value, Tensor):
        where = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{where}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(map(_described, value))}"
    return "None (is a return missing?)" if value is None else f"a {type(value).__name__}"
