"""Write a model folder as a .nemo archive: Megatron Core's distributed checkpoint (torch_dist), NeMo's settings, the tokenizer.

The archive is written from front to back, one weight at a time, without torch. The weights of all layers form a single tensor
with an additional first dimension, as in Megatron's own GPT checkpoints, and each layer is a block of the tensor. A single file
contains all blocks one after the other, each in the format of torch.save.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from aligner_lib.datasets.chat_template import PLAIN, SCORED_END, exported_template, recorded_template
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.names import Weight
from aligner_lib.models.nemo.config_writer import nemo_config
from aligner_lib.models.nemo.layouts import stacked_weights
from aligner_lib.models.nemo.pickled import ORDERED_DICT, Call, External, Global, write_pickle
from aligner_lib.models.nemo.tokenizer import FILES, GENERATION, SENTENCEPIECE
from aligner_lib.models.nemo.torch_dist import DCP, DTYPES
from aligner_lib.models.nemo.torch_file import STORAGES
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.models.stream import CARRIERS, cast

FOLDER = "model_weights/"
BLOCKS = "__0_0.distcp"  # the name of the first rank's first file
METADATA = DCP + "metadata."
BACKENDS = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
# Modules whose extra state (for fp8) a loader expects. Megatron's own layers have none; Transformer Engine's accept None.
WITH_EXTRA_STATE = (
    "self_attention.linear_qkv",
    "self_attention.core_attention",
    "self_attention.linear_proj",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
)
REWARD_HEAD = {"value_head.weight": "rm_head.weight", "value_head.bias": "rm_head.bias"}


class Weights(Protocol):
    """A model's weights under Megatron's names. bfloat16 values are their bits in uint16."""

    def dtype(self, name: str) -> str: ...

    def read(self, name: str) -> np.ndarray: ...


def write_nemo(folder: Path, weights: Weights, out: Path, dtype: str | None = None, progress=None) -> None:
    """Write a policy or a reward model into a new .nemo archive `out`.

    folder: the model folder. dtype: the dtype of the weights in safetensors' spelling; None: the stored dtypes. progress:
    called with (weights done, weights in all).

    Raises ValueError for a model that NeMo's settings can't describe, and for values too large for `dtype`.
    """
    arch = Architecture.load(folder)
    first = dtype or weights.dtype("embedding.word_embeddings.weight")
    tokenizer, files = _tokenizer(Path(folder), SCORED_END if arch.head == "scalar" else "")
    config = nemo_config(arch, tokenizer, first, RewardScale.load(folder))
    with Path(out).open("xb") as file:
        _add(file, "model_config.yaml", _yaml(config))
        for name, content in files.items():
            _add(file, name, content)
        _add(file, f"{FOLDER}metadata.json", json.dumps(BACKENDS).encode())
        common = io.BytesIO()
        _save(common, {})
        _add(file, f"{FOLDER}common.pt", common.getvalue())
        blocks = _Blocks()
        with _growing(file, FOLDER + BLOCKS) as section:
            _write_weights(arch, weights, dtype, section, blocks, progress)
        _add(file, f"{FOLDER}.metadata", write_pickle(blocks.metadata()))
        file.write(bytes(2 * tarfile.BLOCKSIZE))
        file.flush()
        os.fsync(file.fileno())


# ---- weights --------------------------------------------------------------------------------------------------------


def _write_weights(
    arch: Architecture, weights: Weights, dtype: str | None, file, blocks: _Blocks, progress
) -> None:
    stacks = list(stacked_weights(arch))
    done, total = 0, sum(len(layers) for _, layers in stacks)
    for name, layers in stacks:
        stored = "model." + REWARD_HEAD.get(name, name)
        for number, weight in enumerate(layers):
            values, kind = _values(weights, weight, None if name in REWARD_HEAD else dtype)
            if name.startswith("decoder.layers."):
                values, offset, whole = values[None], (number,), (len(layers), *weight.shape)
            else:
                offset, whole = (0,), weight.shape
            blocks.add(file, stored, kind, whole, offset + (0,) * (len(whole) - 1), values)
            done += 1
            if progress:
                progress(done, total)
    for module in WITH_EXTRA_STATE:
        for layer in range(arch.num_layers):
            blocks.add_none(
                file, f"model.decoder.layers.{module}._extra_state/shard_{layer}_{arch.num_layers}"
            )
    blocks.add_none(file, "model.decoder.final_layernorm._extra_state/shard_0_1")
    if arch.head == "scalar":  # NeMo's reward model expects an output layer but never uses the layer
        kind = dtype or weights.dtype("embedding.word_embeddings.weight")
        values = np.zeros((arch.vocab_size, arch.hidden_size), CARRIERS[kind])
        blocks.add(file, "model.output_layer.weight", kind, values.shape, (0, 0), values)


def _values(weights: Weights, weight: Weight, dtype: str | None) -> tuple[np.ndarray, str]:
    """A weight's values and dtype."""
    stored, values = weights.dtype(weight.megatron), weights.read(weight.megatron)
    if values.shape != weight.shape:
        raise ValueError(
            f"{weight.megatron} has shape {list(values.shape)}; model.json says {list(weight.shape)}"
        )
    try:
        return np.ascontiguousarray(cast(values, stored, dtype or stored)), dtype or stored
    except ValueError as error:
        raise ValueError(f"{weight.megatron}: {error}; choose another --dtype") from None


class _Blocks:
    """The written blocks, for the metadata of torch.distributed.checkpoint."""

    def __init__(self):
        self._tensors: dict[str, tuple[str, tuple[int, ...], list[Call]]] = {}
        self._objects: list[str] = []
        self._places: dict[Call, Call] = {}

    def add(
        self, file, name: str, dtype: str, whole: tuple[int, ...], offset: tuple[int, ...], values
    ) -> None:
        """Write a block of a tensor, and record its place. whole: the tensor's shape."""
        start = file.tell()
        _save(_Section(file), _tensor_call(dtype, values.shape), values)
        first, shape, chunks = self._tensors.setdefault(name, (dtype, whole, []))
        assert shape == whole, f"{name}: {whole} is not {shape}"
        if dtype != first:
            raise ValueError(
                f"{name} is {first} in some layers and {dtype} in others: choose a single dtype with --dtype"
            )
        self._note(name, _size(offset), len(chunks), start, file.tell())
        sizes = {"offsets": _size(offset), "sizes": _size(values.shape)}
        chunks.append(Call(METADATA + "ChunkStorageMetadata", (), sizes))

    def add_none(self, file, name: str) -> None:
        """Write None as an object, in a list as Megatron does."""
        start = file.tell()
        _save(_Section(file), [None])
        self._objects.append(name)
        self._note(name, None, None, start, file.tell())

    def _note(self, name: str, offset: Call | None, index: int | None, start: int, end: int) -> None:
        key = Call(METADATA + "MetadataIndex", (), {"fqn": name, "offset": offset, "index": index})
        place = {"relative_path": BLOCKS, "offset": start, "length": end - start}
        self._places[key] = Call(DCP + "filesystem._StorageInfo", (), place)

    def metadata(self) -> Call:
        """The content of .metadata."""
        tensors = {
            name: Call(
                METADATA + "TensorStorageMetadata",
                (),
                {"properties": _properties(dtype), "size": _size(shape), "chunks": chunks},
            )
            for name, (dtype, shape, chunks) in self._tensors.items()
        }
        objects = {name: Call(METADATA + "BytesStorageMetadata", (), {}) for name in self._objects}
        state = {
            "state_dict_metadata": tensors | objects,
            "planner_data": None,
            "storage_data": self._places,
            "storage_meta": None,
        }
        return Call(METADATA + "Metadata", (), state)


def _size(shape: tuple[int, ...]) -> Call:
    return Call("torch.Size", (tuple(int(size) for size in shape),))


def _properties(dtype: str) -> Call:
    name = next(torch_name for torch_name, known in DTYPES.items() if known == dtype)
    layout = Call("torch.serialization._get_layout", ("torch.strided",))
    contiguous = Call(METADATA + "_MEM_FORMAT_ENCODING", (0,))
    return Call(METADATA + "TensorProperties", (), (Global(name), layout, False, contiguous, False))


# ---- torch.save -----------------------------------------------------------------------------------------------------


def _tensor_call(dtype: str, shape: tuple[int, ...]) -> Call:
    """The call in torch's pickle for a contiguous tensor, which uses the first storage of its file."""
    storage = Global("torch." + next(name for name, known in STORAGES.items() if known == dtype))
    count = int(np.prod(shape))
    strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    args = (
        External(("storage", storage, "0", "cpu", count)),
        0,
        tuple(shape),
        strides,
        False,
        Call(ORDERED_DICT, ()),
    )
    return Call("torch._utils._rebuild_tensor_v2", args)


def _save(file, content, values: np.ndarray | None = None) -> None:
    """Write a file in the format of torch.save: a zip of the pickle and the storage's bytes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _entry(archive, "data.pkl", write_pickle(content))
        _entry(archive, "byteorder", b"little")
        if values is not None:
            _entry(archive, "data/0", memoryview(values.reshape(-1)).cast("B"))
        _entry(archive, "version", b"3\n")


def _entry(archive: zipfile.ZipFile, name: str, content) -> None:
    # without a date, so that equal models give equal bytes
    archive.writestr(zipfile.ZipInfo(f"archive/{name}"), content)


# ---- the archive ----------------------------------------------------------------------------------------------------


def _add(file: BinaryIO, name: str, content: bytes) -> None:
    with _growing(file, name) as section:
        section.write(content)


@contextmanager
def _growing(file: BinaryIO, name: str) -> Iterator[_Section]:
    """A context manager: yields a new file in the tar. The file's size is written into its header at the end."""
    info = tarfile.TarInfo(name)
    header = file.tell()
    file.write(bytes(tarfile.BLOCKSIZE))
    section = _Section(file)
    yield section
    info.size = section.tell()
    file.write(bytes(-info.size % tarfile.BLOCKSIZE))
    end = file.tell()
    file.seek(header)
    file.write(info.tobuf(tarfile.GNU_FORMAT))
    file.seek(end)


class _Section:
    """The rest of a file from its current position. Positions count from there, as zip requires."""

    def __init__(self, file):
        self._file, self._start = file, file.tell()
        self.write, self.flush = file.write, file.flush

    def tell(self) -> int:
        return self._file.tell() - self._start

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        assert whence == os.SEEK_SET
        self._file.seek(self._start + position)
        return position


def _yaml(config: dict) -> bytes:
    import yaml

    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode()


def _tokenizer(folder: Path, end: str) -> tuple[dict, dict[str, bytes]]:
    """The tokenizer section of the settings, and the tokenizer's files. end: the end of a plain chat template.

    A SentencePiece model gets a name in NeMo's form. NeMo reads other tokenizers from a folder or the hub: the user sets `type`
    to a folder with the tokenizer's files from the archive.
    """
    tokenizer = Tokenizer(folder)  # raises, with advice, for a folder without a tokenizer
    names = (*FILES, *([GENERATION] if (folder / GENERATION).exists() else []))
    files = {name: (folder / name).read_bytes() for name in names}
    if template := exported_template(tokenizer):
        if recorded_template(folder) == PLAIN:
            template += end
        config = json.loads(files["tokenizer_config.json"]) | {"chat_template": template}
        files["tokenizer_config.json"] = json.dumps(config, indent=1).encode()
    section = {
        "library": "huggingface",
        "type": "tokenizer",
        "model": None,
        "vocab_file": None,
        "merge_file": None,
    }
    if (folder / SENTENCEPIECE).exists():
        content = (folder / SENTENCEPIECE).read_bytes()
        name = f"{hashlib.md5(content, usedforsecurity=False).hexdigest()}_{SENTENCEPIECE}"
        files[name] = content
        section |= {
            "library": "sentencepiece",
            "type": None,
            "model": f"nemo:{name}",
            "sentencepiece_legacy": False,
        }
    return section, files
