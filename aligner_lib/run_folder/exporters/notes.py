"""The notes in the run folder on the steps that a service has received: `exporters/wandb.jsonl`."""

from __future__ import annotations

import json
import uuid
import zlib
from pathlib import Path
from typing import NamedTuple

from aligner_lib.run_folder.jsonl import JsonlReader, JsonlWriter, truncate_after


class Sent(NamedTuple):
    """A step that was sent, and a checksum of its metrics."""

    step: int
    figures: int

    @classmethod
    def of(cls, record: dict) -> Sent:
        """The note for a record of metrics.jsonl. Times and memory do not count: a repeated step has others."""
        figures = {
            name: value
            for name, value in record.items()
            if name != "time" and not name.startswith(("timers/", "memory/")) and not name.endswith("_time")
        }
        return cls(record["step"], zlib.crc32(json.dumps(figures, sort_keys=True).encode()))


class Notes:
    """A JSON Lines file: first the attempt and its id, then a line for each step, written before the step is sent."""

    def __init__(self, path: Path):
        self._path = path
        self._file: JsonlWriter | None = None
        self.id, self.attempt, self.sent = "", 0, []

    def open(self) -> None:
        """Read the notes, or start the first attempt."""
        head, *lines = JsonlReader(self._path).poll() or [{}]
        if head.get("attempt"):
            self.id, self.attempt = head["id"], head["attempt"]
            self.sent = [Sent(line["step"], line["figures"]) for line in lines]
            self._file = JsonlWriter(self._path)
        else:
            self.begin_anew()

    def append(self, sent: Sent) -> None:
        """Note another step."""
        self._file.append(sent._asdict())
        self.sent.append(sent)

    def keep(self, count: int) -> None:
        """Forget all steps except the first `count`."""
        if count < len(self.sent):
            self.close()
            del self.sent[count:]
            truncate_after(self._path, self.sent[-1].step if self.sent else -1)
            self._file = JsonlWriter(self._path)

    def begin_anew(self) -> None:
        """Forget all steps and start another attempt."""
        self.id, self.attempt, self.sent = uuid.uuid4().hex[:8], self.attempt + 1, []
        self.close()
        self._path.unlink(missing_ok=True)
        self._file = JsonlWriter(self._path)
        self._file.append({"step": -1, "attempt": self.attempt, "id": self.id})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
