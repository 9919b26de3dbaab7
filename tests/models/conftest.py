import os
from pathlib import Path

import huggingface_hub.constants
import pytest
from tiny_llama import ARCH, random_weights, write_hf

from aligner_lib.models import fetch

NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody answers


@pytest.fixture(scope="session")
def smoke(tmp_path_factory) -> Path:
    """The smoke model, made anew; its tokenizer serves the other tiny models."""
    return fetch("smoke", cache=tmp_path_factory.mktemp("cache"), progress=False)


@pytest.fixture
def hf(tmp_path, smoke) -> Path:
    """A Hugging Face folder of the tiny model, in one file."""
    return write_hf(tmp_path / "hf", ARCH, random_weights(ARCH), smoke)


@pytest.fixture
def net(tmp_path, monkeypatch):
    """No hub, no index, no proxies and no hub cache, whatever this machine's configuration; returns how to set them."""

    def use(index: str | None = None, hub: str | None = None):
        index = index or NOWHERE
        for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
            monkeypatch.setenv(name, f"{index}/simple/")
        monkeypatch.setenv("HF_ENDPOINT", hub or NOWHERE)

    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS",
                 "HF_HUB_OFFLINE", "HF_TOKEN"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    use()
    return use
