"""A project with the real `lab`, and a stand-in for uv that notes how it was called."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

UV = """#!/bin/sh
echo "$@ [UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX-}] [UV_INDEX=${UV_INDEX-}] [in $PWD]" >>"$CALLS"
case $1 in
--version) echo uv 9.9 ;;
venv) for last; do :; done; mkdir -p "$last/bin" "$last/lib/python3/site-packages" && cp "$PYTHON_STANDIN" "$last/bin/python" ;;
pip) case "$*" in *"${UV_FAILS-nothing}"*) [ -z "${UV_LEAVES-}" ] || touch "$UV_LEAVES"; echo "error: Request failed" >&2; echo "  cause: no route to host" >&2; exit 2 ;; esac ;;
esac
"""
# The environment's python runs this interpreter, and says what `lab` hands over to.
PYTHON = f"""#!/bin/sh
if [ "$1" = -m ]; then shift; echo "handed over: $*"; else exec {sys.executable} "$@"; fi
"""
# The Python that `lab` starts from, without pip's settings: `pip config list` takes half a second at each start.
WITHOUT_PIP = f"""#!/bin/sh
[ "$*" = "-m pip config list" ] || exec {sys.executable} "$@"
"""


class Clone:
    """A project with the real `lab`, and a PATH on which uv is a stand-in."""

    def __init__(self, folder: Path):
        self.root = folder / "a clone"
        self.root.mkdir()
        shutil.copy(ROOT / "lab", self.root / "lab")
        locks = [f"requirements-{extra}.lock" for extra in ("pytriton", "bench")]
        for name in ("pyproject.toml", "setup.py", "requirements.lock", *locks):
            (self.root / name).write_text(f"# {name}\n")
        self.calls_file, self.tools = folder / "calls", folder / "tools"
        self.tools.mkdir()
        self.write_program(self.tools / "uv", UV)
        self.environment = {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "HOME": str(folder),
            "CALLS": str(self.calls_file),
            "LAB_PYTHON": self.write_program(folder / "without-pip", WITHOUT_PIP),
            "PYTHON_STANDIN": self.write_program(folder / "python", PYTHON),
            "PIP_CONFIG_FILE": os.devnull,
        }

    @staticmethod
    def write_program(path: Path, text: str) -> str:
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

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
