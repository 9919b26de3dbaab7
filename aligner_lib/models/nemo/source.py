"""Import a .nemo archive into a model folder, one weight at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aligner_lib.datasets.chat_template import record_plain_template
from aligner_lib.models.convert import fit_tokenizer, write_model_folder
from aligner_lib.models.hf_folder import open_tokenizer
from aligner_lib.models.names import Weight
from aligner_lib.models.nemo import rank_files, torch_dist, zarr_folder
from aligner_lib.models.nemo.archive import NemoArchive
from aligner_lib.models.nemo.config import NemoConfig
from aligner_lib.models.nemo.layouts import by_megatron_name, check_fits
from aligner_lib.models.nemo.stored import StoredTensor
from aligner_lib.models.nemo.tokenizer import write_tokenizer
from aligner_lib.models.stream import StreamedTensor, write_store

CONFIG = "model_config.yaml"
DISTRIBUTED = "model_weights/"  # the folder of Megatron Core's distributed checkpoint
MAX_CONFIG = 1 << 18


def is_nemo(path: Path) -> bool:
    """Whether a path is a .nemo archive: a file with the suffix .nemo, or a folder with a model_config.yaml."""
    path = Path(path)
    return path.suffix == ".nemo" or (path / CONFIG).is_file()


def import_nemo(
    source: Path,
    out: Path,
    progress: Callable[[int, int], None] | None = None,
    origin: dict | None = None,
) -> Path:
    """Convert a .nemo archive (a tar, plain or gzip, or an extracted folder) into a new model folder. Returns the folder.

    The checkpoint may have NeMo's old format or Megatron Core's, with any tensor and pipeline parallelism. Weights keep their
    dtype and are read one at a time. No code of the archive runs. progress: called with (weights done, weights in all).

    Raises ValueError for a damaged or malicious archive, for an unsupported model, for missing or surplus weights, and when
    `out` exists; DiskFull.
    """
    source, out = Path(source), Path(out)
    if out.exists():
        raise ValueError(f"{out} exists already: remove {out}, or choose another folder")
    scratch = next(folder for folder in out.absolute().parents if folder.is_dir())
    with NemoArchive(source, scratch) as archive:
        config = _config(archive)
        tensors = by_megatron_name(_tensors_in(archive, config), config.num_layers)
        embedding = tensors.get("embedding.word_embeddings.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ValueError(f"{source} has no embedding.word_embeddings.weight, so contains no GPT model")
        head = "scalar" if "value_head.weight" in tensors else "lm"
        arch = config.architecture(embedding.shape[0], head)
        plan = check_fits(tensors, arch)
        _check_size(archive, plan)

        def write(folder: Path) -> None:
            arch.save(folder)
            write_tokenizer(archive, config, folder)
            fit_tokenizer(folder, arch)
            record_plain_template(open_tokenizer(folder))
            if head == "scalar":
                config.reward_scale().save(folder)
            write_store(folder / "weights", [_streamed(weight, tensor) for weight, tensor in plan], progress)

        return write_model_folder(out, write, origin or {"imported_from": str(source.resolve())})


def _config(archive: NemoArchive) -> NemoConfig:
    text = archive.read(CONFIG)
    if len(text) > MAX_CONFIG:
        raise ValueError(f"{archive.path}: {CONFIG} has {len(text)} bytes, too many for settings")
    return NemoConfig.parse(text, f"{archive.path}: {CONFIG}")


def _tensors_in(archive: NemoArchive, config: NemoConfig) -> dict[str, StoredTensor]:
    """The archive's tensors, from any storage format."""
    names = archive.names()
    if f"{DISTRIBUTED}.metadata" in names:
        return torch_dist.tensors_in(archive, DISTRIBUTED)
    if any(name.startswith(DISTRIBUTED) and name.endswith("/.zarray") for name in names):
        return zarr_folder.tensors_in(archive, DISTRIBUTED)
    if any(name.endswith(rank_files.FILE) for name in names):
        return rank_files.tensors_in(archive, config.is_gated)
    raise ValueError(
        f"{archive.path} has no weights: neither {rank_files.FILE} (a single file, or a file for each rank) nor "
        f"{DISTRIBUTED} with .metadata or zarr arrays"
    )


def _check_size(archive: NemoArchive, plan: list[tuple[Weight, StoredTensor]]) -> None:
    """Raises ValueError for weights with more bytes than the archive, which is possible when weights share bytes."""
    needed = sum(_streamed(weight, tensor).num_bytes for weight, tensor in plan)
    if needed > archive.num_bytes:
        raise ValueError(
            f"{archive.path} has {archive.num_bytes} bytes, but its weights would take {needed}: the archive is made "
            "to fill a disk"
        )


def _streamed(weight: Weight, tensor: StoredTensor) -> StreamedTensor:
    return StreamedTensor(weight.megatron, tensor.dtype, weight.shape, tensor.read)
