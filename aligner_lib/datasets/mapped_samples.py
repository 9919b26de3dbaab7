"""Samples in a memory-mapped folder: the memory of a large data set is shared by all ranks and given back under pressure.

samples.bin, samples.idx   an indexed data set of int32, with a document for each sample: the number of its further numbers,
                           these numbers, the length of each row, and the rows' token ids
sizes.npy                  int32 [N, 2]: the tokens of each sample's longest row, and of all its rows
hashes.npy                 uint8 [N, 16]: a hash of each sample's rows (samples.content_hash)
about.json                 the samples' class, and the report of their loading; written last
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar, overload

import numpy as np

from aligner_lib.datasets.indexed_dataset import DTYPES, INT32, IndexedDataset, files_of_prefix, write_index
from aligner_lib.datasets.samples import (
    LabelledSample,
    LoadReport,
    PairSample,
    PreferenceSample,
    SFTSample,
    content_hash,
)

S = TypeVar("S")
ABOUT, SIZES, HASHES = "about.json", "sizes.npy", "hashes.npy"


class Codec(NamedTuple):
    """How the samples of a class become rows of token ids and further numbers, and back."""

    rows: int
    """The number of rows."""
    split: Callable[[S], tuple[Sequence[list[int]], Sequence[int]]]
    join: Callable[[list[list[int]], list[int]], S]


CODECS: dict[str, Codec] = {
    "SFTSample": Codec(
        1,
        lambda sample: ([sample.tokens], [sample.answer_start, *chain(*sample.others)]),
        lambda rows, numbers: SFTSample(rows[0], numbers[0], tuple(zip(numbers[1::2], numbers[2::2]))),
    ),
    "PairSample": Codec(
        2, lambda sample: ([sample.chosen, sample.rejected], []), lambda rows, _: PairSample(*rows)
    ),
    "PreferenceSample": Codec(
        2,
        lambda sample: (sample.rows, sample.starts),
        lambda rows, starts: PreferenceSample(*rows, *starts),
    ),
    "LabelledSample": Codec(
        2,
        lambda sample: (sample.rows, [int(sample.desirable), *sample.starts]),
        lambda rows, numbers: LabelledSample(bool(numbers[0]), tuple(rows), tuple(numbers[1:])),
    ),
}


@dataclass
class MappedSamples(Sequence, Generic[S]):
    """The samples of a folder, equal to the written samples, except that an SFT sample does not say why it was cut.

    Raises FileNotFoundError for a folder without samples, UserError for a damaged folder.
    """

    folder: Path

    def __post_init__(self):
        about = json.loads((self.folder / ABOUT).read_text(encoding="utf-8"))
        self._codec, counts = CODECS[about["class"]], about["report"]
        self.report = LoadReport(
            **counts | {key: Counter(counts[key]) for key in ("dropped", "cut", "ignored")}
        )
        self._documents = IndexedDataset(self.folder / "samples")
        self._sizes = np.load(self.folder / SIZES, mmap_mode="r")
        self._hashes = np.load(self.folder / HASHES, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._documents)

    @overload
    def __getitem__(self, index: int) -> S: ...
    @overload
    def __getitem__(self, index: slice) -> list[S]: ...
    def __getitem__(self, index):
        """A sample, or a list of samples for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no sample {index} among {len(self)} samples")
        count, *rest = self._documents[index % len(self)]
        numbers, lengths = rest[:count], rest[count : count + self._codec.rows]
        ends = np.cumsum([count + self._codec.rows, *lengths]).tolist()
        return self._codec.join([rest[start:end] for start, end in pairwise(ends)], numbers)

    @property
    def lengths(self) -> list[int]:
        """The tokens of each sample's longest row."""
        return self._sizes[:, 0].tolist()

    @property
    def token_counts(self) -> list[int]:
        """The tokens of all rows of each sample."""
        return self._sizes[:, 1].tolist()

    def content_hashes(self) -> Iterator[bytes]:
        """A hash of each sample's rows."""
        return map(np.ndarray.tobytes, self._hashes)


def write_samples(samples: Iterable[S], report: LoadReport, folder: Path) -> None:
    """Write samples of a class into an existing folder, one at a time.

    report: of the loading; read when all samples are written. Without any sample, the function writes no about.json.
    """
    sizes, hashes, documents, name = array("i"), bytearray(), array("i"), ""
    bin_path, idx_path = files_of_prefix(folder / "samples")
    with bin_path.open("wb") as file:
        for sample in samples:
            name = type(sample).__name__
            rows, numbers = CODECS[name].split(sample)
            document = np.array([len(numbers), *numbers, *map(len, rows), *chain(*rows)], dtype=DTYPES[INT32])
            file.write(document.tobytes())
            documents.append(len(document))
            sizes.extend((len(sample), sample.num_tokens))
            hashes += content_hash(sample)
    if not name:
        return
    with idx_path.open("wb") as file:
        write_index(file, INT32, np.array(documents, dtype="<i4"))
    np.save(folder / SIZES, np.array(sizes, dtype=np.int32).reshape(-1, 2))
    np.save(folder / HASHES, np.frombuffer(bytes(hashes), np.uint8).reshape(-1, 16))
    about = json.dumps({"class": name, "report": vars(report)})
    (folder / ABOUT).write_text(about, encoding="utf-8")
