"""Convert a Hugging Face folder or a GGUF file into a model folder, one weight at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.disk import whole_or_absent
from aligner_lib.models.gguf_file import GgufFile
from aligner_lib.models.hash import model_hash
from aligner_lib.models.hf_folder import HfFolder
from aligner_lib.models.names import Weight, hf_shapes, to_megatron, weights
from aligner_lib.models.stream import StreamedTensor, write_store
from cluster.record import write_json

# old checkpoints contain rotary frequencies and GPT-NeoX's causal masks, which follow from the configuration
REDUNDANT = ("rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")
Progress = Callable[[int, int], None]  # (weights done, weights in all)


class WeightSource(Protocol):
    """Reads the model to import: weights under Hugging Face's names, and a tokenizer."""

    architecture: Architecture

    def names(self) -> set[str]:
        """The names of all weights."""

    def dtype(self, name: str) -> str:
        """A weight's dtype as safetensors names it: F64, F32, F16 or BF16."""

    def shape(self, name: str) -> tuple[int, ...]:
        """A weight's shape."""

    def read(self, name: str) -> np.ndarray:
        """A weight as an array, in the dtype named by `dtype` (bfloat16 as its bits in uint16)."""

    def write_tokenizer(self, out: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json into a folder."""


def import_hf(source: Path, out: Path, progress: Progress | None = None, origin: dict | None = None) -> Path:
    """Convert a Hugging Face folder (of a family in `models/families/`) or a .gguf file into a new model folder.

    Returns the new folder. Safetensors keep their dtype; GGUF weights become float32. The folder gets its final name when the
    conversion is complete. origin: written into source.json beside the hash. progress: called with (weights done, weights in
    all).

    Raises ValueError for an unsupported model, for missing weights, for weights that do not belong to the model, and when
    `out` exists; DiskFull when the disk is full.
    """
    source = Path(source)
    reader = open_source(source)
    return write_model_folder(
        Path(out),
        lambda folder: _write(reader, folder, progress),
        origin or {"imported_from": str(source.resolve())},
    )


def write_model_folder(out: Path, write: Callable[[Path], None], origin: dict) -> Path:
    """Let `write` fill a new folder, add source.json (origin, hash), and return the folder.

    If `write` fails, no folder is left. Raises ValueError when `out` exists, DiskFull.
    """
    with whole_or_absent(out, "--out; ALIGNER_CACHE for named models") as folder:
        folder.mkdir()
        write(folder)
        write_json(folder / "source.json", {**origin, "hash": model_hash(folder)})
    return out


def open_source(source: Path) -> WeightSource:
    """The reader of a Hugging Face folder or a .gguf file. Raises ValueError for any other path."""
    source = Path(source)
    if source.is_dir():
        return HfFolder(source)
    if source.suffix == ".gguf" and source.is_file():
        return GgufFile(source)
    if not source.exists():
        raise ValueError(f"{source} does not exist; give a Hugging Face model folder or a .gguf file")
    raise ValueError(f"{source} is neither a Hugging Face model folder nor a .gguf file")


def _write(reader: WeightSource, folder: Path, progress: Progress | None) -> None:
    reader.architecture.save(folder)
    reader.write_tokenizer(folder)
    check_vocabulary(folder, reader.architecture)
    _write_weights(reader, folder / "weights", progress)


def _write_weights(reader: WeightSource, folder: Path, progress: Progress | None) -> None:
    arch = reader.architecture
    plan = list(weights(arch))
    _check_names(reader, {name for weight in plan for name in weight.hf})
    write_store(folder, [_streamed(reader, weight, arch) for weight in plan], progress)


def _streamed(reader: WeightSource, weight: Weight, arch: Architecture) -> StreamedTensor:
    for name, shape in zip(weight.hf, hf_shapes(weight, arch)):
        if reader.shape(name) != shape:
            raise ValueError(
                f"{name} has shape {list(reader.shape(name))}, but the configuration says {list(shape)}"
            )
    if not weight.hf:
        return StreamedTensor(
            weight.megatron, "F32", weight.shape, lambda: np.zeros(weight.shape, np.float32)
        )
    dtypes = {reader.dtype(name) for name in weight.hf}
    if len(dtypes) > 1:
        raise ValueError(
            f"{' and '.join(weight.hf)} become a single weight, but their dtypes differ: {sorted(dtypes)}"
        )

    def make() -> np.ndarray:
        return to_megatron(weight, [reader.read(name) for name in weight.hf], arch)

    return StreamedTensor(weight.megatron, dtypes.pop(), weight.shape, make)


def _check_names(reader: WeightSource, expected: set[str]) -> None:
    """Raises ValueError when a weight is missing or does not belong to the model."""
    present = reader.names()
    if missing := sorted(expected - present):
        raise ValueError(f"{len(missing)} weights are missing, the first: {', '.join(missing[:3])}")
    leftover = sorted(name for name in present - expected if not name.endswith(REDUNDANT))
    if leftover == ["lm_head.weight"]:
        _check_tied(reader)
    elif leftover:
        raise ValueError(
            f"{len(leftover)} weights do not belong to the model, the first: {', '.join(leftover[:3])}"
        )


def _check_tied(reader: WeightSource) -> None:
    """Raises ValueError when a tied model also stores an output layer, and the layer differs from the embedding."""
    if not np.array_equal(reader.read("lm_head.weight"), reader.read("model.embed_tokens.weight")):
        raise ValueError(
            "the configuration ties lm_head.weight to the embedding (tie_word_embeddings), but the two differ"
        )


def check_vocabulary(folder: Path, arch: Architecture) -> None:
    """Raises ValueError when a model folder's tokenizer can't be read, or has more tokens than the model."""
    from aligner_lib.datasets.tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer(folder)
    except Exception as error:  # the tokenizers library raises nothing more precise
        raise ValueError(
            f"the model's tokenizer.json can't be read ({error}): download the file again"
        ) from error
    tokenizer.stop_ids  # noqa: B018 - raises when a stop token is not in the vocabulary
    if tokenizer.vocab_size > arch.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model's embedding only {arch.vocab_size}"
        )
