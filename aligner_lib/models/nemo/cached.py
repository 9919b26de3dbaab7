"""A .nemo archive as the start of a training: imported into the cache once, under the hash of its content and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aligner_lib.models.fetch import cache_root, obtain
from aligner_lib.models.hash import archive_hash, files_hash, text_hash
from aligner_lib.models.nemo.source import import_nemo
from aligner_lib.models.nemo.tokenizer import files_beside
from aligner_lib.models.progress import echo_to, show_steps


def imported(path: Path, cache: Path | None = None, progress: bool = True) -> Path:
    """The model folder of an archive. A missing or damaged folder is first imported into the cache.

    Several processes may import an archive at the same time: one process imports, the others wait. Raises the errors of
    import_nemo.
    """
    model = _Archive(path, _hash(path))
    root = Path(cache).expanduser() if cache else cache_root()
    cure = f"run `aligner model import {path} --out FOLDER` and give FOLDER in place of the archive"
    return obtain(str(path), model, root / "nemo" / f"{path.stem}-{model.hash[:12]}", progress, cure)


def _hash(path: Path) -> str:
    """The hash of the archive and of the tokenizer's files beside it."""
    files = files_beside(path)
    return text_hash(archive_hash(path) + files_hash(files)) if files else archive_hash(path)


@dataclass(frozen=True)
class _Archive:
    """The recipe for the archive's model folder."""

    path: Path
    hash: str

    def is_current(self, origin: dict) -> bool:
        return origin.get("archive_hash") == self.hash

    def make(self, name: str, out: Path, progress: bool) -> None:
        echo_to(progress)(f"{name}: imported into {out.parent}")
        origin = {"imported_from": str(self.path.resolve()), "archive_hash": self.hash}
        with show_steps(f"import {self.path.name}", progress) as report:
            import_nemo(self.path, out, report, origin)
