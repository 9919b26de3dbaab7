"""Wall-clock seconds of named stages, as the metrics `timers/…` and as spans in a profiler's trace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from aligner_lib.megatron.spans import span


class Timers:
    """`with timers("generate"):` adds the seconds of the block to `timers.seconds["timers/generate"]`."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        with span(name):
            yield
        key = f"timers/{name}"
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - started
