"""Download a model at a pinned revision from the Hugging Face hub into the hub client's cache. Downloads can be resumed."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from aligner_lib.errors import UserError
from aligner_lib.models.disk import explain_full_disk, is_full

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

ANSWER_SECONDS = 4.0  # timeout for the hub's first answer
FILES = ["config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer.json",
         "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
         "chat_template.jinja", "additional_chat_templates/*.jinja"]  # fmt: skip
# these patterns match second copies of the weights, in another layout
OTHER_FILES = ["consolidated*", "*/*.safetensors*"]
# required besides the weights, whose names are in `sha256`
NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")


class HubRefusal(UserError):
    """The hub answers but does not provide the model: the model does not exist, or this user has no access."""


@dataclass(frozen=True)
class Listing:
    """The hub's description of a repository at a revision."""

    commit: str
    files: tuple[str, ...]
    sha256: dict[str, str]
    """The checksums of the large files."""
    license: str | None

    def needed(self) -> tuple[str, ...]:
        """The names of the files to download."""
        kept = [name for name in self.files if any(fnmatch(name, pattern) for pattern in FILES)]
        return tuple(name for name in kept if not any(fnmatch(name, pattern) for pattern in OTHER_FILES))


def look_up(repo: str, revision: str | None) -> Listing:
    """The content of a repository. revision: a branch, tag or commit, by default the main branch.

    Raises HubRefusal with advice, ConnectionError with a short reason when the hub can't be reached.
    """
    try:
        info = _ask(repo, revision, files_metadata=True)
    except ConnectionError as error:
        raise _refusal(repo, revision, error.__cause__) or error from None
    files = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    sha256 = {name: file.lfs.sha256 for name, file in files.items() if file.lfs is not None}
    license_ = (info.card_data or {}).get("license")
    return Listing(info.sha, tuple(files), sha256, license_ if isinstance(license_, str) else None)


def download_listed(repo: str, listing: Listing, progress: bool) -> Path:
    """Download a listed model (see `download`). Returns its folder. Raises HubRefusal, ConnectionError, DiskFull."""
    needed = listing.needed()
    sha256 = {name: listing.sha256[name] for name in needed if name in listing.sha256}
    try:
        return download(repo, listing.commit, sha256, progress, needed=needed)
    except ConnectionError as error:
        raise _refusal(repo, listing.commit, error.__cause__) or error from None


def _refusal(repo: str, revision: str | None, error: BaseException | None) -> HubRefusal | None:
    """The refusal behind a client's error, with advice for the user; None when the hub has not refused."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    token = "create a token with read access in your settings there and give it as HF_TOKEN=…, or run `hf auth login`"
    if isinstance(error, GatedRepoError):
        return HubRefusal(
            f"{repo} is gated: accept its licence on its page of the hub with your account (some owners take a day to "
            f"answer), then {token}"
        )
    if isinstance(error, RevisionNotFoundError):
        return HubRefusal(f"{repo} has no revision {revision!r}: give one of its branches, tags or commits")
    if isinstance(error, RepositoryNotFoundError):
        return HubRefusal(
            f"the hub has no model {repo}, or it is private: check the name; for a private model, {token}"
        )
    if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403):
        return HubRefusal(f"the hub does not give you access to {repo} ({_short(error)}): {token}")
    return None


def download(
    repo: str, revision: str, sha256: Mapping[str, str], progress: bool, needed: Collection[str] = NEEDED
) -> Path:
    """The folder with a model's files at a revision. Files missing from the hub client's cache are downloaded.

    sha256: expected SHA-256 by file name, for the files to check. needed: further required files. Raises ConnectionError with a
    short reason when the hub cannot provide the files, DiskFull when the disk is full.
    """
    needed = {*needed, *sha256}
    folder = _cached(repo, revision)
    if folder and not _fault(folder, sha256, needed):
        return folder
    _ask(repo, revision)
    # The first try resumes from the cache. The second try replaces files with wrong content.
    fault = None
    for force in (False, True):
        folder = _snapshot_from_hub(repo, revision, progress, force)
        fault = _fault(folder, sha256, needed)
        if fault is None:
            return folder
    raise ConnectionError(fault)


def _fault(folder: Path, sha256: Mapping[str, str], needed: Collection[str]) -> str | None:
    """The fault of a snapshot; None for a good snapshot.

    Another tool may have downloaded only some of the files, or the disk may have corrupted a file.
    """
    for name in sorted(needed):
        if not (folder / name).exists():
            return f"{name} is missing"
    for name, expected in sha256.items():
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != expected:
            return f"{name} has SHA-256 {digest[:12]}… instead of {expected[:12]}…"
    return None


def _snapshot_from_hub(repo: str, revision: str, progress: bool, force: bool) -> Path:
    from huggingface_hub import constants

    with explain_full_disk(Path(constants.HF_HUB_CACHE), "HF_HOME"):
        try:
            with _bars(progress):
                return _snapshot(repo, revision, force_download=force)
        except Exception as error:  # the client's errors have no common base class
            if is_full(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise ConnectionError(_short(error)) from error


def _snapshot(repo: str, revision: str, **options: bool) -> Path:
    from huggingface_hub import snapshot_download

    where = {"allow_patterns": FILES, "ignore_patterns": OTHER_FILES, "endpoint": _endpoint()}
    return Path(snapshot_download(repo, revision=revision, **where, **options))


def _cached(repo: str, revision: str) -> Path | None:
    """The snapshot in the hub client's cache, possibly with missing files; None without a snapshot."""
    try:
        return _snapshot(repo, revision, local_files_only=True)
    except FileNotFoundError:
        return None


def _ask(repo: str, revision: str | None, **options: bool) -> ModelInfo:
    """The hub's description of a revision. Raises ConnectionError unless the hub answers in time and knows the revision.

    The request runs in a thread, because DNS look-ups have no timeout.
    """
    from huggingface_hub import HfApi

    answers: list[ModelInfo | Exception] = []

    def ask() -> None:
        api = HfApi(endpoint=_endpoint())
        try:
            answers.append(api.model_info(repo, revision=revision, timeout=ANSWER_SECONDS, **options))
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not answers:
        raise ConnectionError(f"no answer within {ANSWER_SECONDS:.0f} s")
    if isinstance(answers[0], Exception):
        raise ConnectionError(_short(answers[0])) from answers[0]
    return answers[0]


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT")  # the client reads the variable only once, at import


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
