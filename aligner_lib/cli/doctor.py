"""`aligner doctor`: lists the parts of an installation on this machine, and for each missing part the consequences."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster.findings import Finding
from cluster.schedulers import availability

OK, MISSING, NOTE = "[green]✓[/]", "[red]✗[/]", "[yellow]–[/]"
GIB = 1 << 30
# not an extra of the package: pip would refuse the combination with the extra `pytriton`, because verifiers requires numpy 2
ENVIRONMENTS = Path(__file__).parents[2] / "requirements-environments.lock"

PROCESSOR = Path("/proc/cpuinfo")
BF16_FEATURES = {"avx512_bf16", "amx_bf16"}  # as Linux names them

# package: the consequences if the package is missing
NEEDED = {
    "torch": "nothing can be trained",
    "megatron-core": "nothing can be trained",
    "papermill": "`aligner tutorial` can't run",
    "jupyterlab": "`aligner jupyter` can't start",
    "ipywidgets": "notebooks show no widgets, only their pictures and tables",
    "plotly": "`explore` can't draw; monitors and `curves` do without it",
    "submitit": "notebooks can't start training beside them",
}
OPTIONAL = {
    "transformer-engine": "only GPUs use it; there, Megatron's own layers work without it, slower",
    "trl": "only `./lab test` and `./lab bench` need it, and install it",
}


def report() -> None:
    """Print the findings. Exits with 1 if a part is missing that the tutorial needs."""
    findings = list(examine())
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    for finding in findings:
        mark = OK if finding.ok else (MISSING if finding.needed else NOTE)
        table.add_row(mark, finding.what, escape(finding.detail))
    Console(soft_wrap=False).print(table)
    if any(finding.needed and not finding.ok for finding in findings):
        raise SystemExit(1)


def examine(hub: bool = True) -> Iterator[Finding]:
    """Examine Python, memory, GPU, packages, schedulers, cached models and the hub. Yields a finding at a time.

    hub: check whether the Hugging Face hub answers; without a connection the check takes seconds.
    """
    yield _python()
    yield from _machine()
    yield _cuda()
    for package, cost in NEEDED.items():
        yield _package(package, cost, needed=True)
    for package, cost in OPTIONAL.items():
        yield _package(package, cost, needed=False)
    yield _pytriton()
    yield pinned_versions()
    yield from availability()
    yield _models()
    if hub:
        yield _hub()


def _ok(what: str, detail: str) -> Finding:
    return Finding(what, True, detail)


def _note(what: str, detail: str) -> Finding:
    """A finding on a missing part that jobs do not need."""
    return Finding(what, False, detail, needed=False)


def _missing(what: str, detail: str) -> Finding:
    return Finding(what, False, detail)


def _python() -> Finding:
    version = platform.python_version_tuple()[:2]
    suitable = version in (("3", "11"), ("3", "12"), ("3", "13"))
    cure = "" if suitable else "; 3.11, 3.12 or 3.13 is needed: LAB_PYTHON=python3.12 ./lab …"
    return (_ok if suitable else _missing)(
        "Python",
        f"{platform.python_version()} on {platform.platform(terse=True)}{cure}",
    )


def _machine() -> Iterator[Finding]:
    memory, free = psutil.virtual_memory(), shutil.disk_usage(Path.cwd()).free
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield _ok("cores", f"{cores}, {bf16_units(PROCESSOR)}")
    enough = memory.available >= 8 * GIB
    yield (_ok if enough else _note)(
        "memory",
        f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
        + ("" if enough else "; the laptop profile needs 8: close some programs, or use --profile smoke"),
    )
    enough = free >= 10 * GIB
    yield (_ok if enough else _note)(
        "disk",
        f"{free / GIB:.0f} GiB free here"
        + ("" if enough else "; a laptop tutorial writes ten, most in checkpoints"),
    )


def bf16_units(processor: Path) -> str:
    """The laptop profile's precision, by the processor's list of features. A job measures both precisions when the job starts."""
    with suppress(OSError):
        if BF16_FEATURES & set(processor.read_text().split()):
            return "with units for bf16: the laptop profile computes in bf16, twice as fast as in float32"
    return "without known units for bf16: the laptop profile computes in float32"


def _cuda() -> Finding:
    if not shutil.which("nvidia-smi"):
        return _note("CUDA", "no GPU: the profiles smoke and laptop run on the CPU")
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return _note("CUDA", f"nvidia-smi does not answer ({problem}): no GPU is used")
    if answer.returncode:
        return _note(
            "CUDA",
            f"nvidia-smi fails ({answer.stdout.strip() or answer.stderr.strip()}): no GPU is used",
        )
    gpus = "; ".join(answer.stdout.strip().splitlines())
    with suppress(importlib.metadata.PackageNotFoundError):
        if importlib.metadata.version("torch").endswith("+cpu"):
            cure = "make an environment with CUDA's libraries: LAB_VENV=DIR LAB_TORCH=cuda ./lab …"
            return _note("CUDA", f"{gpus}: not used, because torch is its CPU build; {cure}")
    return _ok("CUDA", gpus)


def _package(name: str, cost: str, needed: bool) -> Finding:
    try:
        return _ok(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, f"not installed: {cost}", needed)


def _pytriton() -> Finding:
    cost = "critic and reward model can't be jobs of their own; PPO as one job and everything else work"
    try:
        version = importlib.metadata.version("nvidia-pytriton")
    except importlib.metadata.PackageNotFoundError:
        cure = "Python 3.11 or 3.12 on Linux has it, with ./lab or `pip install -e '.[pytriton]'`"
        return _note("nvidia-pytriton", f"not installed: {cost}; {cure}")
    numpy = importlib.metadata.version("numpy")
    if int(numpy.partition(".")[0]) >= 2:
        return _note(
            "nvidia-pytriton",
            f"{version}, which answers with empty arrays under numpy {numpy}: {cost}; pip install 'numpy>=1.26,<2'",
        )
    return _ok("nvidia-pytriton", version)


def _pins(lock: Path) -> list[Requirement]:
    """The pins of a lock; empty without the file, which a wheel does not contain."""
    text = lock.read_text() if lock.exists() else ""
    return [Requirement(pin) for pin in re.findall(r"^([\w.-]+==.+?) \\$", text, re.MULTILINE)]


def pinned_versions(project: str = "aligner-lab") -> Finding:
    """Compare each installed package that the project pins, in its lock or an extra's lock, with the pinned version."""
    try:
        requirements = [*map(Requirement, importlib.metadata.requires(project) or ()), *_pins(ENVIRONMENTS)]
    except importlib.metadata.PackageNotFoundError:
        return _note(
            "versions", f"{project} is not installed, so no version can be compared: pip install -e ."
        )
    pins: dict[str, set[SpecifierSet]] = {}  # two extras may pin a package at different versions
    for requirement in requirements:
        extra = re.search(r'extra == "(\w+)"', str(requirement.marker))
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra[1] if extra else ""}):
            pins.setdefault(requirement.name, set()).add(requirement.specifier)
    other, compared = [], 0
    for name, pinned in sorted(pins.items()):
        with suppress(importlib.metadata.PackageNotFoundError):  # a missing package has its own finding
            installed = importlib.metadata.version(name)
            compared += 1
            # `==2.15.0` also accepts a local version of the same release, such as 2.15.0+cpu
            if not any(specifier.contains(installed, prereleases=True) for specifier in pinned):
                versions = sorted(str(specifier).removeprefix("==") for specifier in pinned)
                other.append(f"{name} {installed} (pinned: {' or '.join(versions)})")
    if other:
        stamp = Path(sys.prefix) / "lab.stamp"
        locks = (
            "requirements.lock",
            "requirements-pytriton.lock",
        )  # in this order: the second has an older numpy
        cure = " && ".join(f"uv pip install --no-deps --require-hashes -r {lock}" for lock in locks)
        if stamp.exists():
            cure = f"remove {stamp}, and `./lab doctor` installs the pinned versions"
        return _missing(
            "versions", f"{', '.join(other)}: other versions than this project was tested with; {cure}"
        )
    return _ok("versions", f"{compared} packages are as pinned")


def _models() -> Finding:
    from aligner_lib.models import MODELS
    from aligner_lib.models.fetch import cache_root, is_cached

    root = cache_root()
    cached = [name for name in MODELS if is_cached(name)]
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    words = (
        f"{', '.join(cached)} ({size / 1e6:.0f} MB in {root})"
        if cached
        else f"none in {root} yet; fetched when needed"
    )
    return (_ok if cached else _note)("models", words)


def _hub(timeout: float = 3.0) -> Finding:
    from huggingface_hub.constants import ENDPOINT

    try:
        urllib.request.urlopen(ENDPOINT, timeout=timeout).close()
        return _ok("hub", "the Hugging Face hub answers")
    except OSError:
        cost = "the model comes from a package instead, data from the bundled samples"
        return _note("hub", f"the Hugging Face hub can't be reached: {cost}")
