"""What several rooms share: the smoke model, SmolLM2, and the bundled samples in the trainers' formats."""

import os
from pathlib import Path

import pytest

# Before torch is imported: these tests hold figures of the CPU, also where a GPU is.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from aligner_lib.models import fetch
from aligner_lib.models.download import DownloadError


@pytest.fixture(scope="session")
def smoke() -> Path:
    """The smoke model's folder."""
    return fetch("smoke", progress=False)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M's folder, fetched into the user's cache once."""
    try:
        return fetch("smollm2-135m", progress=False)
    except DownloadError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def formatted(tmp_path_factory) -> Path:
    """The bundled samples, formatted: train.jsonl, validation.jsonl and {train,test}_{comparisons,prompts}.jsonl."""
    from data import format_dolly, format_hh, resolve

    folder = tmp_path_factory.mktemp("formatted")
    format_dolly(resolve("sample", "dolly").paths, folder)
    for split in ("train", "test"):
        format_hh(resolve("sample", "hh", split=split).paths, folder, split)
    return folder
