"""What the project asks for are the locks' pins, so that `pip install -e .` installs what `./lab` does."""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


def pins(lock: str) -> list[str]:
    """A lock's `name==version ; marker`, without the hashes, which a package's metadata can't hold."""
    text = Path(__file__).with_name(lock).read_text()
    return re.findall(r"^([\w.-]+==.+?) \\$", text, re.MULTILINE)


# a .pth file is one line; the packages may have been moved or removed since
START = r"""import sys; exec("try:\n import aligner_lib\nexcept ImportError:\n pass")""" + "\n"


class BuildWithStart(build_py):
    """Adds the file that imports `aligner_lib` when Python starts, which keeps its packages' names (aligner_lib/__init__.py)."""

    def run(self):
        super().run()
        wheel = (
            self.get_finalized_command("install").install_purelib if self.editable_mode else self.build_lib
        )
        Path(wheel, "aligner_lab.pth").write_text(START)


setup(
    cmdclass={"build_py": BuildWithStart},
    # the extra `pytriton` pins an older numpy
    install_requires=[pin.replace("numpy==", "numpy<=") for pin in pins("requirements.lock")],
    extras_require={
        extra: pins(f"requirements-{extra}.lock")
        for extra in ("pytriton", "bench", "exporters", "hub", "json", "site", "gpu")
    },
)
