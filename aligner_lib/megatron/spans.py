"""Named spans of a step. Every torch profiler shows them. Inside `recording`, their seconds and passes are kept, too."""

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
        """The number of tokens read by the model."""

    def repeat(self) -> None:
        """Run the model on the same number of tokens again, without the work around the pass."""


@dataclass
class Span:
    """The time of a step in all spans with the same name inside the same outer span."""

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
    """A context manager: inside, all spans of this thread are kept. Yields the root span, which contains them."""
    root = Span("")
    token = _open.set(root)
    try:
        yield root
    finally:
        _open.reset(token)


@contextmanager
def span(name: str) -> Iterator[None]:
    """A context manager: records the time spent inside under a name."""
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
                torch.cuda.synchronize()  # otherwise the next span would wait for this span's kernels
            own.seconds += time.perf_counter() - started
            _open.reset(token)


def note(done: Pass) -> None:
    """Add a pass to the open span. Does nothing outside of `recording`."""
    current = _open.get()
    if current is not None:
        current.passes.append(done)
