"""The workshop's bundle: a single file that sets up a clone without a network.

A bundle is an uncompressed tar archive. Unpacking checks every file against the manifest.

    manifest.json     the first file: Python, platform, lock and commit of the bundle, and size and SHA-256 of each other file
    project.tar.gz    the project
    wheels/           the packages of LOCKS, and uv
    model/            the profile's model
    recorded/         the runs of a finished tutorial

`./lab` unpacks the wheels with this module before any package is installed. The module therefore imports only the standard
library:

    python -m aligner_lib.tutorial.workshop.bundle FILE FOLDER
"""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.tutorial.workshop.bundle_manifest import BadManifest, read_manifest
from data.atomic_files import atomic_path

ROOT = Path(__file__).resolve().parents[3]
MANIFEST = "manifest.json"
FORMAT = 1
MANIFEST_BYTES = 1 << 24  # the project never writes a larger manifest
CHUNK = 1 << 20
PACKAGES = ("aligner_lib", "cluster", "data", "widgets")
LOCKS = ("requirements.lock", "requirements-pytriton.lock")  # `./lab` installs these packages first
WHEELS = "wheels/"


class BadBundle(UserError):
    """A damaged bundle, or a bundle for another machine, Python or commit."""


def made_for(root: Path = ROOT) -> dict[str, str]:
    """The requirements of a bundle: Python version, platform, hash of the locks, and hash of the packages' sources."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "platform": sysconfig.get_platform(),
        "lock": "".join(_sha256(root / lock) for lock in LOCKS),
        "sources": _sources(root),
    }


class Bundle:
    """An opened bundle. Raises BadBundle for any other file, FileNotFoundError without a file."""

    def __init__(self, path: str | Path):
        self.path = Path(path).expanduser()
        try:
            with tarfile.open(self.path, "r:") as archive:
                first = archive.next()
                if first is None or first.name != MANIFEST or not 0 < first.size < MANIFEST_BYTES:
                    raise BadBundle(f"{self.path} is no bundle: its first file is not {MANIFEST}")
                self.manifest = read_manifest(archive.extractfile(first).read(), FORMAT)
        except BadManifest as error:
            raise BadBundle(f"{self.path}: {error}") from None
        except (
            tarfile.TarError,
            EOFError,
            AttributeError,
        ) as error:  # AttributeError: the first entry is no file
            raise BadBundle(f"{self.path} is no bundle, or its beginning is damaged ({error})") from None
        self.files: dict[str, dict] = self.manifest["files"]

    def check_fits(self, here: Mapping[str, str] | None = None) -> None:
        """Raise BadBundle for a bundle of another Python, platform, lock or commit. The message contains the solution."""
        here, its = here or made_for(), self.manifest
        commit = its.get("commit", "")
        if its["platform"] != here["platform"]:
            raise BadBundle(
                f"{self.path} is for {its['platform']}, but the machine is {here['platform']}: pack a bundle on "
                f"{here['platform']}"
            )
        if its["python"] != here["python"]:
            raise BadBundle(
                f"{self.path} is for Python {its['python']}, but the project runs Python {here['python']}: "
                f"LAB_PYTHON=python{its['python']} ./lab … (with LAB_VENV=DIR where .venv has another Python already)"
            )
        for what in ("lock", "sources"):
            if its[what] != here[what]:
                name = LOCKS[0] if what == "lock" else "the code"
                archive = shlex.quote(str(self.path.absolute()))
                raise BadBundle(
                    f"{self.path} was packed at commit {commit}, and {name} differs here: git checkout {commit}, "
                    f"or take the project from the bundle itself: tar -xOf {archive} project.tar.gz | tar -xz && "
                    "cd aligner-lab"
                )

    def names(self, prefix: str) -> list[str]:
        """The bundle's files whose names begin with `prefix`."""
        return [name for name in self.files if name.startswith(prefix)]

    def has(self, name: str, file: Path) -> bool:
        """Whether a file outside of the bundle has the same content as the bundle's file `name`."""
        return file.is_file() and _sha256(file) == self.files[name]["sha256"]

    def has_sizes(self, prefix: str, folder: Path) -> bool:
        """Whether a folder has all of the bundle's files with `prefix`, in their sizes. Their contents are not compared."""
        files = (
            (folder / name.removeprefix(prefix), self.files[name]["size"]) for name in self.names(prefix)
        )
        return all(file.is_file() and file.stat().st_size == size for file, size in files)

    def unpack(self, prefix: str, into: Path) -> Path:
        """Write the files with `prefix` to a folder, under their names without the prefix. See `unpacked`."""
        with self.unpacked({prefix: into}) as folders:
            replace_folder(into, folders[prefix])
        return into

    @contextmanager
    def unpacked(self, places: Mapping[str, Path]) -> Iterator[dict[str, Path]]:
        """Unpack the files of several prefixes into new temporary folders, for the duration of a `with` block.

        places: prefix → the folder that the caller will create or replace (`replace_folder`). Each temporary folder is next to
        the caller's folder, and yielded by prefix. The block begins after all files were compared with the manifest, so a
        damaged bundle replaces no folder. Raises BadBundle, with the file's name.
        """
        with ExitStack() as stack:
            folders = {prefix: stack.enter_context(atomic_path(into)) for prefix, into in places.items()}
            for folder in folders.values():
                folder.mkdir()
            try:
                for name, source in self._members():
                    prefix = next((prefix for prefix in folders if name.startswith(prefix)), None)
                    if prefix is not None:
                        target = folders[prefix] / name.removeprefix(prefix)
                        _copy(source, target, self.files[name], f"{self.path}: {name}")
            except (tarfile.TarError, EOFError) as error:
                raise BadBundle(
                    f"{self.path} is cut short or damaged ({error}): copy the bundle again"
                ) from None
            yield folders

    def _members(self) -> Iterator[tuple[str, object]]:
        """The archive's files after the manifest. Raises BadBundle if the files differ from those in the manifest."""
        missing = dict(self.files)
        with tarfile.open(self.path, "r:") as archive:
            archive.next()
            while member := archive.next():
                listed = missing.pop(member.name, None)
                if listed is None or member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    raise BadBundle(
                        f"{self.path}: {member.name!r} differs from the manifest: the file was changed"
                    )
                if member.size != listed["size"]:
                    raise BadBundle(_damaged(f"{self.path}: {member.name}"))
                yield member.name, archive.extractfile(member)
        if missing:
            raise BadBundle(f"{self.path} is cut short: {min(missing)} is missing: copy the bundle again")


def replace_folder(folder: Path, new: Path) -> None:
    """Rename the folder `new` to `folder`. An existing folder is replaced, and removed afterwards."""
    if not folder.exists():
        new.rename(folder)
        return
    with atomic_path(folder) as old:
        folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            old.rename(folder)
            raise


def write(path: Path, manifest: dict, files: Mapping[str, Path]) -> Path:
    """Write a bundle. files: name in the archive → path of the file. manifest: the manifest without the list of files."""
    listed = {name: {"size": file.stat().st_size, "sha256": _sha256(file)} for name, file in files.items()}
    text = json.dumps({"format": FORMAT, **manifest, "files": listed}, indent=1).encode()
    read_manifest(text, FORMAT)  # refuse to write a manifest that no reader would accept
    with atomic_path(path) as partial:
        head = partial.with_name(f"{partial.name}.json")
        head.write_bytes(text)
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT, dereference=True) as archive:
            for name, file in [(MANIFEST, head), *files.items()]:
                archive.add(file, arcname=name, recursive=False, filter=_without_owner)
        partial.rename(path)
    return path


def unpack_wheels(path: str | Path, folder: Path) -> None:
    """Unpack a bundle's wheels and the program `uv` into a folder. Raises BadBundle if the bundle does not fit."""
    bundle = Bundle(path)
    bundle.check_fits()
    wheels = bundle.unpack(WHEELS, Path(folder))
    for wheel in wheels.glob("uv-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (binary,) = [name for name in archive.namelist() if name.endswith(".data/scripts/uv")]
            (wheels / "uv").write_bytes(archive.read(binary))
        (wheels / "uv").chmod(0o755)


def _sources(root: Path) -> str:
    """A hash of the packages' file names and contents, independent of the project's path."""
    digest = hashlib.sha256()
    for file in sorted(source_files(root)):
        digest.update(f"{file.relative_to(root).as_posix()}\n{_sha256(file)}\n".encode())
    return digest.hexdigest()


def source_files(root: Path) -> list[Path]:
    """The packages' files, without caches and hidden files."""
    paths = [path for package in PACKAGES for path in (root / package).rglob("*") if path.is_file()]
    parts = [(path, path.relative_to(root).parts) for path in paths]
    return [path for path, names in parts if not any(n.startswith(".") or n == "__pycache__" for n in names)]


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source, path: Path, expected: dict, named: str) -> None:
    """Write a file of the archive to `path`. Raises BadBundle if the content differs from the manifest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != expected["sha256"]:
        raise BadBundle(_damaged(named))


def _damaged(named: str) -> str:
    return f"{named} is damaged: its SHA-256 is not the manifest's; copy the bundle again"


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


if __name__ == "__main__":
    try:
        unpack_wheels(sys.argv[1], Path(sys.argv[2]))
    except (UserError, OSError) as error:
        sys.exit(f"lab: {error}")
