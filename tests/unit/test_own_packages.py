"""Folders data/, cluster/ and widgets/ of the user's own, where Python starts, do not hide this project's packages."""

import subprocess
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

import aligner_lib

ROOT = Path(__file__).parents[2]
NAMES = ("data", "cluster", "widgets")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with the user's own packages, whose import ends the process."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the folder of the user')\n")
    return tmp_path


# A kernel's path begins with the notebook's folder, as that of a script does. A rank is a process that is spawned.
PROGRAM = f"""
import data.atomic_files, cluster, widgets, multiprocessing
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start(); process.join()
    print(process.exitcode, *[__import__(name).__file__ for name in {NAMES}], sep="\\n")
"""


def test_the_imports_of_a_notebook_and_of_a_process_that_it_spawns_are_ours(folder):
    if not Path(sysconfig.get_path("purelib"), "aligner_lab.pth").exists():
        pytest.fail("the installation is older than setup.py: ./lab setup, or uv pip install --no-deps -e .")
    (folder / "main.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "main.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    exit_code, *places = done.stdout.split()
    assert exit_code == "0" and places == [str(ROOT / name / "__init__.py") for name in NAMES]


def test_only_the_project_s_own_packages_are_redirected():
    for name in ("json", "data.lm_eval"):
        assert aligner_lib.OwnPackagesFinder.find_spec(name) is None
    spec = aligner_lib.OwnPackagesFinder.find_spec("data")
    assert spec.origin == PathFinder.find_spec("data", [str(ROOT)]).origin
