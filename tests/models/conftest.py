from pathlib import Path

import pytest

from aligner_lib.models import fetch


@pytest.fixture(scope="session")
def smoke(tmp_path_factory) -> Path:
    """The smoke model, made anew; its tokenizer serves the other tiny models."""
    return fetch("smoke", cache=tmp_path_factory.mktemp("cache"), progress=False)
