"""Download a pinned model from the Hugging Face hub into the hub client's cache, which can resume."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from aligner_lib.models.disk import is_full, told_when_full

ANSWER_SECONDS = 4.0  # timeout for a first answer of the hub
FILES = ["config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
         "chat_template.jinja"]  # fmt: skip
NEEDED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)  # beside the weights, which `sha256` names


def download(repo: str, revision: str, sha256: Mapping[str, str], progress: bool) -> Path:
    """The folder with a model's files at a revision, downloaded if the hub client's cache lacks them.

    sha256: expected SHA-256 by file name, for the files to check. Raises ConnectionError with a short reason
    when the hub cannot provide the files, DiskFull when the disk is full.
    """
    folder = _cached(repo, revision)
    if folder and not _fault(folder, sha256):
        return folder
    _ask(repo, revision)
    # The first try resumes from the cache; the second replaces files whose content is wrong.
    fault = None
    for force in (False, True):
        folder = _snapshot_from_hub(repo, revision, progress, force)
        fault = _fault(folder, sha256)
        if fault is None:
            return folder
    raise ConnectionError(fault)


def _fault(folder: Path, sha256: Mapping[str, str]) -> str | None:
    """What is wrong with a snapshot, or None.

    Another tool may have downloaded only some of its files, or the disk may have corrupted one.
    """
    for name in (*NEEDED, *sha256):
        if not (folder / name).exists():
            return f"{name} is missing"
    for name, expected in sha256.items():
        with (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            return f"{name} came with SHA-256 {found[:12]}… instead of {expected[:12]}…"
    return None


def _snapshot_from_hub(repo: str, revision: str, progress: bool, force: bool) -> Path:
    from huggingface_hub import constants

    with told_when_full(Path(constants.HF_HUB_CACHE), "HF_HOME"):
        try:
            with _bars(progress):
                return _snapshot(repo, revision, force_download=force)
        except Exception as error:  # the client's errors have no base class of their own
            if is_full(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise ConnectionError(_short(error)) from error


def _snapshot(repo: str, revision: str, **options: bool) -> Path:
    from huggingface_hub import snapshot_download

    where = {"allow_patterns": FILES, "endpoint": _endpoint()}
    return Path(snapshot_download(repo, revision=revision, **where, **options))


def _cached(repo: str, revision: str) -> Path | None:
    """The snapshot in the hub client's cache, or None; it may lack files."""
    try:
        return _snapshot(repo, revision, local_files_only=True)
    except FileNotFoundError:
        return None


def _ask(repo: str, revision: str) -> None:
    """Raises ConnectionError unless the hub answers in time and knows the revision.

    The request runs in a thread, because DNS look-ups have no timeout.
    """
    from huggingface_hub import HfApi

    errors: list[Exception | None] = []

    def ask() -> None:
        try:
            HfApi(endpoint=_endpoint()).model_info(repo, revision=revision, timeout=ANSWER_SECONDS)
            errors.append(None)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not errors:
        raise ConnectionError(f"no answer within {ANSWER_SECONDS:.0f} s")
    if errors[0] is not None:
        raise ConnectionError(_short(errors[0])) from errors[0]


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT")  # the client reads it only once, when it is imported


@contextmanager
def _bars(shown: bool) -> Iterator[None]:
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
