"""Only the adapters (LoRA) of a run, for Hugging Face's `peft`, which loads adapters onto their base."""

from __future__ import annotations

from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.models.adapters import AdapterRecord
from aligner_lib.models.export.hf import write as write_hf
from aligner_lib.models.export.trained import Options, Trained
from aligner_lib.models.peft_folder import export_peft, name_of_base

BASE = "base"  # the subfolder for the adapters' base, if the hub does not have the base


def write(trained: Trained, out: Path, options: Options) -> list[str]:
    """Write a checkpoint's adapters, and their base if the hub does not have the base. Returns notes for the user.

    Raises ValueError for a model without adapters and for a reward model, UserError when options.dtype is set.
    """
    if options.dtype is not None:
        raise UserError("--dtype: adapters are exported in their own dtype; --to hf merges them and rounds")
    record = AdapterRecord.load(trained.folder)
    base = name_of_base(record.base) if record else None
    if record is None or base:
        export_peft(trained.folder, out, base)
        return [f"load it with peft.AutoPeftModelForCausalLM.from_pretrained(FOLDER), which fetches {base}"]
    export_peft(trained.folder, out, str((options.place or out) / BASE))
    write_hf(Trained.find(record.base), out / BASE, options)
    return [
        "load it with peft.AutoPeftModelForCausalLM.from_pretrained(FOLDER): the adapters' base is in the subfolder "
        f"{BASE}/, whose path is in adapter_config.json. Change base_model_name_or_path there when you move the folder"
    ]
