"""The workshop's bundle: one file with which a clone is set up where there is no network.

An uncompressed tar archive. Its first file, manifest.json, says what it was made for and has each other file's length and
SHA-256; `project.tar.gz` is the project, `wheels/` what requirements.lock asks for and uv, `model/` the profile's model,
`recorded/` the runs of a finished tutorial. Every file is checked as it is unpacked.

`./lab` unpacks the wheels with this module before anything is installed, so it imports the standard library alone:

    python -m aligner_lib.tutorial.bundle FILE FOLDER
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from aligner_lib.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = "manifest.json"
FORMAT = 1
MANIFEST_BYTES = 1 << 24  # more is no manifest of ours
CHUNK = 1 << 20
PACKAGES = ("aligner_lib", "cluster", "data", "widgets")
WHEELS = "wheels/"


class BadBundle(UserError):
    """A bundle that is damaged, or was made for something else."""


def made_for(root: Path = ROOT) -> dict[str, str]:
    """What a bundle has to agree with: Python, platform, the lock, and the packages' sources."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "platform": sysconfig.get_platform(),
        "lock": _sha256(root / "requirements.lock"),
        "sources": _sources(root),
    }


class Bundle:
    """A bundle that has been opened. Raises BadBundle for a file that is none, FileNotFoundError without one."""

    def __init__(self, path: str | Path):
        self.path = Path(path).expanduser()
        try:
            with tarfile.open(self.path, "r:") as archive:
                first = archive.next()
                if first is None or first.name != MANIFEST or not 0 < first.size < MANIFEST_BYTES:
                    raise BadBundle(f"{self.path} is no bundle: its first file is not {MANIFEST}")
                self.manifest = json.load(archive.extractfile(first))
            self.files: dict[str, dict] = self.manifest["files"]
            known = self.manifest["format"] == FORMAT
        except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError) as error:
            raise BadBundle(f"{self.path} is no bundle, or its beginning is damaged ({error})") from None
        if not known:
            raise BadBundle(f"{self.path} has another format than this project reads: pack it anew")

    def check_fits(self, here: Mapping[str, str] | None = None) -> None:
        """Raises BadBundle, with the cure, for a bundle of another Python, platform, lock or commit."""
        here, its = here or made_for(), self.manifest
        commit = its.get("commit", "")
        if its["platform"] != here["platform"]:
            raise BadBundle(
                f"{self.path} is for {its['platform']}, and this is {here['platform']}: pack one on such a machine"
            )
        if its["python"] != here["python"]:
            raise BadBundle(
                f"{self.path} is for Python {its['python']}, and this is {here['python']}: "
                f"LAB_PYTHON=python{its['python']} ./lab … (with LAB_VENV=DIR where .venv has another Python already)"
            )
        for what in ("lock", "sources"):
            if its[what] != here[what]:
                name = "requirements.lock" if what == "lock" else "the code"
                raise BadBundle(
                    f"{self.path} was packed at commit {commit}, and {name} is another one here: git checkout {commit}, "
                    f"or take the project from the bundle itself: tar -xOf {self.path.name} project.tar.gz | tar -xz"
                )

    def names(self, prefix: str) -> list[str]:
        """The files whose names begin so."""
        return [name for name in self.files if name.startswith(prefix)]

    def has(self, name: str, file: Path) -> bool:
        """Whether a file outside is this one of the bundle's."""
        return file.is_file() and _sha256(file) == self.files[name]["sha256"]

    def unpack(self, prefix: str, into: Path) -> Path:
        """Write the files below `prefix`, without it, to a folder, each checked against the manifest.

        A folder that stands there already is replaced, at the end: nothing is left of a bundle that is damaged. Raises
        BadBundle, which names the file.
        """
        partial = into.with_name(f".{into.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            missing = set(self.names(prefix))
            for name, source in self._members(prefix):
                _write(
                    partial / _safe(name.removeprefix(prefix)),
                    source,
                    self.files[name],
                    f"{self.path}: {name}",
                )
                missing.discard(name)
            if missing:
                raise BadBundle(f"{self.path} is cut short: {min(missing)} is missing; copy it again")
            shutil.rmtree(into, ignore_errors=True)
            partial.rename(into)
        except (tarfile.TarError, EOFError) as error:
            raise BadBundle(f"{self.path} is cut short or damaged ({error}): copy it again") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return into

    def _members(self, prefix: str) -> Iterator[tuple[str, object]]:
        """The archive's files below a prefix, once each. A file that the manifest does not name is an error."""
        seen = {MANIFEST}
        with tarfile.open(self.path, "r:") as archive:
            archive.next()
            while member := archive.next():
                if member.name not in self.files or member.name in seen or not member.isreg():
                    raise BadBundle(
                        f"{self.path}: {member.name!r} is not what the manifest says: it was changed"
                    )
                seen.add(member.name)
                if member.name.startswith(prefix):
                    yield member.name, archive.extractfile(member)


def write(path: Path, manifest: dict, files: Mapping[str, Path]) -> Path:
    """Write a bundle. files: the name in the archive → where it lies; manifest: the rest of what it says."""
    partial = path.with_name(f".{path.name}.partial")
    listed = {name: {"size": file.stat().st_size, "sha256": _sha256(file)} for name, file in files.items()}
    text = json.dumps({"format": FORMAT, **manifest, "files": listed}, indent=1).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        head = partial.with_name(f"{partial.name}.json")
        head.write_bytes(text)
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT, dereference=True) as archive:
            for name, file in [(MANIFEST, head), *files.items()]:
                archive.add(file, arcname=name, recursive=False, filter=_without_owner)
        partial.rename(path)
    finally:
        head.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)
    return path


def unpack_wheels(path: str | Path, folder: Path) -> None:
    """The wheels of a bundle that fits, into a folder, and uv's own program beside them."""
    bundle = Bundle(path)
    bundle.check_fits()
    wheels = bundle.unpack(WHEELS, Path(folder))
    for wheel in wheels.glob("uv-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (binary,) = [name for name in archive.namelist() if name.endswith(".data/scripts/uv")]
            (wheels / "uv").write_bytes(archive.read(binary))
        (wheels / "uv").chmod(0o755)


def _sources(root: Path) -> str:
    """A hash of what the packages consist of: names and contents, whatever the folder is."""
    digest = hashlib.sha256()
    for file in sorted(source_files(root)):
        digest.update(f"{file.relative_to(root).as_posix()}\n{_sha256(file)}\n".encode())
    return digest.hexdigest()


def source_files(root: Path) -> list[Path]:
    """The packages' files, without what Python and tools leave between them."""
    found = [path for package in PACKAGES for path in (root / package).rglob("*") if path.is_file()]
    parts = [(path, path.relative_to(root).parts) for path in found]
    return [path for path, names in parts if not any(n.startswith(".") or n == "__pycache__" for n in names)]


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _safe(name: str) -> PurePosixPath:
    """A relative path that stays where it is put. Raises BadBundle."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name:
        raise BadBundle(f"a bundle may not hold a file named {name!r}: it was not packed by this project")
    return path


def _write(path: Path, source, expected: dict, named: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
    if size != expected["size"] or digest.hexdigest() != expected["sha256"]:
        raise BadBundle(f"{named} is damaged: its SHA-256 is not the manifest's; copy the bundle again")


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
