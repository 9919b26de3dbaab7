import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest


@pytest.fixture
def write_raw(tmp_path: Path) -> Callable[[Iterable[object]], Path]:
    """Writes records as a raw .jsonl file; bytes go in as they are."""

    def write(records: Iterable[object], name: str = "raw.jsonl") -> Path:
        lines = (record if isinstance(record, bytes) else json.dumps(record).encode() for record in records)
        path = tmp_path / name
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write
