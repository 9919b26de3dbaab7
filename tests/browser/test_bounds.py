"""A run of a million records: what must stay small stays small."""

import ctypes
import gc
import json

import psutil
from lab import wait_for

from aligner_lib.run_folder.jsonl import JsonlWriter
from widgets import Monitor

MILLION = 1_000_000
HEAP = "() => { window.gc(); return performance.memory.usedJSHeapSize; }"


def write_million(path):
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"kind": "sft", "status": "finished", "name": path.name}))
    with open(path / "metrics.jsonl", "w") as file:
        for step in range(1, MILLION + 1):
            loss = 1e3 if step == 777_777 else 1.5 + (step * 7919 % 1009) / 1e4
            file.write(
                f'{{"step": {step}, "time": {1e9 + step}, "train/loss": {loss}, "train/grad_norm": 1.0, "train/lr": 1e-05}}\n'
            )


def memory() -> int:
    """Bytes of this process, without those that the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def test_a_million_records(show, healthy, tmp_path):
    show(Monitor(healthy))  # loads all modules
    write_million(tmp_path / "long")
    before = memory()
    monitor = Monitor(tmp_path / "long")
    wait_for(lambda: len(monitor._feed.series[0]) == MILLION, "the monitor did not read all records")
    assert memory() - before < 200e6

    desk = show()
    before = desk.page.evaluate(HEAP)
    desk.show(monitor)
    desk.wait(lambda: desk.points() and desk.points()[-1] == MILLION)
    assert desk.page.evaluate(HEAP) - before < 100e6
    assert len(desk.points()) <= 2000
    highest = "() => Math.max(...document.querySelector('.lab-monitor').lab.store.lines.get('0/0/0').y)"
    assert desk.page.evaluate(highest) == 1000, "the one spike among a million is drawn"

    sizes, deliver = [], monitor.send
    monitor.send = lambda content, buffers=(): (
        sizes.append(sum(map(len, buffers))) or deliver(content, buffers)
    )
    JsonlWriter(tmp_path / "long" / "metrics.jsonl").append(
        {"step": MILLION + 1, "time": 3e9, "train/loss": 2.0}
    )
    desk.wait(lambda: desk.points()[-1] == MILLION + 1, "the new record did not come")
    assert max(sizes) < 50_000
