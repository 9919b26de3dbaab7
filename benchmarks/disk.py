"""Disk speed: format as many pairs as the whole of HH has; save a checkpoint of the laptop model."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

from benchmarks.measure import WaitTimes
from benchmarks.setting import Setting

PAIRS = 160_800
CHECKPOINT = "checkpoint"
FORMAT, SAVE = f"format {PAIRS:,} pairs", "save a checkpoint of SmolLM2-135M with Adam's moments"
AIMS = {FORMAT: 8.0, SAVE: 5.0}


def measure(setting: Setting, say: Callable[[str], None] = print) -> WaitTimes:
    seconds = {
        FORMAT: _times(_formatting(setting.folder), setting.repeats),
        SAVE: _times(
            _saving(setting.folder), setting.repeats, lambda: shutil.rmtree(setting.folder / CHECKPOINT)
        ),
    }
    for what, runs in seconds.items():
        say(f"disk: {min(runs):.2f} s: {what}")
    return WaitTimes("disk", seconds, AIMS)


def _times(
    action: Callable[[], object], repeats: int, clean_up: Callable[[], object] = lambda: None
) -> list[float]:
    """Seconds of each run of an action, without the clean-up after the run."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
        clean_up()
    return seconds


def _formatting(folder: Path) -> Callable[[], object]:
    from data import format_hh, resolve

    sample = b"".join(path.read_bytes() for path in resolve("sample", "hh", split="train").paths)
    raw = folder / "raw.jsonl"
    raw.write_bytes(repeated(sample, PAIRS))
    return lambda: format_hh(raw, folder / "formatted", "train")


def repeated(lines: bytes, count: int) -> bytes:
    """So many lines: the given lines in turn."""
    return b"".join(islice(cycle(lines.splitlines(keepends=True)), count))


def _saving(folder: Path) -> Callable[[], object]:
    from aligner_lib.megatron import parallel
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.model import Numerics
    from aligner_lib.models import fetch
    from aligner_lib.models.architecture import Architecture

    parallel.initialize()
    adam = {"lr": 1e-5, "weight_decay": 0.1, "betas": [0.9, 0.98], "eps": 1e-8}
    engine = Engine(Architecture.load(fetch("smollm2-135m")), Numerics(), optim=adam)
    return lambda: engine.save(folder / CHECKPOINT)
