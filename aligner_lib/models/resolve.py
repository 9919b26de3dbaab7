"""Find the model folder for a user's input: a model name, a model folder, a checkpoint or a run."""

from __future__ import annotations

from pathlib import Path

from aligner_lib.models.adapters import check_base
from aligner_lib.models.download import HubModel
from aligner_lib.models.fetch import MODELS, changed_folder, fetch, is_cached
from aligner_lib.models.nemo.cached import imported
from aligner_lib.models.nemo.source import is_nemo
from aligner_lib.models.peft_folder import refused_as_model
from aligner_lib.run_folder.reader import RunFolder

BEST = "@best"


def resolve(name_or_path: str | Path) -> Path:
    """The model folder for a model name (downloaded if necessary), a model folder, a checkpoint, a run or a .nemo archive.

    A run stands for its latest checkpoint, and RUN@best for its best checkpoint by save_best. An archive is imported into the
    cache once. ORG/NAME[@REVISION] stands for a fetched model of the hub: a mistyped path never leads to a request to the hub.
    Raises ValueError with the tried folders, or with the missing base of adapters (see models.adapters).
    """
    if str(name_or_path) in MODELS:
        return fetch(str(name_or_path))
    path = Path(name_or_path).expanduser()
    if is_nemo(path) and path.exists():
        return imported(path)
    if path.name.endswith(BEST) and (run := path.with_name(path.name.removesuffix(BEST))).is_dir():
        path = _best(RunFolder(run))
    if not path.is_dir():
        if is_cached(str(name_or_path)):
            return fetch(str(name_or_path))
        if changed := changed_folder(str(name_or_path)):
            raise ValueError(
                f"the model {path} in {changed} is damaged or has changed since it was fetched: copy the folder and give the path of the copy, or "
                f"make the model anew, without the changes: aligner model fetch {path}"
            )
        state = "is not a folder" if path.exists() else "does not exist"
        of_hub = f"; for a model of the hub: aligner model fetch {path}" if HubModel.named(str(path)) else ""
        raise ValueError(f"{path} {state}, and the named models are {', '.join(map(repr, MODELS))}{of_hub}")
    tried = []
    for folder in _candidates(path):
        tried.append(folder)
        if (folder / "model.json").exists():
            check_base(folder)
            return folder
    if refusal := refused_as_model(path):
        raise ValueError(refusal)
    is_of_hf = (path / "config.json").exists()
    cure = f"; for a Hugging Face folder: aligner model import {path} --out FOLDER" if is_of_hf else ""
    raise ValueError(
        f"{path} is not a model, checkpoint or run: there is no model.json in {', '.join(map(str, tried))}{cure}"
    )


def _candidates(path: Path) -> list[Path]:
    checkpoint = RunFolder(path).latest_checkpoint()
    return [path, checkpoint or path / "checkpoints" / "step_*"]


def _best(run: RunFolder) -> Path:
    """The best checkpoint of a run. Raises ValueError when there is none."""
    if (checkpoint := run.best_checkpoint()) is None:
        raise ValueError(
            f"{run.path} has no best checkpoint: exp_manager.checkpoint_callback_params.save_best was not set, or no "
            "validation was better than the validation before the first step"
        )
    return checkpoint
