"""What the project asks for are the locks' pins, so that `pip install -e .` installs what `./lab` does."""

import re
from pathlib import Path

from setuptools import setup


def pins(lock: str) -> list[str]:
    """A lock's `name==version ; marker`, without the hashes, which a package's metadata can't hold."""
    text = Path(__file__).with_name(lock).read_text()
    return re.findall(r"^([\w.-]+==.+?) \\$", text, re.MULTILINE)


setup(
    install_requires=pins("requirements.lock"),
    extras_require={
        extra: pins(f"requirements-{extra}.lock") for extra in ("bench", "exporters", "hub", "gpu")
    },
)
