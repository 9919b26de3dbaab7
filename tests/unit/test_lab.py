"""`./lab` with a stand-in for uv that notes how it was called: what is installed when, and what is not."""

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

UV = """#!/bin/sh
echo "$@ [UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX-}] [UV_INDEX=${UV_INDEX-}]" >>"$CALLS"
case $1 in
--version) echo uv 9.9 ;;
venv) for last; do :; done; mkdir -p "$last/bin" && cp "$PYTHON_STANDIN" "$last/bin/python" ;;
pip) [ -z "${UV_FAILS-}" ] || { echo "error: Request failed" >&2; echo "  cause: no route to host" >&2; exit 2; } ;;
esac
"""
# The environment's python runs this interpreter, and says what `lab` hands over to.
PYTHON = f"""#!/bin/sh
if [ "$1" = -m ]; then shift; echo "handed over: $*"; else exec {sys.executable} "$@"; fi
"""


class Clone:
    """A project with the real `lab`, and a PATH on which uv is a stand-in."""

    def __init__(self, folder: Path):
        self.root = folder / "a clone"
        self.root.mkdir()
        shutil.copy(ROOT / "lab", self.root / "lab")
        for name in (
            "pyproject.toml",
            "setup.py",
            "requirements.lock",
            "requirements-bench.lock",
            "requirements-exporters.lock",
            "requirements-hub.lock",
        ):
            (self.root / name).write_text(f"# {name}\n")
        self.calls_file, tools = folder / "calls", folder / "tools"
        tools.mkdir()
        for path, text in [(tools / "uv", UV), (folder / "python", PYTHON)]:
            path.write_text(text)
            path.chmod(0o755)
        self.environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HOME": str(folder),
            "CALLS": str(self.calls_file),
            "LAB_PYTHON": sys.executable,
            "PYTHON_STANDIN": str(folder / "python"),
            "PIP_CONFIG_FILE": os.devnull,
        }

    def start(self, *arguments, stderr: int = subprocess.PIPE, **environment) -> subprocess.Popen:
        return subprocess.Popen(
            [self.root / "lab", *arguments],
            cwd="/",
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def lab(self, *arguments, **environment) -> tuple[int, str, str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.strip(), err.strip()

    def installs(self) -> list[str]:
        """The `uv pip install` calls since the last time."""
        calls = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        self.calls_file.unlink(missing_ok=True)
        return [call for call in calls if call.startswith("pip install")]


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def test_the_first_start_installs_the_lock_and_the_project_then_hands_over(clone):
    code, out, _ = clone.lab("ppo", "--run", "a b")
    assert (code, out) == (0, "handed over: aligner_lib ppo --run a b")
    locked, project = clone.installs()
    assert "--require-hashes" in locked and "requirements.lock" in locked
    assert "--compile-bytecode" in locked and "--compile-bytecode" not in project
    assert "--no-deps" in project and f"-e {clone.root}" in project


def test_a_second_start_runs_no_installer(clone):
    clone.lab("runs")
    clone.installs()
    assert clone.lab("runs") == (0, "handed over: aligner_lib runs", "")
    assert not clone.calls_file.exists()  # uv was not even asked for its version


@pytest.mark.parametrize("name", ["pyproject.toml", "setup.py", "requirements.lock"])
def test_a_change_of_what_is_asked_for_installs_again(clone, name):
    clone.lab("runs")
    clone.installs()
    (clone.root / name).write_text("# changed\n")
    clone.lab("runs")
    assert len(clone.installs()) == 2


def test_a_clone_that_was_moved_installs_again(clone):
    clone.lab("runs")
    clone.installs()
    clone.root = clone.root.rename(clone.root.with_name("moved"))
    assert clone.lab("runs")[0] == 0
    assert f"-e {clone.root}" in clone.installs()[1]


def test_programs_that_another_hand_put_into_the_folder_are_kept(clone):
    """LAB_VENV=~ must not cost the user ~/bin."""
    tool = clone.root / "home" / "bin" / "tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("kept")
    code, _, err = clone.lab("runs", LAB_VENV="home")
    assert code == 1 and "did not make it: remove" in err and "LAB_VENV=DIR" in err
    assert tool.read_text() == "kept"


def test_an_environment_of_a_python_that_is_gone_is_made_anew(clone):
    clone.lab("runs")
    python = clone.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3.12")
    (clone.root / "requirements.lock").write_text("# changed\n")
    assert clone.lab("runs")[0] == 0 and python.exists()


@pytest.mark.parametrize("command", ["bench", "test"])
def test_trl_is_installed_on_demand_and_once(clone, command):
    clone.lab("runs")
    clone.installs()
    assert clone.lab(command)[1] == f"handed over: aligner_lib {command}"
    locks = [re.findall(r"requirements-\w+\.lock", line) for line in clone.installs()]
    extras = ["bench", "exporters", "hub"] if command == "test" else ["bench"]
    assert locks == [[f"requirements-{extra}.lock"] for extra in extras]
    clone.lab(command)
    assert clone.installs() == []


def test_a_failed_download_is_one_sentence_and_the_next_start_tries_again(clone):
    code, out, err = clone.lab("runs", UV_FAILS="1")
    assert code == 1 and out == ""
    told = [line for line in err.splitlines() if "setting up" not in line]
    assert len(told) == 1
    assert "no route to host" in told[0] and "start again" in told[0]
    assert clone.lab("runs")[0] == 0


def test_on_a_terminal_uv_says_the_cause_and_no_empty_brackets_follow(clone):
    ours, terminal = pty.openpty()
    process = clone.start("runs", stderr=terminal, UV_FAILS="1")
    os.close(terminal)
    assert process.wait(60) == 1
    told = os.read(ours, 10_000).decode()
    os.close(ours)
    process.stdout.close()
    assert told.count("no route to host") == 1
    assert "did not finish; check the network" in told and "()" not in told


def test_two_first_starts_at_once_install_once(clone):
    starts = [clone.start("runs") for _ in range(3)]
    for process in starts:
        out, err = process.communicate(timeout=60)
        assert out.strip() == "handed over: aligner_lib runs", err
    assert len(clone.installs()) == 2  # the lock and the project


def test_pips_index_is_handed_on_to_uv_unless_uv_has_its_own(clone):
    pip = {"PIP_INDEX_URL": "file:///mirror", "PIP_EXTRA_INDEX_URL": "file:///a file:///b"}
    clone.lab("runs", **pip)
    assert all(
        "[UV_DEFAULT_INDEX=file:///mirror] [UV_INDEX=file:///a file:///b]" in call
        for call in clone.installs()
    )
    (clone.root / "requirements.lock").write_text("# changed\n")
    clone.lab("runs", **pip, UV_DEFAULT_INDEX="file:///own")
    assert all("[UV_DEFAULT_INDEX=file:///own]" in call for call in clone.installs())


def test_an_unsuitable_python_is_named(clone):
    code, _, err = clone.lab("runs", LAB_PYTHON="/bin/false")
    assert code == 1
    assert err == "lab: LAB_PYTHON=/bin/false is no Python 3.11 or 3.12"


# ---- from a bundle --------------------------------------------------------------------------------------------------


def stand_in_bundle(clone) -> Path:
    """In the place of the module that opens bundles, one that says what it was asked for and brings a uv."""
    room = clone.root / "aligner_lib" / "tutorial"
    room.mkdir(parents=True)
    for package in (room.parent, room):
        (package / "__init__.py").touch()
    (room / "bundle.py").write_text(
        "import os, shutil, sys\n"
        "if 'bad' in sys.argv[1]: sys.exit('lab: it is damaged')\n"
        "os.makedirs(sys.argv[2])\n"
        "shutil.copy(shutil.which('uv'), sys.argv[2])\n"
    )
    file = clone.root / "the bundle.tar"
    file.write_text("{}")
    return file


@pytest.mark.parametrize("command", ["setup", "tutorial"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_bundle_is_installed_from_without_an_index(clone, command, joined):
    file = stand_in_bundle(clone)
    words = [f"--bundle={file}"] if joined else ["--bundle", file]
    code, out, _ = clone.lab(command, *words)
    assert (code, out) == (0, f"handed over: aligner_lib {command} {' '.join(map(str, words))}")
    for call in clone.installs():
        assert f"--offline --no-index --find-links {clone.root}/.venv/bundle " in call
    assert not (clone.root / ".venv" / "bundle").exists()
    clone.lab(command, *words)
    assert clone.installs() == []


def test_a_damaged_bundle_installs_nothing(clone):
    stand_in_bundle(clone)
    code, out, err = clone.lab("setup", "--bundle", "bad.tar")
    assert code == 1 and out == "" and err.splitlines()[-1] == "lab: it is damaged"
    assert clone.installs() == []
