"""Import a model of another library, in any supported format, into a model folder."""

from __future__ import annotations

from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.models.convert import Progress, import_hf
from aligner_lib.models.nemo.source import import_nemo, is_nemo


def import_model(source: Path, out: Path, progress: Progress | None = None) -> Path:
    """Convert a Hugging Face folder, a .gguf file or a .nemo archive into a new model folder. Returns the folder.

    Raises the errors of `import_hf` and `import_nemo`, UserError for a file that this account can't read.
    """
    try:
        return (import_nemo if is_nemo(source) else import_hf)(source, out, progress)
    except PermissionError as error:
        raise UserError(
            f"{error.filename or source} can't be read ({error.strerror}): ask its owner for the permission to read {source}"
        ) from error
