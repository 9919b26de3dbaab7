"""PyTorch's build: which one `./lab` takes, with a stand-in for uv, and both with the real uv and an index on this machine."""

import functools
import hashlib
import http.server
import os
import shutil
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from lab_clone import Clone

# what `lab` calls: neither nvidia-smi nor sbatch, which this machine may have
PROGRAMS = "awk cat cmp cp dirname grep head mkdir mv rm sed sh tr uname".split()
LOCK = "torch==9.9 \\\n    --hash=sha256:1\n"


@pytest.fixture
def clone(tmp_path):
    """On a machine without a GPU and without Slurm."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a GPU, whose driver can't be hidden from ./lab")
    clone = Clone(tmp_path)
    (clone.root / "requirements.lock").write_text(LOCK)
    for program in PROGRAMS:
        (clone.tools / program).symlink_to(shutil.which(program))
    clone.environment |= {"UV_INSECURE_HOST": "127.0.0.1", "PATH": str(clone.tools)}
    return clone


def lock_the_cpu_build(clone) -> None:
    (clone.root / "requirements-cpu.lock").write_text("torch==9.9+cpu \\\n    --hash=sha256:0\n")


def test_a_machine_without_a_gpu_gets_the_cpu_build_whose_hash_is_locked(clone):
    lock_the_cpu_build(clone)
    assert clone.lab("runs")[0] == 0
    cpu, rest, *_ = clone.installs()
    assert "--torch-backend cpu --require-hashes -r " in cpu and "requirements-cpu.lock" in cpu
    assert "--require-hashes -r " in rest and "lab.requirements" in rest


@pytest.mark.parametrize("program", ["nvidia-smi", "sbatch", None])
def test_a_machine_that_may_use_a_gpu_or_has_no_locked_cpu_build_gets_the_locks_build(clone, program):
    if program:
        lock_the_cpu_build(clone)
        clone.write_program(clone.tools / program, "#!/bin/sh\n")
    clone.lab("runs")
    assert "--torch-backend cpu" not in " ".join(clone.installs())


def test_a_requested_build_is_kept_and_another_one_refused(clone):
    code, _, err = clone.lab("runs", LAB_TORCH="cpu")
    assert code == 0 and "no lock has a hash of PyTorch's CPU build" in err
    assert " --torch-backend cpu torch==9.9+cpu " in clone.installs()[0]
    (clone.root / "requirements.lock").write_text(LOCK + "# changed\n")
    clone.lab("runs")
    assert "--torch-backend cpu" in clone.installs()[0]
    code, _, err = clone.lab("runs", LAB_TORCH="cuda")
    assert code == 1 and "was made with LAB_TORCH=cpu" in err and "LAB_VENV=DIR LAB_TORCH=cuda" in err
    unknown = clone.lab("runs", LAB_TORCH="rocm", LAB_VENV="other")
    assert unknown[::2] == (1, "lab: LAB_TORCH=rocm is neither cpu nor cuda")


WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# builds the project, without setuptools
BACKEND = f"""
def build_editable(folder, config_settings=None, metadata_directory=None):
    import zipfile
    with zipfile.ZipFile(folder + "/aligner_lab-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("aligner_lib/__main__.py", "import sys; print('handed over:', *sys.argv[1:])")
        info = "aligner_lab-1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: aligner-lab\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", {WHEEL!r})
        wheel.writestr(info + "RECORD", "")
    return "aligner_lab-1.0-py3-none-any.whl"
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "aligner-lab"
version = "1.0"
requires-python = ">=3.11"
[dependency-groups]
lab = ["torch", "torchless", "tritonclient"]
"""
PROJECT += "".join(
    f"{extra} = ['torchless']\n"
    for extra in "pytriton bench environments exporters hub json site gpu".split()
)


def add_wheel(index: Path, name: str, version: str, *requires: str) -> str:
    """A wheel without modules, listed in the simple index of its folder. Returns its hash."""
    record = f"{name.replace('-', '_')}-{version}"
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    with zipfile.ZipFile(folder / f"{record}-py3-none-any.whl", "w") as wheel:
        for file, text in (("METADATA", metadata), ("WHEEL", WHEEL), ("RECORD", "")):
            wheel.writestr(f"{record}.dist-info/{file}", text)
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.whl")}
    links = [f'<a href="{file}#sha256={digest}">{file}</a>' for file, digest in digests.items()]
    (folder / "index.html").write_text("".join(links))
    return digests[f"{record}-py3-none-any.whl"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture
def indexes(clone, tmp_path):
    """Two indexes in a folder, `main` and `cpu`, which a clone with the real uv asks; it is locked."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    uv = shutil.which("uv", path=beside)
    if uv is None:
        pytest.skip("uv is not installed")
    (clone.tools / "uv").unlink()
    (clone.tools / "uv").symlink_to(uv)
    folder = tmp_path / "indexes"
    for name in ("nvidia-cublas", "triton", "torchless", "tritonclient"):
        add_wheel(folder / "main", name, "1.0")
    add_wheel(folder / "main", "torch", "9.9", "nvidia-cublas==1.0", "triton==1.0")
    for name in clone.root.glob("requirements*.lock"):
        name.unlink()
    (clone.root / "pyproject.toml").write_text(PROJECT)
    (clone.root / "backend.py").write_text(BACKEND)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        clone.environment |= {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_NO_CONFIG": "1"}
        clone.environment |= dict.fromkeys(("UV_DEFAULT_INDEX", "UV_INDEX"), f"{address}/main")
        clone.environment |= {"LAB_TORCH_INDEX": f"{address}/cpu", "LAB_PYTHON": sys.executable}
        yield folder
        server.shutdown()
        thread.join()


def versions(clone, environment: str = ".venv") -> set[str]:
    """What is installed, such as `torch-9.9`."""
    folders = (clone.root / environment).glob("lib/*/site-packages/*.dist-info")
    return {folder.name.removesuffix(".dist-info") for folder in folders}


CPU_BUILD = {"aligner_lab-1.0", "torchless-1.0", "tritonclient-1.0", "torch-9.9+cpu"}
LOCKED_BUILD = CPU_BUILD - {"torch-9.9+cpu"} | {"torch-9.9", "nvidia_cublas-1.0", "triton-1.0"}


def lock(clone) -> str:
    code, _, err = clone.lab("lock")
    assert code == 0, err
    return err


def test_the_cpu_build_is_installed_without_cuda_s_libraries_if_its_hash_is_the_locked_one(clone, indexes):
    digest = add_wheel(indexes / "cpu", "torch", "9.9+cpu")
    assert lock(clone) == ""
    pin = f"torch==9.9+cpu ; sys_platform == 'linux' \\\n    --hash=sha256:{digest}"
    assert pin in (clone.root / "requirements-cpu.lock").read_text()
    code, out, err = clone.lab("runs")
    assert (code, out) == (0, "handed over: runs"), err
    assert versions(clone) == CPU_BUILD
    add_wheel(indexes / "cpu", "torch", "9.9+cpu", "something-else")
    shutil.rmtree(clone.environment["UV_CACHE_DIR"])
    code, _, err = clone.lab("runs", LAB_VENV="other")
    assert code == 0 and "PyTorch's CPU build can't be fetched" in err and "6 GB" in err
    assert versions(clone, "other") == LOCKED_BUILD
    assert clone.lab("runs", LAB_VENV="other") == (0, "handed over: runs", ""), (
        "the next start installs nothing"
    )


def test_an_index_without_the_cpu_build_leaves_no_lock_and_a_requested_one_needs_none(clone, indexes):
    assert "no requirements-cpu.lock was written" in lock(clone)
    assert not (clone.root / "requirements-cpu.lock").exists()
    add_wheel(indexes / "cpu", "torch", "9.9+cpu")
    code, _, err = clone.lab("runs", LAB_TORCH="cpu")
    assert code == 0, err
    assert versions(clone) == CPU_BUILD
