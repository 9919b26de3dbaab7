"""TensorBoard: event files in the run folder's tensorboard/, written with TensorBoard's own records, without torch.

An event "begun at step N" makes TensorBoard discard the folder's earlier events of step N and later.
"""

from __future__ import annotations

import html
import os
import platform
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from aligner_lib.run_folder.exporters.base import TABLES, LoggedStep, Row, RunRecord, Service, as_columns

MARKS = "|`*_\\["
"""The signs of Markdown that would change a cell's text, or the borders of its row."""
_TEXT = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))


class TensorBoard(Service):
    """Scalars, and rollouts as tables of text."""

    rows = 8

    def open(self, run: RunRecord, noted: list[int]) -> int:
        """Open a new event file after all existing files. The last noted step is written again, because it may be
        incomplete."""
        last = noted[-2] if len(noted) > 1 else -1
        folder = run.path / "tensorboard"
        folder.mkdir(exist_ok=True)
        self._file = open(_next_file(folder), "ab")  # noqa: SIM115  (open as long as the run)
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"))
        self._begin_at(last + 1)
        return last

    def send(self, step: LoggedStep) -> None:
        """Write an event with all metrics and tables."""
        values = [
            Summary.Value(tag=_writable(tag), simple_value=value) for tag, value in step.metrics.items()
        ]
        values += [_text(TABLES.get(split, split), rows) for split, rows in step.rollouts.items()]
        self._write(Event(step=step.step, wall_time=step.time, summary=Summary(value=values)))

    def take_back(self, step: int) -> bool:
        """Write an event that makes readers discard later events."""
        self._begin_at(step + 1)
        return True

    def close(self, status: str) -> None:
        """Close the event file."""
        if (file := getattr(self, "_file", None)) is not None:
            file.close()

    def _begin_at(self, step: int) -> None:
        self._write(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def _write(self, event: Event) -> None:
        event.wall_time = event.wall_time or time.time()
        self._records.write(event.SerializeToString())
        self._file.flush()


def _next_file(folder: Path) -> Path:
    """A path for a new event file. Readers take files in the order of their names, which begin with a time in seconds."""
    taken = [int(path.name.split(".")[3]) for path in folder.glob("events.out.tfevents.*")]
    second = max([int(time.time()), *(other + 1 for other in taken)])
    return folder / f"events.out.tfevents.{second:010d}.{platform.node()}.{os.getpid()}.0"


def _writable(text: str) -> str:
    """A text with the code of half a surrogate pair, which has no UTF-8, in place of the half."""
    return text.encode(errors="backslashreplace").decode()


def _text(name: str, rows: list[Row]) -> Summary.Value:
    text = TensorProto(
        dtype=DT_STRING,
        string_val=[_writable(_as_markdown(rows)).encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    return Summary.Value(tag=f"{name}/text_summary", metadata=_TEXT, tensor=text)


def _as_markdown(rows: list[Row]) -> str:
    """A table in Markdown. A text with line breaks or marks stays in a single cell, and is shown as it is."""
    names, cells = as_columns(rows)
    lines = [" | ".join(map(_cell, row)) for row in cells]
    return "\n".join([" | ".join(names), " | ".join("---" for _ in names), *lines])


def _cell(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
    text = html.escape(text.replace("\r\n", "\n").replace("\r", "\n"))
    return "".join(f"&#{ord(sign)};" if sign in MARKS else sign for sign in text).replace("\n", "<br>")
