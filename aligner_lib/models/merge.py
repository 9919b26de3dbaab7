"""Merge adapters into the weights of their base. The result is a model folder without a base."""

from __future__ import annotations

import shutil
from pathlib import Path

from aligner_lib.models.adapters import AdapterRecord, check_base
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.convert import Progress, write_model_folder
from aligner_lib.models.export.arrays import open_arrays
from aligner_lib.models.export.card import source_of
from aligner_lib.models.export.trained import Trained
from aligner_lib.models.hash import ADAPTERS
from aligner_lib.models.names import weights
from aligner_lib.models.stream import StreamedTensor, write_store

OF_THE_ANCESTOR = ("name", "origin", "license")  # keys of source.json, for the model card
OF_A_RUN = (ADAPTERS, "trainer.json", "source.json")  # files of a checkpoint that do not describe its model


def merge(folder: Path, out: Path, progress: Progress | None = None) -> Path:
    """Merge a checkpoint's adapters into their base, and write a new model folder. Returns the new folder.

    Only one weight at a time is in memory. An adapted weight gets the wider dtype of base and adapter; the other weights keep
    their dtype. progress: called with (weights done, weights in all). Raises ValueError for a folder without adapters, for
    adapters whose base is gone or has changed, and when `out` exists; DiskFull when the disk is full.
    """
    folder, out = Path(folder), Path(out)
    record = AdapterRecord.load(folder)
    if record is None:
        raise ValueError(f"{folder} has no adapters to merge: the folder holds all weights itself")
    check_base(folder)
    arrays = open_arrays(folder)

    def streamed(name: str) -> StreamedTensor:
        return StreamedTensor(name, arrays.dtype(name), arrays.shape(name), lambda: arrays.read(name))

    def write(target: Path) -> None:
        for file in folder.iterdir():
            if file.is_file() and file.name not in OF_A_RUN:
                shutil.copyfile(file, target / file.name)
        names = [weight.megatron for weight in weights(Architecture.load(folder))]
        write_store(target / "weights", [streamed(name) for name in names], progress)

    source = source_of(Trained.find(record.base))
    ancestor = {key: source[key] for key in OF_THE_ANCESTOR if key in source}
    origin = {"merged_from": str(folder.absolute()), "base": str(record.base)}
    return write_model_folder(out, write, ancestor | origin)
