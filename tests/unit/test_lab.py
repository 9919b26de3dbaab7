"""`./lab` with a stand-in for uv that notes how it was called: what is installed when, and what is not."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lab_clone import Clone


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
    for call in (locked, pytriton):
        assert "--require-hashes" in call and "--compile-bytecode" in call
    assert "--compile-bytecode" not in project
    assert "--no-deps" in project and f"-e {clone.root}" in project
    assert clone.lab("runs") == (0, "handed over: aligner_lib runs", "")
    assert not clone.calls_file.exists()  # the second start did not even ask uv for its version


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
    assert f"-e {installed.root}" in installed.installs()[2]


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
    for command, extras in (
        ("bench", ["bench"]),
        ("test", ["environments", "exporters", "hub", "json", "site"]),
    ):
        assert installed.lab(command)[1] == f"handed over: aligner_lib {command}"
        calls = installed.installs()
        assert all("--require-hashes" in call and "--compile-bytecode" not in call for call in calls)
        locks = [re.findall(r"requirements-\w+\.lock", call) for call in calls]
        assert locks == [[f"requirements-{extra}.lock"] for extra in extras]
        installed.lab(command)
        assert installed.installs() == []


def test_a_failed_download_is_one_sentence_and_the_next_start_tries_again(clone):
    code, out, err = clone.lab("runs", UV_FAILS="pip install")
    assert code == 1 and out == ""
    (line,) = [line for line in err.splitlines() if "setting up" not in line]
    assert "no route to host" in line and "start again" in line
    assert clone.lab("runs")[0] == 0


def test_on_a_terminal_uv_says_the_cause_and_no_empty_brackets_follow(clone):
    ours, terminal = pty.openpty()
    process = clone.start("runs", stderr=terminal, UV_FAILS="pip install")
    os.close(terminal)
    assert process.wait(60) == 1
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    process.stdout.close()
    assert shown.count("no route to host") == 1
    assert "did not finish; check the network" in shown and "()" not in shown


def test_simultaneous_first_starts_install_once(clone):
    for process in [clone.start("runs") for _ in range(3)]:
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


@pytest.mark.parametrize(("python", "says"), [("3.12", False), ("3.13", True)])
def test_an_environment_without_pytriton_says_what_that_costs(clone, python, says):
    stand_in = Path(clone.environment["PYTHON_STANDIN"])
    says_its_version = f'if [ "$1" = -c ] && [ $# = 2 ]; then echo {python[2:]}; exit; fi'
    stand_in.write_text(stand_in.read_text().replace("\n", f"\n{says_its_version}\n", 1))
    code, _, err = clone.lab("runs")
    assert code == 0 and ("PPO trains as one job, and everything else works" in err) == says


# Takes the place of the module that opens bundles: it refuses a bad file, and brings a uv.
BUNDLE_MODULE = """
import os, shutil, sys
if 'bad' in sys.argv[1]: sys.exit('lab: it is damaged')
os.makedirs(sys.argv[2])
shutil.copy(shutil.which('uv'), sys.argv[2])
"""


@pytest.fixture
def bundle(clone) -> Path:
    room = clone.root / "aligner_lib" / "tutorial" / "workshop"
    room.mkdir(parents=True)
    for package in (room.parent.parent, room.parent, room):
        (package / "__init__.py").touch()
    (room / "bundle.py").write_text(BUNDLE_MODULE)
    file = clone.root / "the bundle.tar"
    file.write_text("{}")
    return file


@pytest.mark.parametrize(("command", "joined"), [("setup", False), ("tutorial", True)])
def test_a_bundle_is_installed_from_without_an_index(clone, bundle, command, joined):
    words = [f"--bundle={bundle}"] if joined else ["--bundle", bundle]
    code, out, _ = clone.lab(command, *words)
    assert (code, out) == (0, f"handed over: aligner_lib {command} {' '.join(map(str, words))}")
    for call in clone.installs():
        assert f"--offline --no-index --find-links {clone.root}/.venv/bundle " in call
    assert not (clone.root / ".venv" / "bundle").exists()
    clone.lab(command, *words)
    assert clone.installs() == []


def test_a_bundle_has_no_cpu_build_of_pytorch_which_is_told_and_noted(clone, bundle):
    code, _, err = clone.lab("setup", "--bundle", bundle, LAB_TORCH="cpu")
    assert code == 0 and "a bundle has no CPU build of PyTorch" in err
    assert (clone.root / ".venv" / "lab.torch").read_text() == "cuda\n"
    again = clone.lab("setup", "--bundle", bundle, LAB_TORCH="cpu")
    assert again == (0, f"handed over: aligner_lib setup --bundle {bundle}", "")


def test_a_damaged_bundle_installs_nothing(clone, bundle):
    code, out, err = clone.lab("setup", "--bundle", "bad.tar")
    assert code == 1 and out == "" and err.splitlines()[-1] == "lab: it is damaged"
    assert clone.installs() == []
