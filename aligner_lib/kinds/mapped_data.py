"""Keeps the samples of large files in the cache, memory-mapped, so that ranks and later runs share them.

The cache is keyed by the content of the files, the tokenizer, the template, the settings and the code that makes samples.
"""

from __future__ import annotations

import errno
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from pathlib import Path

import aligner_lib.datasets
import data as converter
from aligner_lib.datasets import load_indexed
from aligner_lib.datasets.indexed_dataset import files_of_prefix, prefix_of
from aligner_lib.datasets.load.lines import Collect
from aligner_lib.datasets.mapped_samples import MappedSamples, write_samples
from aligner_lib.datasets.samples import LoadReport
from aligner_lib.datasets.tokenizer import FILES, Tokenizer
from aligner_lib.datasets.worker_processes import check_main_is_guarded
from aligner_lib.errors import UserError
from aligner_lib.models.disk import explain_full_disk, whole_or_absent
from aligner_lib.models.fetch import cache_root, locked
from aligner_lib.models.hash import files_hash, text_hash
from cluster.cores import usable_cores

logger = logging.getLogger(__name__)
LARGE_BYTES = 16 << 20
"""Larger files are mapped. Their samples would take over 150 MB in each process."""
WORKER_BYTES = 8 << 20
"""The data for each worker: four seconds of work, beside which a worker's start of half a second is short."""


def load_samples(
    load: Callable, files: Iterable[Path], tokenizer: Tokenizer, max_length: int
) -> tuple[Sequence, LoadReport]:
    """The samples of `load(files, tokenizer, max_length)`, and the report: in memory, or mapped if the files are large.

    load: a loader of `datasets.load` or `datasets.load_indexed`. The first process writes the samples into the cache, the others
    wait. Worker processes help the first process: as many as usable cores, but no more than the files have WORKER_BYTES. If the cache can't be written, the samples stay in memory, and the log says so. Raises the loader's errors.
    """
    files = [Path(file) for file in files]
    paths = _paths(load, files)
    if not all(path.is_file() for path in paths) or sum(path.stat().st_size for path in paths) < LARGE_BYTES:
        return load(files, tokenizer, max_length)
    check_main_is_guarded()
    folder = cache_root() / "samples" / _key(load, paths, tokenizer, max_length)
    names = ", ".join(file.name for file in files)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(f".{folder.name}.lock"), logger.info, "tokenises the same data"):
            if (samples := _opened(folder)) is not None:
                return samples, samples.report
            logger.info(f"keeping the token ids of {names} in {folder}")
            return _load_in_processes(
                load, files, tokenizer, max_length, partial(_written, folder=folder), paths
            )
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        logger.warning(
            f"the samples of {names} take memory in every process, because the cache {folder.parent} can't be written "
            f"({error.strerror}): set ALIGNER_CACHE to a folder of your own"
        )
        return load(files, tokenizer, max_length)


def _load_in_processes(
    load: Callable,
    files: list[Path],
    tokenizer: Tokenizer,
    max_length: int,
    collect: Collect,
    paths: list[Path],
) -> tuple[Sequence, LoadReport]:
    workers = min(usable_cores(), sum(path.stat().st_size for path in paths) // WORKER_BYTES)
    if workers < 2 or load.__module__ == load_indexed.__name__:  # token files need no tokenisation
        return load(files, tokenizer, max_length, collect)
    try:
        return load(files, tokenizer, max_length, collect, workers)
    except BrokenProcessPool:
        logger.warning(
            f"one of {workers} processes that tokenised the data was killed, perhaps for lack of memory: a single process "
            "begins again; LAB_THREADS lowers the number of processes"
        )
        return load(files, tokenizer, max_length, collect)


def _paths(load: Callable, files: list[Path]) -> list[Path]:
    if load.__module__ != load_indexed.__name__:
        return files
    return [path for file in files for path in files_of_prefix(prefix_of(file))]


def _written(samples: Iterator, report: LoadReport, folder: Path) -> Sequence:
    if folder.exists():
        shutil.rmtree(folder)  # damaged, or incomplete
    with explain_full_disk(folder, "ALIGNER_CACHE"), whole_or_absent(folder, "ALIGNER_CACHE") as partial:
        partial.mkdir()
        write_samples(samples, report, partial)
    return _opened(folder) or []


def _opened(folder: Path) -> MappedSamples | None:
    """The samples in a folder of the cache; None if the folder has none."""
    try:
        return MappedSamples(folder)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def _key(load: Callable, paths: list[Path], tokenizer: Tokenizer, max_length: int) -> str:
    """A name for the samples: 32 hex digits of all that decides about them."""
    template = [tokenizer.template, str(tokenizer.date), files_hash(_existing(tokenizer.folder, FILES))]
    data = files_hash({f"{number} {path.name}": path for number, path in enumerate(paths)})
    return text_hash(
        json.dumps([load.__module__, load.__name__, max_length, template, data, _hash_of_code()])
    )


@cache
def _hash_of_code() -> str:
    return files_hash(_code())


def _code() -> dict[str, Path]:
    """The modules of the loaders and of `data`, which reads turns and tools for them, by their names."""
    folders = (Path(package.__file__).parent for package in (aligner_lib.datasets, converter))
    return {
        f"{folder.name}/{path.relative_to(folder).as_posix()}": path
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
    }


def _existing(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    return {name: folder / name for name in names if (folder / name).exists()}
