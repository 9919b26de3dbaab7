"""`aligner doctor`: lists the parts of an installation on this machine, and for each missing part the consequences."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aligner_lib.cli.checkout import way_to_install
from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments.process_group import check_locks
from cluster.cgroups import memory_limits
from cluster.cores import usable_cores
from cluster.findings import Finding
from cluster.schedulers import availability

OK, MISSING, NOTE = "[green]✓[/]", "[red]✗[/]", "[yellow]–[/]"
GIB = 1 << 30
# not an extra of the package: pip would refuse the combination with the extra `pytriton`, because verifiers requires numpy 2
ENVIRONMENTS = Path(__file__).parents[2] / "requirements-environments.lock"

PROCESSOR = Path("/proc/cpuinfo")
BF16_FEATURES = {"avx512_bf16", "amx_bf16"}  # as Linux names them

# packages that only PyTorch's CUDA build needs
OF_CUDA = re.compile(r"(triton|cuda-.*|nvidia-.*)$")

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
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd()).free
    free, total = map(min, zip((memory.available, memory.total), *memory_limits()))
    yield _ok("cores", f"{usable_cores()}, {bf16_units(PROCESSOR)}")
    enough = free >= 8 * GIB
    yield (_ok if enough else _note)(
        "memory",
        f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
        + ("" if enough else "; the laptop profile needs 8: close some programs, or use --profile smoke"),
    )
    try:
        check_locks()
    except UserError as error:
        yield _missing("shared memory", str(error))
    enough = disk >= 10 * GIB
    yield (_ok if enough else _note)(
        "disk",
        f"{disk / GIB:.0f} GiB free here"
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
    """Compare the installed packages with the pinned versions in the project's lock and the extras' locks. A package of an extra
    may be missing."""
    try:
        own = [*map(Requirement, importlib.metadata.requires(project) or ())]
    except importlib.metadata.PackageNotFoundError:
        return _note(
            "versions", f"{project} is not installed, so no version can be compared: pip install -e ."
        )
    pins: dict[str, set[str]] = {}  # two extras may pin a package at different versions
    for requirement in [*own, *_pins(ENVIRONMENTS)]:
        extra = re.search(r'extra == "(\w+)"', str(requirement.marker))
        if _applies(requirement, extra[1] if extra else ""):
            pins.setdefault(requirement.name, set()).add(str(requirement.specifier))
    installed = {}
    for name in pins:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.distribution(name)
    # `==2.15.0` also accepts a local version of the same release, such as 2.15.0+cpu
    others = {
        name: distribution.version
        for name, distribution in installed.items()
        if not any(SpecifierSet(pin).contains(distribution.version, prereleases=True) for pin in pins[name])
    }
    missing = {requirement.name for requirement in own if _applies(requirement)} - installed.keys()
    if "torch" in installed and "+" in installed["torch"].version:  # such as 2.9.0+cpu
        missing = {name for name in missing if not OF_CUDA.match(name)}
    wrong = others | dict.fromkeys(missing, "is not installed")
    if not wrong:
        return _ok("versions", f"{len(installed)} packages are as pinned")
    states = [
        f"{name} {state} (pinned: {' or '.join(sorted(pin.removeprefix('==') for pin in pins[name]))})"
        for name, state in sorted(wrong.items())
    ]
    if folders := _on_python_path(installed[name] for name in others):
        cure = f"PYTHONPATH puts {', '.join(folders)} before this environment: `unset PYTHONPATH`"
    else:
        # the lock's numpy has an upper limit, `<=`, and PyTriton's an exact version
        cure = way_to_install(name + max(pins[name]) for name in sorted(wrong))
    return _missing(
        "versions", f"{', '.join(states)}: this project was tested with the pinned versions; {cure}"
    )


def _applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _on_python_path(distributions: Iterable[importlib.metadata.Distribution]) -> list[str]:
    """The folders on PYTHONPATH that contain any of the distributions."""
    paths = [Path(path).resolve() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    folders = {Path(distribution.locate_file("")).resolve() for distribution in distributions}
    return [str(path) for path in dict.fromkeys(paths) if path in folders]


def _models() -> Finding:
    from aligner_lib.models import MODELS
    from aligner_lib.models.fetch import cache_root, is_cached

    root = cache_root()
    cached = [name for name in MODELS if is_cached(name)]
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    if cached:
        return _ok("models", f"{', '.join(cached)} ({size / 1e6:.0f} MB in {root})")
    place = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    if not os.access(place, os.W_OK):
        return _missing(
            "models",
            f"none in {root}, and {place} can't be written: set ALIGNER_CACHE to a folder of your own",
        )
    return _note("models", f"none in {root} yet; fetched when needed")


def _hub(timeout: float = 3.0) -> Finding:
    from huggingface_hub.constants import ENDPOINT

    try:
        urllib.request.urlopen(ENDPOINT, timeout=timeout).close()
        return _ok("hub", "the Hugging Face hub answers")
    except OSError:
        cost = "the model comes from a package instead, data from the bundled samples"
        return _note("hub", f"the Hugging Face hub can't be reached: {cost}")
