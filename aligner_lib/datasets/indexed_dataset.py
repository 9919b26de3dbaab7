"""Megatron's indexed data sets: the token ids of many documents in PREFIX.bin, and the start of each document in PREFIX.idx.

The layout equals `megatron.core.datasets.indexed_dataset` byte for byte, but this module needs only numpy. All numbers are
little-endian:

    PREFIX.bin   the ids of all sequences in order: uint16 for a vocabulary of under 65,500 tokens, else int32
    PREFIX.idx   MMIDIDX\\0\\0, version (uint64, 1), dtype (uint8), sequences N (uint64), documents D + 1 (uint64),
                 length of each sequence (int32 [N]), its first byte in PREFIX.bin (int64 [N]), each document's first
                 sequence, followed by N (int64 [D + 1])

A document is one record of the source file. A document without sequences is an unusable record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from aligner_lib.errors import UserError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEAD = struct.Struct("<9sQBQQ")  # magic, version, dtype, sequences, document boundaries
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}  # Megatron's codes
INT32, UINT16 = 4, 8
SMALL_VOCABULARY = 65_500  # smaller vocabularies have uint16 ids


def best_dtype(vocab_size: int) -> int:
    """The code of Megatron's dtype for the ids of a vocabulary of this size."""
    return UINT16 if vocab_size < SMALL_VOCABULARY else INT32


def prefix_of(path: Path) -> Path:
    """The prefix of token files. The path of either file is accepted, too."""
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


def files_of_prefix(prefix: Path) -> tuple[Path, Path]:
    """PREFIX.bin and PREFIX.idx."""
    return prefix.with_name(f"{prefix.name}.bin"), prefix.with_name(f"{prefix.name}.idx")


def write_index(file: BinaryIO, dtype: int, lengths: np.ndarray) -> None:
    """Write the .idx file. lengths: int32 [D], tokens of each document, one sequence each; 0: a document without a sequence."""
    kept = lengths[lengths > 0].astype("<i4")
    ends = np.cumsum(kept, dtype="<i8") * np.dtype(DTYPES[dtype]).itemsize
    boundaries = np.concatenate([[0], np.cumsum(lengths > 0, dtype="<i8")]).astype("<i8")
    file.write(HEAD.pack(MAGIC, VERSION, dtype, len(kept), len(boundaries)))
    for array in (kept, np.concatenate([[0], ends[:-1]]).astype("<i8")[: len(kept)], boundaries):
        file.write(array.tobytes())


class IndexedDataset:
    """An indexed data set, opened for reading. `len` is the number of documents.

    Raises FileNotFoundError when one of the two files is missing, UserError when a file is damaged or cut off, or when the two
    files do not belong together.
    """

    def __init__(self, prefix: Path):
        self.prefix = prefix
        self.bin_path, self.idx_path = files_of_prefix(prefix)
        for path in (self.bin_path, self.idx_path):
            if not path.exists():
                raise FileNotFoundError(
                    f"data file {path} does not exist: model.data.data_impl=mmap takes the prefix of a .bin and an .idx file, "
                    "which `aligner data mmap` writes"
                )
        index = self.idx_path.read_bytes()
        if len(index) < HEAD.size or not index.startswith(MAGIC):
            raise UserError(
                f"{self.idx_path} is not an index of Megatron's: make the index again with `aligner data mmap`"
            )
        _, version, code, sequences, boundaries = HEAD.unpack_from(index)
        if version != VERSION or code not in DTYPES or code in (6, 7):
            raise UserError(
                f"{self.idx_path} has version {version} and dtype {code}; only version {VERSION} and integers can be "
                "read: make the index again with `aligner data mmap`"
            )
        expected = HEAD.size + sequences * (4 + 8) + boundaries * 8
        if len(index) != expected:
            raise UserError(
                f"{self.idx_path} has {len(index):,} bytes, but an index of {sequences:,} sequences in {boundaries - 1:,} "
                f"documents has {expected:,}: the file is cut off or was written twice, so make the index again with "
                "`aligner data mmap`"
            )
        self.dtype = np.dtype(DTYPES[code])
        lengths = np.frombuffer(index, "<i4", sequences, HEAD.size)
        pointers = np.frombuffer(index, "<i8", sequences, HEAD.size + 4 * sequences)
        self._documents = np.frombuffer(index, "<i8", boundaries, HEAD.size + 12 * sequences)
        self._ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])  # in tokens
        size = self.bin_path.stat().st_size
        if size != self._ends[-1] * self.dtype.itemsize:
            raise UserError(
                f"{self.bin_path} has {size:,} bytes, but {self.idx_path.name} describes "
                f"{self._ends[-1] * self.dtype.itemsize:,}: either file is cut off or belongs to another data set; "
                "make both again with `aligner data mmap`"
            )
        in_order = boundaries > 0 and self._documents[0] == 0 and self._documents[-1] == sequences
        if (
            not in_order
            or (np.diff(self._documents) < 0).any()
            or (lengths < 0).any()
            or not np.array_equal(pointers, self._ends[:-1] * self.dtype.itemsize)
        ):
            raise UserError(
                f"{self.idx_path} is damaged, because its lengths, offsets and document boundaries contradict each "
                "other: make the index again with `aligner data mmap`"
            )
        self._tokens = np.memmap(self.bin_path, self.dtype, "r") if size else np.zeros(0, self.dtype)

    def __len__(self) -> int:
        return len(self._documents) - 1

    def __getitem__(self, document: int) -> list[int]:
        """Token ids of a document; an empty list for an unusable record."""
        first, behind = self._documents[document : document + 2]
        return self._tokens[self._ends[first] : self._ends[behind]].tolist()

    def __iter__(self) -> Iterator[list[int]]:
        return (self[document] for document in range(len(self)))

    @property
    def tokens(self) -> int:
        """The number of tokens in all documents."""
        return len(self._tokens)

    def largest_id(self) -> int:
        """The largest token id; -1 for an empty data set."""
        return int(self._tokens.max()) if len(self._tokens) else -1
