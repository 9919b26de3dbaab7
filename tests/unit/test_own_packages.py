"""Folders data/, cluster/ and widgets/ of the user's own, where Python starts, do not hide this project's packages."""

import json
import subprocess
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

import aligner_lib

ROOT = Path(__file__).parents[2]
NAMES = ("data", "cluster", "widgets")


def own_folders(tmp_path: Path, packages: bool) -> Path:
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.csv").write_text("1\n")
        if packages:
            (tmp_path / name / "__init__.py").write_text("raise SystemExit('the folder of the user')\n")
    return tmp_path


def run(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_makes_a_model_there(tmp_path, monkeypatch):
    folder = own_folders(tmp_path, packages=True)
    monkeypatch.setenv("ALIGNER_CACHE", str(folder / "cache"))
    run(folder, "-m", "aligner_lib", "model", "fetch", "smoke")
    assert (folder / "cache" / "models" / "smoke" / "model.json").exists()


@pytest.mark.parametrize("packages", [False, True])
def test_the_first_import_of_a_notebook_is_ours(tmp_path, packages):
    """A kernel's path begins with the notebook's folder, as that of -c does."""
    if not Path(sysconfig.get_path("purelib"), "aligner_lab.pth").exists():
        pytest.fail("the installation is older than setup.py: ./lab setup, or uv pip install --no-deps -e .")
    program = f"import json; print(json.dumps([__import__(name).__file__ for name in {NAMES}]))"
    places = json.loads(run(own_folders(tmp_path, packages), "-c", program))
    assert places == [str(ROOT / name / "__init__.py") for name in NAMES]


def test_processes_that_are_spawned_or_supervise_find_them_too(tmp_path):
    """A rank is such a process, and so is what starts ranks."""
    folder = own_folders(tmp_path, packages=True)
    (folder / "main.py").write_text(
        "import data.atomic_files, cluster.launch, widgets, multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    process.start(); process.join(); print('ended with', process.exitcode)\n"
    )
    assert "ended with 0" in run(folder, "main.py")
    command = [sys.executable, "-m", "cluster.supervise"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert "the folder of the user" not in done.stderr and "No module named" not in done.stderr


def test_only_the_project_s_own_packages_are_redirected():
    assert aligner_lib.OwnPackagesFinder.find_spec("json") is None
    assert aligner_lib.OwnPackagesFinder.find_spec("data.lm_eval") is None
    spec = aligner_lib.OwnPackagesFinder.find_spec("data")
    assert spec.origin == PathFinder.find_spec("data", [str(ROOT)]).origin
