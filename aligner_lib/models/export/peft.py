"""Only the adapters (LoRA) of a run, for Hugging Face's `peft`, which loads adapters onto their base."""

from __future__ import annotations

from pathlib import Path

from aligner_lib.datasets.json_file import read_object
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.models.adapters import AdapterRecord
from aligner_lib.models.export.hf import date_notes, write_template, write_tokenizer
from aligner_lib.models.export.hf import write as write_hf
from aligner_lib.models.export.trained import Options, Trained
from aligner_lib.models.peft_folder import export_peft, name_of_base

BASE = "base"  # the subfolder for the adapters' base, if the hub does not have the base


def write(trained: Trained, out: Path, options: Options) -> list[str]:
    """Write a checkpoint's adapters and tokenizer, and their base if the hub does not have the base. Returns notes for the user.

    Raises ValueError for a model without adapters and for a reward model, UserError when options.dtype is set.
    """
    if options.dtype is not None:
        raise UserError("--dtype: adapters are exported in their own dtype; --to hf merges them and rounds")
    record = AdapterRecord.load(trained.folder)
    base = name_of_base(record.base) if record else None
    place = base or str((options.place or out) / BASE)
    export_peft(trained.folder, out, place)
    tokenizer = Tokenizer(trained.folder)
    write_tokenizer(tokenizer, out)
    notes = date_notes(tokenizer)
    if base:
        return [
            *notes,
            f"load it with peft.AutoPeftModelForCausalLM.from_pretrained(FOLDER), which fetches {base}",
        ]
    write_hf(Trained.find(record.base), out / BASE, options)
    # the base's own template may differ from the template that the adapters were trained on
    if template := read_object(out / "tokenizer_config.json").get("chat_template"):
        write_template(out / BASE, template)
    return [
        *notes,
        "load it with peft.AutoPeftModelForCausalLM.from_pretrained(FOLDER): the adapters' base is in the subfolder "
        f"{BASE}/, whose path is in adapter_config.json. Change base_model_name_or_path there when you move the folder",
    ]
