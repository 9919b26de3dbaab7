"""Import a model of another library, in any supported format, into a model folder."""

from __future__ import annotations

from pathlib import Path

from aligner_lib.models.convert import Progress, import_hf
from aligner_lib.models.nemo.source import import_nemo, is_nemo


def import_model(source: Path, out: Path, progress: Progress | None = None) -> Path:
    """Convert a Hugging Face folder, a .gguf file or a .nemo archive into a new model folder. Returns the folder.

    Raises the errors of `import_hf` and `import_nemo`.
    """
    return (import_nemo if is_nemo(source) else import_hf)(source, out, progress)
