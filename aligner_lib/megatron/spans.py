"""Named spans of a step. Any profiler of torch shows them; inside `recording`, their seconds and passes are kept, too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.profiler import record_function


class Pass(Protocol):
    """A pass of tokens through a model, which can be repeated."""

    @property
    def tokens(self) -> int:
        """The tokens that the model read."""

    def repeat(self) -> None:
        """Put the same number of tokens through the model again, without the work around the pass."""


@dataclass
class Span:
    """The time that a step spent under a name, in all spans of this name inside of the same outer span."""

    name: str
    seconds: float = 0.0
    passes: list[Pass] = field(default_factory=list)
    """The passes outside of the inner spans."""
    inner: dict[str, Span] = field(default_factory=dict)

    def all_passes(self) -> list[Pass]:
        """The passes of this span and of its inner spans."""
        return [*self.passes, *(each for span in self.inner.values() for each in span.all_passes())]


_open: ContextVar[Span | None] = ContextVar("open", default=None)
"""The innermost open span; None outside of `recording`."""


@contextmanager
def recording() -> Iterator[Span]:
    """A context manager: inside, all spans of this thread are kept. Gives the span that holds them."""
    root = Span("")
    token = _open.set(root)
    try:
        yield root
    finally:
        _open.reset(token)


@contextmanager
def span(name: str) -> Iterator[None]:
    """A context manager that gives its time a name."""
    outer = _open.get()
    with record_function(name):
        if outer is None:
            yield
            return
        own = outer.inner.setdefault(name, Span(name))
        token, started = _open.set(own), time.perf_counter()
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # else the next span would wait for this span's kernels
            own.seconds += time.perf_counter() - started
            _open.reset(token)


def note(done: Pass) -> None:
    """Keep a pass with the open span. Outside of `recording`, it does nothing."""
    current = _open.get()
    if current is not None:
        current.passes.append(done)
