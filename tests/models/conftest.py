from pathlib import Path

import pytest

from aligner_lib.models import fetch
from aligner_lib.models.download import DownloadError


@pytest.fixture(scope="session")
def smoke(tmp_path_factory) -> Path:
    """The smoke model, made anew; its tokenizer serves the other tiny models."""
    return fetch("smoke", cache=tmp_path_factory.mktemp("cache"), progress=False)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M from the user's cache, fetched into it once."""
    try:
        return fetch("smollm2-135m", progress=False)
    except DownloadError as error:
        pytest.skip(str(error))
