"""A run's adapters (LoRA) alone, as Hugging Face's `peft` loads them onto their base."""

from __future__ import annotations

from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.models.export.trained import Options, Trained
from aligner_lib.models.peft_folder import export_peft


def write(trained: Trained, out: Path, options: Options) -> list[str]:
    """Write a checkpoint's adapters. Raises ValueError for a model without, and for a reward model."""
    if options.dtype is not None:
        raise UserError("--dtype: adapters are exported in their own; --to hf merges and rounds")
    export_peft(trained.folder, out)
    return [
        "load it with peft.PeftModel.from_pretrained(MODEL, FOLDER), MODEL being the one that they were trained on"
    ]
