"""Pack a workshop's bundle, and install the model and the recorded runs of a bundle."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from packaging.markers import Marker
from packaging.tags import sys_tags
from packaging.utils import NormalizedName, canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from aligner_lib.config.compose import profile_section, profiles
from aligner_lib.errors import UserError
from aligner_lib.models import MODELS, fetch
from aligner_lib.models.fetch import cache_root, is_cached, is_usable, obtain
from aligner_lib.tutorial.workshop.bundle import (
    LOCKS,
    PACKAGES,
    ROOT,
    WHEELS,
    BadBundle,
    Bundle,
    made_for,
    replace_folder,
    write,
)
from aligner_lib.tutorial.workspace import recorded_runs

PROJECT = "project.tar.gz"
MODEL, RECORDED = "model/", "recorded/"
UV = "uv>=0.8"  # the same requirement as in `lab`
PATCHES = 40  # more than any Python has had

Echo = Callable[[str], None]


# ---- pack -----------------------------------------------------------------------------------------------------------


def pack(
    profile: str,
    out: Path,
    tutorial: Path | None = None,
    wheels: Path | None = None,
    root: Path = ROOT,
    echo: Echo = print,
) -> Path:
    """Write a bundle for the current Python and platform.

    tutorial: the folder of a finished tutorial, whose runs become the recorded runs. wheels: a folder with the wheels of LOCKS
    and of uv; None: download the wheels, with the user's pip settings. Raises UserError for a clone with uncommitted changes, for
    a folder without uv or a package of LOCKS, and for a failed download.
    """
    commit = _commit(root)
    if wheels:
        _check_wheels(root, wheels)
    runs = recorded_runs.packable(tutorial) if tutorial else []
    if tutorial and not runs:
        raise UserError(f"--tutorial {tutorial}: there is no finished run in {tutorial / 'runs'}")
    for run in runs:
        _check_profile(run, profile)
    model = profile_section(profile, "tutorial").get("model", "smollm2-135m")
    place = out.absolute().parent
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".workshop-", dir=place) as folder:
        tmp_dir = Path(folder)
        files = {PROJECT: _project(root, tmp_dir)}
        wheels = wheels or _download(root, tmp_dir / "wheels", echo)
        files |= {WHEELS + path.name: path for path in sorted(wheels.iterdir()) if path.is_file()}
        files |= _below(fetch(model), MODEL)
        for run in runs:
            for name, info in recorded_runs.infos_to_pack(run).items():
                packed = tmp_dir / "infos" / run.name / name
                packed.parent.mkdir(parents=True, exist_ok=True)
                packed.write_text(recorded_runs.as_json(info))
                files[f"{RECORDED}{run.name}/{name}"] = packed
            files |= {f"{RECORDED}{run.name}/{name}": path for name, path in recorded_runs.files_of(run)}
        manifest = {
            **made_for(root),
            "commit": commit,
            "created": round(time.time()),
            "profile": profile,
            "model": model,
            "runs": [run.name for run in runs],
        }
        echo(f"{len(files)} files; hashing and writing {out}")
        return write(out, manifest, files)


def _check_wheels(root: Path, wheels: Path) -> None:
    download = f"pip download --no-deps -d {shlex.quote(str(wheels))}"
    if not any(wheels.glob("uv-*.whl")):
        raise UserError(
            f"--wheels {wheels}: there is no uv-*.whl, without which a seat needs a network: {download} '{UV}'"
        )
    held = _installable(wheels)
    for lock in LOCKS:
        if missing := _missing((root / lock).read_text(), held):
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise UserError(
                f"--wheels {wheels} lacks {shown} of {lock}, or has files for another Python or platform: {download} "
                f"--require-hashes -r {lock}"
            )


def _installable(wheels: Path) -> set[tuple[NormalizedName, Version]]:
    """The name and version of each package of a folder for the current Python and platform."""
    held, here = set(), set(sys_tags())
    for path in wheels.iterdir():
        with suppress(ValueError):  # the name is no package's
            if path.suffix == ".whl":
                name, version, _, tags = parse_wheel_filename(path.name)
                if here.isdisjoint(tags):
                    continue
            else:
                name, version = parse_sdist_filename(path.name)
            held.add((name, version))
    return held


def _missing(lock: str, held: Collection[tuple[NormalizedName, Version]]) -> list[str]:
    """NAME==VERSION of each package of a lock for the current Python and platform, except the packages in `held`."""
    entries = re.findall(r"^(\S+)==(\S+)(?: ; (.+?))?(?: \\)?$", lock, re.MULTILINE)
    return [
        f"{name}=={version}"
        for name, version, condition in entries
        if (canonicalize_name(name), Version(version)) not in held
        and (not condition or Marker(condition).evaluate())
    ]


def _commit(root: Path) -> str:
    """The checked-out commit. Raises UserError without a clone, and if the packages or the locks have uncommitted changes."""
    commit = _git(root, "rev-parse", "--short=12", "HEAD").strip()
    changed = _git(root, "status", "--porcelain", "--", *PACKAGES, *LOCKS, "lab", "notebooks")
    if changed:
        raise UserError(
            f"{root} has uncommitted changes ({changed.split()[-1]} …): a bundle holds a commit; commit or stash them"
        )
    return commit


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"packing needs git, which does not start ({error}): install git") from None
    if done.returncode:
        is_clone = words[0] != "rev-parse"
        fault = (
            f"`git {words[0]}` fails in {root}"
            if is_clone
            else f"{root} is no git clone, which packing needs"
        )
        raise UserError(f"{fault}: {done.stderr.strip()}")
    return done.stdout


def _project(root: Path, tmp_dir: Path) -> Path:
    archive = tmp_dir / PROJECT
    _git(root, "archive", "--format=tar.gz", "--prefix=aligner-lab/", "-o", str(archive), "HEAD")
    return archive


def _download(root: Path, folder: Path, echo: Echo) -> Path:
    """Download the packages of LOCKS for this machine, with a check of each file's hash, and uv.

    The packages include those for other patch releases of this Python, such as Debian's 3.11.2 for 3.11.7.
    """
    folder.mkdir(parents=True)
    echo(f"downloading the packages of {' and '.join(LOCKS)}")
    quiet = ["download", "--quiet", "--no-deps", "--no-cache-dir", "-d", str(folder)]
    packages = [["--require-hashes", "-r", str(root / lock)] for lock in LOCKS]
    for lock in LOCKS:
        for entry in entries_of_other_patches((root / lock).read_text(), platform.python_version()):
            # a lock of its own, because pip takes a single version of a package
            own = folder.with_name(f"{entry.split()[0]}.lock")
            own.write_text(entry)
            packages.append(["--ignore-requires-python", "--require-hashes", "-r", str(own)])
    with _pip() as pip:
        for what in (*packages, [UV]):
            done = subprocess.run([*pip, *quiet, *what], capture_output=True, text=True)
            if done.returncode:
                raise UserError(f"pip can't download {what[-1]}: {_reason(done)}")
    return folder


def entries_of_other_patches(lock: str, python: str) -> list[str]:
    """The entries of a lock that other patch releases of a Python version take and the version itself does not.

    The entries come without their markers.
    """
    minor, entries = python.rpartition(".")[0], []
    versions = [f"{minor}.{patch}" for patch in range(PATCHES)]
    for pinned, condition, hashes in re.findall(
        r"^(\S+==\S+) ; (.+?)( \\\n(?: +--hash.*\n?)+)", lock, re.MULTILINE
    ):
        marker = Marker(condition)
        fits = [marker.evaluate({"python_full_version": version}) for version in (python, *versions)]
        if any(fits) and not fits[0]:
            entries.append(pinned + hashes)
    return entries


def _reason(done: subprocess.CompletedProcess) -> str:
    return (done.stderr.strip().splitlines()[-1:] or ["no reason is given"])[0]


@contextmanager
def _pip() -> Iterator[list[str]]:
    """The command of pip: from the environment, from its base Python, or else a temporary installation by uv."""
    own = PathFinder.find_spec("pip")
    base = getattr(sys, "_base_executable", sys.executable)
    if own or subprocess.run([base, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        yield [sys.executable if own else base, "-m", "pip"]
        return
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    uv = shutil.which("uv", path=beside)
    if uv is None:
        raise UserError("packing needs pip or uv, and neither is here")
    with tempfile.TemporaryDirectory(prefix="aligner-pip-") as folder:
        install = [uv, "pip", "install", "--quiet", "--target", folder, "pip"]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"packing needs pip, which uv can't install: {_reason(done)}")
        yield [sys.executable, str(Path(folder) / "pip")]


def _below(folder: Path, prefix: str) -> dict[str, Path]:
    return {
        f"{prefix}{path.relative_to(folder).as_posix()}": path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _check_profile(run, profile: str) -> None:
    if run.info.get("profile") != profile:
        raise UserError(
            f"{run.path} is a run of the profile {run.info.get('profile')}, but the bundle is for {profile}: pack a "
            f"run of {profile}"
        )


# ---- install --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unpacked:
    """A recipe that takes the model from the folder of an unpacked bundle."""

    folder: Path
    name: str

    def is_current(self, origin: dict) -> bool:
        return MODELS[self.name].is_current(origin)

    def make(self, name: str, out: Path, progress: bool) -> None:
        self.folder.rename(out)


def take_over(path: str | Path, echo: Echo = print) -> Bundle:
    """Install a bundle's model and recorded runs in the cache.

    Raises BadBundle if the bundle is damaged, belongs to another machine or commit, or has a name that leads out of the cache.
    The cache changes only after all files of the bundle were checked.
    """
    bundle = Bundle(path)
    bundle.check_fits()
    name, profile, runs = (bundle.manifest[field] for field in ("model", "profile", "runs"))
    if name not in MODELS:
        raise BadBundle(
            f"{bundle.path} holds the model {name!r}, which the project does not know: pack the bundle anew"
        )
    if profile not in profiles():
        raise BadBundle(
            f"{bundle.path} is for the profile {profile!r}, which the project does not have: pack the bundle anew"
        )
    model, recorded = cache_root() / "models" / name, recorded_runs.recorded_root(profile)
    places = {} if is_cached(name) else {MODEL: _inside(model.parent, name, bundle)}
    for run in runs:
        into, prefix = _inside(recorded, run, bundle), f"{RECORDED}{run}/"
        if not (bundle.has(f"{prefix}run.json", into / "run.json") and bundle.has_sizes(prefix, into)):
            places[prefix] = into
    if places:
        with bundle.unpacked(places) as folders:
            _take_model(bundle, name, model, folders.get(MODEL))
            for prefix in places.keys() - {MODEL}:
                replace_folder(places[prefix], folders[prefix])
    echo(f"model {name}: in {cache_root()}")
    if runs:
        echo(f'recorded runs ({profile}): {", ".join(runs)}; notebooks use them with start = "recorded"')
    return bundle


def _inside(root: Path, name: str, bundle: Bundle) -> Path:
    """A folder of the cache. Raises BadBundle if a symbolic link leads out of the cache."""
    folder = root / name
    if folder.resolve() != root.resolve() / name:
        raise BadBundle(
            f"{bundle.path} would replace {folder}, which leads to {folder.resolve()}: remove the link, and start again"
        )
    return folder


def _take_model(bundle: Bundle, name: str, place: Path, unpacked: Path | None) -> None:
    """Install the unpacked model in the cache. Raises BadBundle if the project's recipe of this name makes another model."""
    if unpacked is None:
        return
    recipe = _Unpacked(unpacked, name)
    if not is_usable(unpacked, recipe):
        raise BadBundle(
            f"{bundle.path}: its model {name} differs from the project's model of the same name: pack the bundle anew"
        )
    cure = "ask the cache's owner to unpack the bundle"
    obtain(name, recipe, place, progress=True, cure=cure)
