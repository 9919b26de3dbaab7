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


@pytest.fixture(params=["plain folders", "packages"])
def folder(request, tmp_path):
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.csv").write_text("1\n")
        if request.param == "packages":
            (tmp_path / name / "__init__.py").write_text("raise SystemExit('the folder of the user')\n")
    return tmp_path


def run(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_makes_a_model_there(folder, monkeypatch):
    monkeypatch.setenv("ALIGNER_CACHE", str(folder / "cache"))
    run(folder, "-m", "aligner_lib", "model", "fetch", "smoke")
    assert (folder / "cache" / "models" / "smoke" / "model.json").exists()


PLACES = "import json; print(json.dumps([__import__(n).__file__ for n in ('widgets', 'cluster', 'data')]))"


@pytest.mark.parametrize("first", ["", "import aligner_lib;"])
def test_the_first_import_of_a_notebook_is_ours(folder, first):
    """A kernel's path begins with the notebook's folder, as that of -c does."""
    if not first and not Path(sysconfig.get_path("purelib"), "aligner_lab.pth").exists():
        pytest.fail("the installation is older than setup.py: ./lab setup, or uv pip install --no-deps -e .")
    places = json.loads(run(folder, "-c", f"{first}{PLACES}"))
    assert places == [str(ROOT / name / "__init__.py") for name in ("widgets", "cluster", "data")]


def test_processes_that_are_spawned_or_supervise_find_them_too(folder):
    """A rank is such a process, and so is what starts ranks."""
    (folder / "main.py").write_text(
        "import data.atomic_files, cluster.launch, widgets, multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    process.start(); process.join(); print('ended with', process.exitcode)\n"
    )
    assert "ended with 0" in run(folder, "main.py")
    done = subprocess.run(
        [sys.executable, "-m", "cluster.supervise"], cwd=folder, capture_output=True, text=True
    )
    assert "the folder of the user" not in done.stderr and "No module named" not in done.stderr


def test_other_packages_are_found_where_they_are():
    assert aligner_lib.OwnPackagesFinder.find_spec("json") is None
    assert aligner_lib.OwnPackagesFinder.find_spec("data.lm_eval") is None
    spec = aligner_lib.OwnPackagesFinder.find_spec("data")
    assert spec.origin == PathFinder.find_spec("data", [str(ROOT)]).origin
