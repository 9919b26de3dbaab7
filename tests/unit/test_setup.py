"""pyproject.toml, the locks and environment.yml say the same, and hold what the project needs."""

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import tomllib
from functools import cache
from importlib.metadata import Distribution
from itertools import product
from pathlib import Path

import pytest
from import_graph import ROOMS, imports, modules
from omegaconf import OmegaConf
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import aligner_lib

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = ("pytriton", "bench", "environments", "exporters", "hub", "json", "site", "gpu")
MACHINES = {
    f"{system} {python}": {
        "python_version": python, "python_full_version": f"{python}.5", "sys_platform": system,
        "platform_machine": machine, "platform_system": "Linux" if system == "linux" else "Darwin",
        "implementation_name": "cpython", "platform_python_implementation": "CPython", "os_name": "posix",
    }
    for python in ("3.11", "3.12", "3.13")
    for system, machine in (("linux", "x86_64"), ("darwin", "arm64"))
}  # fmt: skip


@cache
def lines(lock: str) -> list[tuple[str, str, Marker | None]]:
    """A lock's packages, their versions, and the machines that take them."""
    text = (ROOT / lock).read_text()
    pins = re.findall(r"^([\w.-]+)==(\S+)(?: ; (.*?))? \\$", text, re.MULTILINE)
    return [(package, version, Marker(marker) if marker else None) for package, version, marker in pins]


@cache
def locked(lock: str, machine: str) -> dict[str, str]:
    """A lock's versions on one kind of machine."""
    pins = {}
    for package, version, marker in lines(lock):
        if marker is None or marker.evaluate(MACHINES[machine]):
            assert package not in pins, f"{package} stands twice for {machine}"
            pins[canonicalize_name(package)] = version
    return pins


def direct(group: str = "lab") -> list[Requirement]:
    return [Requirement(line) for line in PYPROJECT["dependency-groups"][group]]


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_the_locks_hold_every_direct_dependency_at_a_version_that_is_allowed(extra):
    for name, machine in MACHINES.items():
        pins = locked("requirements.lock", name)
        if extra is not None:
            more = locked(f"requirements-{extra}.lock", name)
            other = {package for package in pins.keys() & more.keys() if pins[package] != more[package]}
            assert other <= ({"numpy"} if "nvidia-pytriton" in more else set()), extra
            pins = pins | more
        for requirement in direct(extra or "lab"):
            if requirement.marker is None or requirement.marker.evaluate(machine):
                version = pins.get(canonicalize_name(requirement.name))
                assert version is not None, f"{requirement} is not in the lock: ./lab lock"
                allowed = requirement.specifier.contains(version, prereleases=True)
                assert allowed, f"{requirement}: {version}: ./lab lock"


def test_every_pin_has_a_hash():
    for name in ("requirements.lock", *(f"requirements-{extra}.lock" for extra in EXTRAS)):
        text = re.sub(r"^ *#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
        for entry in re.split(r"\n(?=\S)", text.strip()):
            assert "==" in entry and "--hash=sha256:" in entry, f"{name}: {entry[:80]}"


# the extra `pytriton`, and packages with an adapter, which says how to install them
OPTIONAL = set(
    "docutils llguidance mcp pytriton tritonclient reasoning_gym verifiers wandb mlflow trackio".split()
)
# these files run beside TRL, in an environment of their own
ELSEWHERE = "aligner_lib.jobs.graduate.trl_scripts."


def test_every_import_is_a_dependency_or_comes_with_one():
    direct_names = {canonicalize_name(requirement.name) for requirement in direct()}
    indirect_names = {
        canonicalize_name(Requirement(line).name)
        for name in direct_names
        for line in importlib.metadata.requires(name) or ()
    }
    providers = importlib.metadata.packages_distributions()
    for module in (module for module in modules() if not module.startswith(ELSEWHERE)):
        tops = {name.partition(".")[0] for name in imports(module, anywhere=True)}
        for top in tops - {*sys.stdlib_module_names, *ROOMS, *OPTIONAL}:
            names = {canonicalize_name(name) for name in providers[top]}
            assert names & (direct_names | indirect_names), f"{module} imports {top}"


def test_a_machine_gets_the_megatron_and_the_numpy_that_its_python_and_pytriton_need():
    for name, machine in MACHINES.items():
        base, extra = locked("requirements.lock", name), locked("requirements-pytriton.lock", name)
        fits = machine["sys_platform"] == "linux" and machine["python_version"] != "3.13"
        assert "nvidia-pytriton" not in base and ("nvidia-pytriton" in extra) == fits
        assert base["numpy"].startswith("2.") and extra.get("numpy", "").startswith("1.26." if fits else "2.")
        assert "torch" in base
        assert base["megatron-core"].startswith("0.16." if machine["python_version"] == "3.11" else "0.19.")


def test_packages_that_the_cpu_build_leaves_out_are_needed_by_torch_alone():
    """`./lab` leaves these packages out by their names, and a lock says who asks for a package."""
    text = (ROOT / "requirements.lock").read_text()
    entries = re.findall(r"^([\w.-]+)==.*((?:\n +.*)+)", text, re.MULTILINE)
    left_out = {name for name, _ in entries if re.match(r"torch$|triton$|cuda-|nvidia-", name)}
    for name, text in entries:
        askers = set(re.findall(r"^ +# (?:via |  )([\w.-]+)", text, re.MULTILINE))
        assert name == "torch" or name not in left_out or askers <= left_out, f"{name} is needed by {askers}"


def test_conda_and_the_build_without_isolation_use_the_same_lock():
    environment = OmegaConf.to_container(OmegaConf.load(ROOT / "environment.yml"))
    python, pip, packages = environment["dependencies"]
    assert (pip, packages) == ("pip", {"pip": ["-e .[pytriton]"]})
    allowed = Requirement(PROJECT["name"] + PROJECT["requires-python"]).specifier
    assert allowed.contains(python.removeprefix("python="))
    [requirement] = map(Requirement, PYPROJECT["build-system"]["requires"])
    for machine in MACHINES:
        assert requirement.specifier.contains(locked("requirements.lock", machine)[requirement.name])


def test_an_editable_install_asks_for_the_locks_pins():
    [installed] = Distribution.discover(name=PROJECT["name"], path=[sysconfig.get_path("purelib")])
    requirements = [Requirement(line) for line in installed.requires]
    for machine, extra in product(MACHINES, ("", *EXTRAS)):
        if extra == "environments":  # no extra of the project: `./lab test` installs it
            continue
        environment = MACHINES[machine] | {"extra": extra}
        required = {
            (canonicalize_name(requirement.name), str(requirement.specifier))
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate(environment)
        }
        # The extra `pytriton` takes an older numpy, so the project itself pins no more than its newest version.
        pins = locked("requirements.lock", machine).items()
        expected = {(name, f"{'<=' if name == 'numpy' else '=='}{version}") for name, version in pins}
        if extra:
            pins = locked(f"requirements-{extra}.lock", machine).items()
            expected |= {(name, f"=={version}") for name, version in pins}
        assert required == expected, f"{machine}, {extra}"


def test_no_file_names_a_package_index_and_none_is_of_one_persons_tools():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if answer.returncode:
        pytest.skip("not a git checkout")
    tracked = [ROOT / name for name in answer.stdout.split("\0") if name and (ROOT / name).is_file()]
    assert not {path.name for path in tracked} & {"uv.lock", ".python-version", ".DS_Store", "poetry.lock"}
    # the names are put together here, as this file is searched, too
    hosts = [b"pypi" + b".org", b"pythonhosted" + b".org", b"npmjs" + b".org", b"npmjs" + b".com"]
    assert [path for path in tracked if any(host in path.read_bytes() for host in hosts)] == []


def test_ruff_is_content():
    command = [sys.executable, "-m", "ruff", "check", "--quiet", "."]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout


def test_package_changelog_and_notices_agree_with_the_project():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert PROJECT["version"] == aligner_lib.__version__ == newest
    licence, notices = ((ROOT / name).read_text() for name in PROJECT["license-files"])
    assert "Apache License" in licence
    for folder in ("data/samples/", "data/sample_text/", "widgets/recordings/"):
        assert (ROOT / folder).is_dir() and f"`{folder}`" in notices
