"""A model's fingerprint, fast enough for the start of every run and for every look into the cache."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from aligner_lib.datasets.json_file import key_errors_in, read_object

WHOLE_BYTES = 1 << 23  # a file up to this size is read completely
HEAD_BYTES = 1 << 20  # of a larger file: its beginning (with the safetensors header) ...
SAMPLE_BYTES = 1 << 12  # ... and a sample of this size at every stride, and at its end
STRIDE_BYTES = 1 << 18
ADAPTERS = "adapter.json"  # the record in a folder of adapters; see models.adapters


def model_hash(folder: Path) -> str:
    """32 hex digits that change with a model folder's architecture, tokenizer or weights, and with an adapter's base.

    Large files are sampled: their length, their first MiB, and 4 KiB of every 256 KiB. Therefore the hash takes well under a
    second for any model that fits on a laptop. A truncated or missing file and any training change the hash; a single flipped
    bit may not. The same weights, stored under another parallelism, have another hash.

    Raises FileNotFoundError for a folder without a model.
    """
    folder = Path(folder)
    paths = [folder / name for name in ("model.json", "tokenizer.json", "tokenizer_config.json")]
    paths = [path for path in paths if path.exists()] + sorted((folder / "weights").glob("*.safetensors"))
    if not paths:
        raise FileNotFoundError(
            f"{folder} is not a model folder, because model.json and weights/ are missing"
        )
    files = {path.relative_to(folder).as_posix(): path for path in paths}
    if not (folder / ADAPTERS).exists():
        return _sampled_hash(files)
    record = read_object(folder / ADAPTERS)
    with key_errors_in(folder / ADAPTERS):
        record["base"] = record["base"]["hash"]  # the path of the base does not count
    return _sampled_hash(files, json.dumps(record, sort_keys=True))


def archive_hash(path: Path) -> str:
    """32 hex digits that change with the content of a file, or of the files in a folder, sampled like `model_hash`.

    The file's name and path do not count. Raises OSError for an unreadable file.
    """
    if not path.is_dir():
        return _sampled_hash({"": path})
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return _sampled_hash({file.relative_to(path).as_posix(): file for file in files})


def _sampled_hash(files: dict[str, Path], more: str = "") -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, path in files.items():
        digest.update(f"{name} {path.stat().st_size}\n".encode())
        _sample(path, digest)
    digest.update(more.encode())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """32 hex digits of a file's whole content (BLAKE2b, 16 bytes)."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def files_hash(files: dict[str, Path]) -> str:
    """32 hex digits of the whole contents of several files and of their names. files: name → path."""
    return text_hash("".join(f"{file_hash(path)} {name}\n" for name, path in files.items()))


def text_hash(text: str) -> str:
    """The `file_hash` of a file with this text in UTF-8."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _sample(path: Path, digest) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            digest.update(file.read())
            return
        digest.update(file.read(HEAD_BYTES))
        for start in [*range(HEAD_BYTES, size - SAMPLE_BYTES, STRIDE_BYTES), size - SAMPLE_BYTES]:
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
