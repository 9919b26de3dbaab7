"""Convert a Hugging Face folder or a GGUF file into a model folder, one weight at a time."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from aligner_lib.datasets.chat_template import record_plain_template
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.disk import whole_or_absent
from aligner_lib.models.families import FAMILIES
from aligner_lib.models.gguf_file import GgufFile
from aligner_lib.models.hash import model_hash
from aligner_lib.models.hf_folder import TOKEN_LISTS, HfFolder, open_tokenizer
from aligner_lib.models.names import Weight, hf_shapes, to_megatron, weights
from aligner_lib.models.stream import StreamedTensor, write_store
from cluster.record import write_json

# old checkpoints contain rotary frequencies and GPT-NeoX's causal masks, which follow from the configuration
REDUNDANT = ("rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")
logger = logging.getLogger(__name__)
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
        raise ValueError(
            f"{source} does not exist; give a Hugging Face model folder, a .gguf file or a .nemo archive"
        )
    raise ValueError(
        f"{source} is neither a Hugging Face model folder nor a .gguf file; a .nemo archive needs a name that ends in .nemo"
    )


def _write(reader: WeightSource, folder: Path, progress: Progress | None) -> None:
    reader.architecture.save(folder)
    reader.write_tokenizer(folder)
    fit_tokenizer(folder, reader.architecture)
    record_plain_template(open_tokenizer(folder))
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
    name_of = FAMILIES[reader.architecture.family].name_of
    if leftover == [name_of("lm_head.weight")]:
        _check_tied(reader, *leftover, name_of("model.embed_tokens.weight"))
    elif leftover:
        raise ValueError(
            f"{len(leftover)} weights do not belong to the model, the first: {', '.join(leftover[:3])}"
        )


def _check_tied(reader: WeightSource, output: str, embedding: str) -> None:
    """Raises ValueError when a tied model also stores an output layer, and the layer differs from the embedding."""
    if not np.array_equal(reader.read(output), reader.read(embedding)):
        raise ValueError(
            f"the configuration ties {output} to the embedding (tie_word_embeddings), but the two differ"
        )


def fit_tokenizer(folder: Path, arch: Architecture) -> None:
    """Drop the added tokens for which a model's embedding has no row, such as the image token of Gemma 3's text models.

    The tokens are dropped from a model folder's tokenizer.json and tokenizer_config.json, with a warning. Raises ValueError
    when the tokenizer can't be read, and when a token without a row can't be dropped: a token of the base vocabulary, BOS, the
    unknown token or a stop token.
    """
    tokenizer = open_tokenizer(folder)
    tokenizer.stop_ids  # noqa: B018 - raises when a stop token is not in the vocabulary
    if tokenizer.largest_id < arch.vocab_size:
        return
    needed = {*tokenizer.stop_ids, *tokenizer.bos_ids, tokenizer.id_of("unk_token")}
    dropped = _drop_added_tokens(
        folder, lambda token_id: token_id >= arch.vocab_size and token_id not in needed
    )
    tokenizer = open_tokenizer(folder)
    if (largest := tokenizer.largest_id) >= arch.vocab_size:
        token = tokenizer.decode([largest], special_tokens=True)
        raise ValueError(
            f"the tokenizer gives {token!r} the id {largest}, but the model's embedding has rows only for the ids below "
            f"{arch.vocab_size}: take the tokenizer that was published with the weights, or give the embedding more rows with "
            "transformers' resize_token_embeddings"
        )
    logger.warning(
        f"the tokenizer's {', '.join(map(repr, dropped))} can't be used in texts, because the model's embedding has rows only for "
        f"the ids below {arch.vocab_size}: the import leaves out the tokens"
    )


def _drop_added_tokens(folder: Path, is_dropped: Callable[[int], bool]) -> list[str]:
    """Remove added tokens and all settings that name the tokens from a tokenizer's two files. Returns the tokens."""
    paths = folder / "tokenizer.json", folder / "tokenizer_config.json"
    stored, config = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    added_tokens = stored.get("added_tokens") or []
    dropped = [token["content"] for token in added_tokens if is_dropped(token["id"])]
    stored["added_tokens"] = [token for token in added_tokens if not is_dropped(token["id"])]

    def is_kept(value: object) -> bool:
        return (value.get("content") if isinstance(value, dict) else value) not in dropped

    config = {key: value for key, value in config.items() if not key.endswith("_token") or is_kept(value)}
    for key in TOKEN_LISTS:
        if isinstance(tokens := config.get(key), dict):
            config[key] = {name: token for name, token in tokens.items() if is_kept(token)}
        elif tokens:
            config[key] = [token for token in tokens if is_kept(token)]
    if added := config.get("added_tokens_decoder"):
        config["added_tokens_decoder"] = {i: token for i, token in added.items() if not is_dropped(int(i))}
    for path, content in zip(paths, (stored, config)):
        write_json(path, content)
    return dropped
