"""`./lab` with a stand-in for uv that notes how it was called: what is installed when, and what is not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from lab_clone import ROOT, Clone

from aligner_lib.cli.bytecode import import_all, project_modules


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


@pytest.fixture
def installed(clone):
    """A clone after its first start."""
    clone.lab("runs")
    clone.installs()
    return clone


def test_the_first_start_installs_the_lock_and_the_project_then_hands_over(clone):
    code, out, _ = clone.lab("ppo", "--run", "a b")
    assert (code, out) == (0, "handed over: aligner_lib ppo --run a b")
    locked, pytriton, project = clone.installs()
    assert "requirements.lock" in locked and "requirements-pytriton.lock" in pytriton
    assert all("--require-hashes" in call for call in (locked, pytriton))
    assert "--no-deps" in project and "-e . " in project and f"[in {clone.root}]" in project
    assert clone.lab("runs") == (0, "handed over: aligner_lib runs", "")
    assert not clone.calls_file.exists()  # the second start did not even ask uv for its version


def test_set_up_imports_the_project_s_modules_to_compile_them_and_leaves_out_a_missing_package():
    modules = [*project_modules(ROOT)]
    assert {"aligner_lib.megatron", "cluster.supervise", "widgets.monitor.monitor"} < {*modules}
    assert "aligner_lib.__main__" not in modules, "the import would run the command"
    sys.modules.pop("colorsys", None)
    import_all(["no_such_package.part", "colorsys"])
    assert "colorsys" in sys.modules


def test_a_change_of_the_requirements_or_of_the_clone_s_place_installs_again(installed):
    for name in ("pyproject.toml", "setup.py", "requirements.lock", "requirements-pytriton.lock"):
        (installed.root / name).write_text("# changed\n")
        installed.lab("runs")
        assert len(installed.installs()) == 3, name
    link = installed.root.with_name("link")
    link.symlink_to(installed.root / "lab")
    assert subprocess.run([link, "runs"], env=installed.environment, capture_output=True).returncode == 0
    assert not link.with_name(".venv").exists()
    installed.root = installed.root.rename(installed.root.with_name("moved"))
    assert installed.lab("runs")[0] == 0
    assert f"[in {installed.root}]" in installed.installs()[2]


def test_a_folder_of_the_user_s_and_an_unsuitable_python_are_refused(clone):
    # LAB_VENV=~ must not cost the user ~/bin.
    tool = clone.root / "home" / "bin" / "tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("kept")
    code, _, err = clone.lab("runs", LAB_VENV="home")
    assert code == 1 and "did not make it: remove" in err and "LAB_VENV=DIR" in err
    assert tool.read_text() == "kept"
    code, _, err = clone.lab("runs", LAB_PYTHON="/bin/false")
    assert (code, err) == (1, "lab: LAB_PYTHON=/bin/false is no Python 3.11, 3.12 or 3.13")


def test_a_clone_from_a_zip_has_no_executable_file(clone):
    (clone.root / "lab").chmod(0o644)
    done = subprocess.run(["sh", clone.root / "lab", "runs"], env=clone.environment, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"handed over: aligner_lib runs\n"), done.stderr


def test_an_unfinished_environment_gives_way_to_lab_python_and_a_complete_one_names_the_cure(clone, tmp_path):
    old = clone.write_program(tmp_path / "old", "#!/bin/sh\n[ $# != 2 ] || echo 3.9\n")
    python = clone.root / ".venv" / "bin" / "python"
    assert (
        clone.lab("runs", UV_FAILS="pip install", PYTHON_STANDIN=old)[0] == 1 and "3.9" in python.read_text()
    )
    assert clone.lab("runs")[0] == 0 and "3.9" not in python.read_text()
    code, _, err = clone.lab("runs", LAB_PYTHON=old)
    assert code == 1 and "was made with Python 3.1" in err and f"LAB_VENV=DIR LAB_PYTHON={old} ./lab" in err


def test_an_environment_whose_python_is_gone_is_made_anew(installed):
    python = installed.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3.12")
    package = installed.root / ".venv" / "lib" / "package"
    package.mkdir(parents=True)
    assert installed.lab("runs")[0] == 0 and python.exists()
    assert not package.exists()  # an installer would take its commands for installed
    assert len(installed.installs()) == 3
    code, _, err = installed.lab("runs", LAB_TORCH="foo")
    assert (code, err) == (1, "lab: LAB_TORCH=foo is neither cpu nor cuda")


def test_trl_is_installed_on_demand_and_once(installed):
    assert installed.lab("bench")[1] == "handed over: aligner_lib bench"
    (call,) = installed.installs()
    assert "--require-hashes" in call
    assert re.findall(r"requirements-\w+\.lock", call) == ["requirements-bench.lock"]
    installed.lab("bench")
    assert installed.installs() == []


def test_a_failed_download_is_one_sentence_and_the_next_start_tries_again(clone):
    code, out, err = clone.lab("runs", UV_FAILS="pip install")
    assert code == 1 and out == ""
    (line,) = [line for line in err.splitlines() if "setting up" not in line]
    assert "no route to host" in line and "start again" in line
    assert clone.lab("runs")[0] == 0


def test_packages_that_a_set_up_left_incomplete_are_removed_and_a_failed_download_removes_none(installed):
    packages = installed.root / ".venv" / "lib" / "python3" / "site-packages"
    (packages / "whole").touch()
    assert installed.lab("bench", UV_FAILS="pip install")[0] == 1
    assert installed.lab("runs") == (0, "handed over: aligner_lib runs", "") and (packages / "whole").exists()
    (installed.root / "requirements.lock").write_text("# changed\n")
    assert installed.lab("runs", UV_FAILS="pip install", UV_LEAVES=str(packages / "half"))[0] == 1
    (installed.root / "requirements.lock").write_text("# requirements.lock\n")  # as in the stamp
    installed.installs()
    code, _, err = installed.lab("bench")
    assert code == 0 and "did not finish, so all packages are installed anew" in err
    assert not (packages / "half").exists() and len(installed.installs()) == 4


def test_the_mark_of_an_interrupted_download_goes_with_the_next_start(installed):
    """Otherwise a package that the user installs later would look like a half installation, and be removed."""
    mark = installed.root / ".venv" / "lab.unfinished"
    packages = [mark.parent / "lib" / "python3" / "site-packages" / name for name in ("first", "second")]
    for package in packages:
        package.mkdir()
    mark.write_text("first\nsecond\n")
    assert installed.lab("runs")[0] == 0 and not mark.exists() and installed.installs() == []
    assert all(package.exists() for package in packages)


def test_a_full_disk_names_the_cure_before_the_set_up_changes_anything(installed):
    venv = installed.root / ".venv"
    (venv / "lib" / "python3" / "site-packages" / "package").mkdir()
    (venv / "lab.tmp").symlink_to("/dev/full")
    (installed.root / "requirements.lock").write_text("# changed\n")
    code, _, err = installed.lab("runs")
    assert code == 1 and "can't be written: free the disk and start again" in err
    assert not (venv / "lab.unfinished").exists() and installed.installs() == []


def test_a_file_system_without_locks_is_no_obstacle(clone, tmp_path):
    without_locks = "import fcntl\ndef refuse(*_): raise OSError\nfcntl.flock = refuse\n"
    (tmp_path / "sitecustomize.py").write_text(without_locks)
    assert clone.lab("runs", PYTHONPATH=str(tmp_path))[:2] == (0, "handed over: aligner_lib runs")


def test_without_a_home_folder_the_environment_has_one_and_a_folder_that_cannot_be_made_names_the_cure(clone):
    code, _, err = clone.lab("runs", HOME="/nowhere")
    assert code == 0 and f"{clone.root}/.venv/home takes its place" in err
    assert clone.lab("runs", HOME="/nowhere") == (0, "handed over: aligner_lib runs", "")
    for home in "/nowhere", str(clone.root):
        code, _, err = clone.lab("runs", LAB_VENV="/proc/lab", HOME=home)
        assert code == 1 and "be written: name" in err and "LAB_VENV=DIR ./lab" in err


def test_a_complete_environment_starts_without_any_home_folder_and_an_unset_home_is_the_account_s(installed):
    (installed.root / ".venv" / "home").touch()  # no folder can be made there
    assert installed.lab("runs", HOME="/nowhere") == (0, "handed over: aligner_lib runs", "")
    del installed.environment["HOME"]
    assert installed.lab("runs") == (0, "handed over: aligner_lib runs", "")


def test_simultaneous_first_starts_install_once(clone):
    for process in [clone.start("runs") for _ in range(2)]:
        out, err = process.communicate(timeout=60)
        assert out.strip() == "handed over: aligner_lib runs", err
    assert len(clone.installs()) == 3  # two locks and the project


INDEXES = "[UV_DEFAULT_INDEX=file:///mirror] [UV_INDEX=file:///a file:///b]"


def test_pip_s_index_is_handed_on_to_uv_unless_uv_has_its_own(clone):
    pip = {"PIP_INDEX_URL": "file:///mirror", "PIP_EXTRA_INDEX_URL": "file:///a file:///b"}
    clone.lab("runs", **pip)
    assert all(INDEXES in call for call in clone.installs())
    (clone.root / "requirements.lock").write_text("# changed\n")
    clone.lab("runs", **pip, UV_DEFAULT_INDEX="file:///own")
    assert all("[UV_DEFAULT_INDEX=file:///own]" in call for call in clone.installs())


def test_the_indexes_of_pip_s_file_are_handed_on_to_uv(clone, tmp_path):
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = file:///mirror\nextra-index-url =\n    file:///a\n    file:///b\n")
    assert clone.lab("runs", PIP_CONFIG_FILE=str(file), LAB_PYTHON=sys.executable)[0] == 0
    assert all(INDEXES in call for call in clone.installs())


# Takes the place of the module that opens bundles: it refuses a bad file, and brings a uv.
BUNDLE_MODULE = """
import os, shutil, sys
if 'bad' in sys.argv[1]: sys.exit('lab: it is damaged')
os.makedirs(sys.argv[2])
shutil.copy(shutil.which('uv'), sys.argv[2])
"""


@pytest.fixture
def bundle(clone) -> Path:
    module = clone.root / "aligner_lib" / "tutorial" / "workshop" / "bundle.py"
    module.parent.mkdir(parents=True)
    module.write_text(BUNDLE_MODULE)
    file = clone.root / "the bundle.tar"
    file.write_text("{}")
    return file


@pytest.mark.parametrize(
    "words", [["setup", "--bundle", "the bundle.tar"], ["tutorial", "--bundle=the bundle.tar"]]
)
def test_a_bundle_is_installed_from_without_an_index(clone, bundle, words):
    words = [word.replace(bundle.name, str(bundle)) for word in words]
    assert clone.lab(*words)[:2] == (0, f"handed over: aligner_lib {' '.join(words)}")
    *locks, project = clone.installs()
    for call in locks:
        assert "--offline --no-index --find-links bundle " in call and f"[in {clone.root}/.venv]" in call
    assert "--offline" in project
    assert not (clone.root / ".venv" / "bundle").exists()
    clone.lab(*words)
    assert clone.installs() == []


def test_a_bundle_without_a_package_is_to_be_packed_anew(clone, bundle):
    code, out, err = clone.lab("setup", "--bundle", str(bundle), UV_FAILS="pip install")
    assert code == 1 and out == "" and "the bundle lacks packages" in err and "network" not in err


def test_a_damaged_bundle_installs_nothing(clone, bundle):
    code, out, err = clone.lab("setup", "--bundle", "bad.tar")
    assert code == 1 and out == "" and err.splitlines()[-1] == "lab: it is damaged"
    assert clone.installs() == []
