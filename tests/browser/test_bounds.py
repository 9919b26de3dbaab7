"""A million records, and many monitors: what must stay small stays small."""

import asyncio
import json
import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from lab import wait_for
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

MILLION = 1_000_000
# tornado gives up after 20 s, and a kernel may take longer to start on a busy machine
PATIENT = {"connect_timeout": 120, "request_timeout": 120}
ATTACH = """
import time, psutil
from widgets import Monitor
import widgets.figures.static_figure
memory = psutil.Process().memory_info().rss
monitor = Monitor({path!r})
"""
MEASURE = """
while len(monitor._feed.series[0]) < {count}: time.sleep(0.05)
import ctypes, gc
gc.collect()
ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps for later differs between machines
grown = psutil.Process().memory_info().rss - memory
import json
from pathlib import Path
from aligner_lib.run_folder.jsonl import JsonlWriter
writer, sizes, send = JsonlWriter(Path({path!r}) / "metrics.jsonl"), [], monitor.send
def weigh(content, buffers=()):
    sizes.append(sum(map(len, buffers)))
    send(content, buffers)
monitor.send = weigh
step = {count}
while len(sizes) < 2:
    step += 1
    writer.append({{"step": step, "time": 2e9 + step, "train/loss": 2.0, "train/grad_norm": 1.0, "train/lr": 1e-5}})
    time.sleep(0.05)
while len(monitor._feed.series[0]) < step: time.sleep(0.05)
print(json.dumps({{"grown": grown, "largest": max(sizes), "last": step}}))
"""
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


def test_a_million_records(page, tmp_path):
    path = tmp_path / "long"
    write_million(path)
    page.lab.write(
        "million.ipynb",
        ATTACH.format(path=str(path)),
        "monitor",
        MEASURE.format(path=str(path), count=MILLION),
    )
    page.open("million.ipynb")
    before = page.page.evaluate(HEAP)
    page.run_all()
    page.page.wait_for_selector(".lab-widget")
    printed = page.page.locator(".jp-OutputArea-output pre", has_text='"grown"')
    printed.wait_for()
    figures = json.loads(printed.inner_text())
    print(figures, "heap", page.page.evaluate(HEAP) - before)
    assert figures["grown"] < 200e6
    assert figures["largest"] < 50_000
    assert page.page.evaluate(HEAP) - before < 100e6
    wait_for(lambda: page.points()[-1] == figures["last"])
    assert len(page.points()) <= 2000
    spike = "() => Math.max(...document.querySelector('.lab-monitor').lab.store.lines.get('0/0/0').y)"
    assert page.page.evaluate(spike) == 1000, "the one spike among a million is drawn"


def test_several_monitors_and_notebooks_flood_nothing(page, trainer):
    """Six monitors in one notebook, and a monitor in each of three more kernels, all on one server."""
    run = trainer("run", kind="sft", steps=20_000, seconds=0.05)
    cell = f"from widgets import Monitor\nMonitor({str(run.path)!r})"
    page.show("six.ipynb", *[cell] * 6)
    wait_for(lambda: page.page.locator(".lab-monitor").count() == 6)
    with ThreadPoolExecutor(1) as thread:  # Playwright has an event loop running in this one
        spans = thread.submit(asyncio.run, time_messages(page.lab, cell, notebooks=3, messages=12)).result()
    # each kernel may send two messages a second and four more; a busy machine only makes the spans longer
    assert len(spans) == 3 and all(span >= (12 - 4) / 2 for span in spans), spans
    known = len(page.points(monitor=5))
    wait_for(lambda: len(page.points(monitor=5)) > known + 40, "the six stand still")
    assert "rate exceeded" not in page.lab.server_log()


async def time_messages(lab, cell: str, notebooks: int, messages: int) -> list[float]:
    """Seconds in which each of so many kernels sends so many widget messages through the server."""
    kernels = [
        json.loads(await call(lab, "/api/kernels", "POST", '{"name": "python3"}'))["id"]
        for _ in range(notebooks)
    ]
    sockets = [await run_cell(lab, kernel, cell) for kernel in kernels]
    for socket in sockets:
        while (await header_of_next(socket))["msg_type"] != "execute_result":
            pass
    spans = await asyncio.gather(*[time_comms(socket, messages) for socket in sockets])
    for kernel in kernels:
        await call(lab, f"/api/kernels/{kernel}", "DELETE")
    return spans


async def call(lab, path: str, method: str, body: str | None = None) -> bytes:
    headers = {"Authorization": f"token {lab.token}"}
    request = HTTPRequest(lab.url + path, method=method, headers=headers, body=body, **PATIENT)
    return (await AsyncHTTPClient().fetch(request)).body


async def run_cell(lab, kernel: str, code: str):
    """A web socket to a kernel that runs the cell."""
    url = f"{lab.url.replace('http', 'ws')}/api/kernels/{kernel}/channels?token={lab.token}"
    socket = await websocket_connect(HTTPRequest(url, **PATIENT))  # opens once the kernel answers
    header = {
        "msg_id": "a",
        "msg_type": "execute_request",
        "session": "many",
        "username": "",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    await socket.write_message(json.dumps(message))
    return socket


async def header_of_next(socket) -> dict:
    """The next message's header. With buffers a message is bytes: a number of offsets, the offsets, then the JSON."""
    message = await asyncio.wait_for(socket.read_message(), 120)
    if isinstance(message, bytes):
        _, start, end = struct.unpack_from("!III", message)
        message = message[start:end]
    return json.loads(message)["header"]


async def time_comms(socket, messages: int) -> float:
    """Seconds from now to the last of the next so many widget messages, by their own dates.

    Messages that have waited on the wire are older than now, and don't count.
    """
    start, sent = datetime.now(UTC), []
    while len(sent) < messages:
        header = await header_of_next(socket)
        date = datetime.fromisoformat(header["date"])
        if header["msg_type"] == "comm_msg" and date >= start:
            sent.append(date)
    return (sent[-1] - start).total_seconds()
