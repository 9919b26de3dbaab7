"""The binary format of messages with charts: a JSON head and 32-bit floats. wire.js reads the messages in the browser.

4 bytes   length of the head, little-endian
head      JSON; head["lines"] lists {key, fold, keep, count, …}: the browser folds line `key` `fold` times, cuts the line to
          `keep` points, and appends `count` points
floats    count × (x, y, mean) for each line
"""

from __future__ import annotations

import json
import math

import numpy as np


def pack(head: dict, points: list[np.ndarray]) -> bytes:
    """Pack a message. points: for each of head["lines"] an array [count, 3], which is sent as float32."""
    assert len(points) == len(head["lines"]), "an array of points for every line"
    text = json.dumps(finite(head), separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)  # aligns the floats
    floats = [np.ascontiguousarray(p, dtype="<f4").tobytes() for p in points]
    return b"".join([len(text).to_bytes(4, "little"), text, *floats])


def unpack(data: bytes) -> tuple[dict, list[np.ndarray]]:
    """Unpack a message into its head and the points of each line (float32 [count, 3]), like wire.js."""
    end = 4 + int.from_bytes(data[:4], "little")
    head, points = json.loads(data[4:end]), []
    for line in head["lines"]:
        values = np.frombuffer(data, dtype="<f4", count=3 * line["count"], offset=end)
        points.append(values.reshape(-1, 3))
        end += values.nbytes
    return head, points


def finite(value):
    """A copy of a JSON value with NaN and infinities as strings, because JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return value
