"""A .nemo archive of a policy or of a reward model, which NeMo-Aligner can restore."""

from __future__ import annotations

from pathlib import Path

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.models.architecture import RopeScaling
from aligner_lib.models.export.hf import date_notes, dtype_named
from aligner_lib.models.export.trained import Options, Trained
from aligner_lib.models.nemo.export import write_nemo
from aligner_lib.models.nemo.tokenizer import SENTENCEPIECE


def write(trained: Trained, out: Path, options: Options) -> list[str]:
    """Write a new archive. Returns notes for the user.

    Raises the errors of `write_nemo`, UserError for an unknown dtype and for a name that the importer would not recognise.
    """
    if options.place.suffix != ".nemo":
        place = options.place
        raise UserError(f"--out {place}: an archive's name must end in .nemo: give --out {place}.nemo")
    write_nemo(trained.folder, trained.weights, out, dtype_named(options.dtype), options.progress)
    notes = date_notes(Tokenizer(trained.folder))
    scaling = trained.architecture.rope_scaling
    if scaling and scaling.kind == "llama3" and scaling != RopeScaling("llama3", 8.0):
        notes.append(
            "NeMo before its pull request 11807 scales positions by Llama 3.1's numbers and ignores the archive's (factor "
            f"{scaling.factor:g}, frequencies {scaling.low_frequency_factor:g} to {scaling.high_frequency_factor:g}, "
            f"{scaling.original_positions} positions): restore the archive with a later NeMo"
        )
    if (trained.folder / SENTENCEPIECE).exists():
        return notes
    return [
        *notes,
        "NeMo reads this tokenizer from a folder: unpack tokenizer.json and tokenizer_config.json from the archive and set "
        "model.tokenizer.type=FOLDER",
    ]
