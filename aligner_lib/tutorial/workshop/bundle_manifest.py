"""Validation of a bundle's manifest. A bundle comes from another machine, so every name is checked before use.

Like `bundle.py`, this module imports only the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

NAME_BYTES = 255  # the longest file name on Linux
FIELDS = {  # field: pattern. Messages contain these values, and some messages are commands for the user to run.
    "python": r"3\.\d{1,2}",
    "platform": r"[\w.-]+",
    "lock": r"\w+",
    "sources": r"\w+",
    "commit": r"[0-9a-f]{7,64}",
    "profile": r"\w[\w-]*",
    "model": r"\w[\w.-]*",
}


class BadManifest(ValueError):
    """The manifest was not written by this project. The message has the wrong value and the reason."""


def read_manifest(text: bytes, version: int) -> dict:
    """Parse and check a manifest. Raises BadManifest.

    Every file must have a relative path of plain names, a size in bytes and a SHA-256. Every run must have a plain name, and a
    run.json among the files.
    """
    try:
        manifest = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"the file is no bundle: its manifest can't be read ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != version:
        raise BadManifest("the bundle has another format than the project reads: pack the bundle anew")
    for field, pattern in FIELDS.items():
        _require(
            isinstance(manifest.get(field), str) and re.fullmatch(pattern, manifest[field], re.ASCII),
            f"{field}={manifest.get(field)!r}",
        )
    _check_files(manifest.get("files"))
    runs = manifest.get("runs")
    _require(isinstance(runs, list) and all(isinstance(run, str) for run in runs), f"runs={runs!r}")
    _require(len(set(runs)) == len(runs), f"runs={runs!r}: a run stands there twice")
    for run in runs:
        _require(is_plain_name(run), f"the run {run!r}")
        _require(f"recorded/{run}/run.json" in manifest["files"], f"the run {run!r} without a run.json")
    return manifest


def is_plain_name(name: str) -> bool:
    """Whether a text is a valid name of a single file or folder on any system: no path, no drive, no invisible characters."""
    return (
        name.isprintable()
        and 0 < len(name.encode()) <= NAME_BYTES
        and name not in (".", "..")
        and not set(name) & set("/\\:")
    )


def _check_files(files: object) -> None:
    _require(isinstance(files, dict), "no list of files")
    for name, listed in files.items():
        _require(all(is_plain_name(part) for part in name.split("/")), f"a file named {name!r}")
        size = listed.get("size") if isinstance(listed, dict) else None
        digest = listed.get("sha256") if isinstance(listed, dict) else None
        _require(type(size) is int and size >= 0, f"{name}: size={size!r}")
        _require(
            isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest), f"{name}: sha256={digest!r}"
        )
    for name in files:
        above = name
        while above := above.rpartition("/")[0]:
            _require(above not in files, f"{above!r} as a file and as a folder")


def _unique(pairs: Iterable[tuple[str, object]]) -> dict:
    """A JSON object. Raises ValueError for a duplicate key, because JSON readers disagree on the value that counts."""
    pairs = list(pairs)
    read = dict(pairs)
    if len(read) != len(pairs):
        raise ValueError("a name occurs twice")
    return read


def _require(condition: object, value: str) -> None:
    if not condition:
        raise BadManifest(f"a bundle may not hold {value[:200]}: another program packed the file")
