"""The files of a .nemo archive (a folder, or a tar, plain or gzip) for reading, without extraction.

The files of a tar are read inside the tar, so no name in the tar can lead to a place on the disk. Only the content of a gzip
tar is written to the disk: the tar is inflated into an unnamed temporary file, which the system removes with the process.
"""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import tempfile
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from aligner_lib.models.disk import DiskFull, explain_full_disk
from aligner_lib.models.nemo.window import MAX_READ, Window

GZIP = b"\x1f\x8b"
MAX_MEMBERS = 1 << 16  # zarr archives have the most files: one for each layer, weight and rank
MAX_NAME, MAX_DEPTH = 1024, 16
MAX_INFLATION = 50  # a gzip tar of weights inflates to less than twice its size …
SMALL = 1 << 26  # … but a small tar of zeros inflates much more
BLOCK = tarfile.BLOCKSIZE
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)


class BadArchive(ValueError):
    """A damaged or malicious archive. None of its files has been written to disk or run."""


class _Member(NamedTuple):
    name: str
    is_folder: bool
    offset: int  # of the content, in the (inflated) tar
    size: int


class NemoArchive:
    """The files of a .nemo archive by their names in the archive, such as `model_config.yaml`.

    scratch: the folder for a gzip tar's temporary file; None: the system's.

    Raises BadArchive for a tar with an absolute name, a name with `..`, a link, a device, a duplicate name (upper and lower
    case are the same) or a file with files below it; for a tar with too many files, an excessive inflated size or a missing
    end; for a folder with a link to a place outside the folder; and for other files. Raises DiskFull when there is no room for
    the inflated tar.
    """

    def __init__(self, path: Path, scratch: Path | None = None):
        self.path = Path(path)
        self._file: BinaryIO | None = None
        self._members: dict[str, _Member] = {}
        if self.path.is_dir():
            self._root = self.path.resolve()
            members = list(_files_in(self.path))
        else:
            self._open_tar(scratch)
            members = list(self._members)
        self._prefix = _root_of(self.path, members)
        self._names = {name.removeprefix(self._prefix) for name in members if name.startswith(self._prefix)}

    def names(self) -> list[str]:
        """The names of all files, sorted."""
        return sorted(self._names)

    @property
    def num_bytes(self) -> int:
        """The bytes of all files together."""
        if self._file is None:
            return sum((self.path / self._prefix / name).stat().st_size for name in self._names)
        return sum(member.size for member in self._members.values())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def open(self, name: str) -> Window:
        """Open a file for reading. Raises BadArchive for a missing file."""
        if name not in self._names:
            raise BadArchive(
                f"{self.path} has no {name}, so the archive is incomplete: download the archive again"
            )
        if self._file is None:
            return self._open_in_folder(self._prefix + name)
        member = self._members[self._prefix + name]
        return Window(self._file, member.offset, member.size)

    def read(self, name: str) -> bytes:
        """The content of a small file. Raises BadArchive for more than MAX_READ bytes."""
        with self.open(name) as file:
            if file.size > MAX_READ:
                raise BadArchive(
                    f"{self.path}: {name} has {file.size} bytes, too many for a file of its kind"
                )
            return file.read()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> NemoArchive:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _open_in_folder(self, name: str) -> Window:
        path = self.path / name
        if not path.resolve().is_relative_to(self._root):
            raise BadArchive(f"{path} is a link out of the folder: put the file itself there")
        file = path.open("rb")
        return Window(file, 0, os.fstat(file.fileno()).st_size, owns_file=True)

    def _open_tar(self, scratch: Path | None) -> None:
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            raise BadArchive(f"{self.path} does not exist") from None
        try:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise BadArchive(f"{self.path} is neither a folder nor a file")
            packed = os.pread(file.fileno(), 2, 0) == GZIP
            window = Window(file, 0, info.st_size)
            opened = gzip.GzipFile(fileobj=window) if packed else window
            limit = max(SMALL, MAX_INFLATION * info.st_size) if packed else info.st_size
            members, end = _checked_members(self.path, opened, limit)
            if packed:
                opened.rewind()
                with file:
                    self._file = _inflated(self.path, opened, end, scratch)
        except BaseException:
            file.close()
            raise
        self._file = self._file or file
        self._members = {member.name: member for member in members if not member.is_folder}


def _checked_members(path: Path, file, limit: int) -> tuple[list[_Member], int]:
    """The checked members of a tar, and the place where the last member's content ends.

    file: the tar, or the inflating reader of a gzip tar; limit: the largest size in bytes.
    """
    # by the name in lower case: the original name, and whether the member is a folder
    kinds: dict[str, tuple[str, bool]] = {}
    members, end = [], 0
    for info in _tar_headers(path, file):
        if len(members) >= MAX_MEMBERS:
            raise BadArchive(f"{path} has more than {MAX_MEMBERS} files, which no model has")
        if not (info.isreg() or info.isdir()) or info.issparse():
            raise BadArchive(f"{path}: {_shown(info.name)} is {_kind(info)}, but a model contains only files")
        name = _safe_name(path, info.name)
        end = info.offset_data + (info.size if info.isreg() else 0)
        if info.size < 0 or end > limit:
            raise BadArchive(
                f"{path}: {_shown(info.name)} claims {info.size} bytes, more than the archive can hold: "
                "the file is cut off (download the file again), or made to fill a disk"
            )
        if name:
            _register(path, kinds, name, info.isdir())
            members.append(_Member(name, info.isdir(), info.offset_data, info.size))
    return members, end


def _tar_headers(path: Path, file) -> Iterator[tarfile.TarInfo]:
    """The headers of a tar, in order. Raises BadArchive for a damaged tar, and for a tar without an end."""
    headers = _Headers(file)
    try:
        with tarfile.open(fileobj=headers, mode="r:") as tar:
            while (info := headers.next_of(tar)) is not None:
                yield info
            file.seek(tar.offset)
        ending = file.read(BLOCK)
    except BadArchive:
        raise
    except (*DAMAGE, tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
        raise BadArchive(
            f"{path} is not a complete tar ({_shown(str(error))}): download the file again"
        ) from None
    if ending.strip(b"\0") or len(ending) < BLOCK:
        raise BadArchive(f"{path} is cut off or damaged, because the end is missing: download the file again")


class _Headers:
    """A file with a limit on the bytes of a header, because the tar itself states how many bytes tarfile should read."""

    BYTES = 1 << 17

    def __init__(self, file):
        self._file, self._left = file, self.BYTES
        self.seek, self.tell = file.seek, file.tell

    def next_of(self, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        self._left = self.BYTES
        return tar.next()

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise tarfile.ReadError(f"a header of more than {self.BYTES} bytes")
        return self._file.read(size)


def _safe_name(path: Path, name: str) -> str:
    """A member's name in NemoArchive: without `./`; empty for the archive's own folder."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or (parts and parts[0].endswith(":")) or "\\" in name:
        raise BadArchive(
            f"{path}: {_shown(name)} is an absolute name; the files of a model have relative names"
        )
    if ".." in parts:
        raise BadArchive(f"{path}: {_shown(name)} leads out of the archive")
    if len(name) > MAX_NAME or len(parts) > MAX_DEPTH or not name.isprintable():
        raise BadArchive(f"{path}: {_shown(name)} is not a name of a model's file")
    return "/".join(parts)


def _register(path: Path, kinds: dict[str, tuple[str, bool]], name: str, is_folder: bool) -> None:
    """Record a name and the folders above the name. Raises BadArchive when they contradict earlier names."""

    def note(entry: str, folder: bool, may_be_known: bool) -> None:
        key = unicodedata.normalize("NFC", entry).casefold()
        if key in kinds and not (may_be_known and kinds[key] == (entry, folder)):
            raise BadArchive(
                f"{path}: {_shown(name)} is there twice, or as a file and a folder, or in upper and in lower case, "
                "so the name is ambiguous: download the archive again"
            )
        kinds[key] = (entry, folder)

    for folder in PurePosixPath(name).parents:
        if str(folder) != ".":
            note(str(folder), True, may_be_known=True)
    note(name, is_folder, may_be_known=is_folder)


def _root_of(path: Path, names: list[str]) -> str:
    """The archive's folder with model_config.yaml, ending in a slash; empty for the archive's own folder."""
    roots = [
        name.removesuffix("model_config.yaml")
        for name in names
        if PurePosixPath(name).name == "model_config.yaml"
    ]
    if "" in roots:
        return ""
    if len(roots) != 1:
        count = "several" if roots else "no"
        raise BadArchive(
            f"{path} has {count} model_config.yaml, but a .nemo archive of a GPT model has exactly 1"
        )
    return roots[0]


def _inflated(path: Path, packed: gzip.GzipFile, size: int, scratch: Path | None) -> BinaryIO:
    """Write a gzip tar's content into an unnamed temporary file. size: the place where the last member ends."""
    folder = Path(scratch or tempfile.gettempdir())
    if shutil.disk_usage(folder).free < size:
        raise DiskFull(
            f"{path} inflates to {size / 2**30:.1f} GiB, but {folder} has less room: free space there"
        )
    with explain_full_disk(folder, "the folder to import into"):
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is open as long as the archive
        try:
            read = 0
            while chunk := packed.read(1 << 20):  # up to the end, where gzip verifies its checksum
                file.write(chunk[: max(size - read, 0)])
                read += len(chunk)
                if read > size + SMALL:
                    raise EOFError
            if read < size:
                raise EOFError
            file.flush()
        except BaseException as error:
            file.close()
            if isinstance(error, DAMAGE):
                raise BadArchive(f"{path} is cut off or damaged: download the file again") from None
            raise
    return file


def _files_in(folder: Path) -> Iterator[str]:
    """The names of a folder's files, including links to files, without folders that are links."""
    count = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            count += 1
            if count > MAX_MEMBERS:
                raise BadArchive(f"{folder} has more than {MAX_MEMBERS} files, which no model has")
            path = Path(parent) / name
            if path.is_file():
                yield path.relative_to(folder).as_posix()


def _kind(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return f"a link to {_shown(info.linkname)}"
    return "a device or a pipe" if info.isdev() else "a sparse file or something unknown"


def _shown(text: str) -> str:
    """A text from an archive for an error message: quoted, on one line, of limited length."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")
