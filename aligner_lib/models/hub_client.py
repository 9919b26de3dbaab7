"""Downloading a pinned model from the Hugging Face hub into the hub client's own cache, where it resumes."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ANSWER_SECONDS = 4.0  # within which the hub has to answer at all
FILES = ["config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
         "chat_template.jinja"]  # fmt: skip


def download(repo: str, revision: str, sha256: Mapping[str, str], progress: bool) -> Path:
    """The folder of a model's files. ConnectionError says in short why the hub could not give them.

    sha256: of the files (by name) whose content is checked.
    """
    folder = _cached(repo, revision)
    if folder is None:
        _ask(repo, revision)
        try:
            with _bars(progress):
                folder = _snapshot(repo, revision)
        except Exception as error:  # the client's errors have no base class of their own
            raise ConnectionError(_short(error)) from error
    for name, expected in sha256.items():
        with (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise ConnectionError(f"{name} came with SHA-256 {found[:12]}… instead of {expected[:12]}…")
    return folder


def _snapshot(repo: str, revision: str, local_files_only: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    options = {"allow_patterns": FILES, "endpoint": _endpoint(), "local_files_only": local_files_only}
    return Path(snapshot_download(repo, revision=revision, **options))


def _cached(repo: str, revision: str) -> Path | None:
    """What an earlier download of anybody's left in the hub client's cache, when it is complete."""
    try:
        return _snapshot(repo, revision, local_files_only=True)
    except FileNotFoundError:
        return None


def _ask(repo: str, revision: str) -> None:
    """Whether the hub answers in time and knows the revision; in a thread, for name look-ups know no timeout."""
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
