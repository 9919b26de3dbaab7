"""What several rooms share: the smoke model, SmolLM2, and the bundled samples in the trainers' formats."""

import os
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from affected import ROOT, affected, changed_since
from smoke_jobs import SmokeJobs

# Before torch is imported: these tests hold figures of the CPU, also where a GPU is.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# A property holds however long an example takes: on a busy machine any of them may take a second.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

from aligner_lib.models import fetch
from aligner_lib.models.download import DownloadError
from aligner_lib.run_folder.reader import RunFolder

# ---- ./lab test --since REF -----------------------------------------------------------------------------------------


def pytest_addoption(parser):
    parser.addoption(
        "--since", metavar="REF", help="only the tests that a change since this git commit can reach"
    )


@cache
def _reach(ref: str) -> tuple[set[str], str | None]:
    try:
        return affected(changed_since(ref))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_configure(config):
    if ref := config.getoption("since"):
        _reach(ref)  # a mistake is told before anything runs


def pytest_collection(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and (ref := session.config.getoption("since")):
        files, unknown = _reach(ref)
        why = f": {unknown} may reach any test" if unknown else f" reach {len(files)} files of tests"
        reporter.write_line(f"changes since {ref}{why}")


def pytest_ignore_collect(collection_path, config):
    ref = config.getoption("since")
    if ref and collection_path.name.startswith("test_"):
        return collection_path.relative_to(ROOT).as_posix() not in _reach(ref)[0] or None


def pytest_sessionfinish(session, exitstatus):
    if session.config.getoption("since") and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


# ---- models and data ------------------------------------------------------------------------------------------------


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


# ---- jobs on the smoke model: tests/jobs and tests/remote_critic ----


@pytest.fixture(scope="session")
def rm(smoke, formatted, tmp_path_factory) -> RunFolder:
    """A reward model's run, which PPO scores with."""
    return SmokeJobs(smoke, formatted, tmp_path_factory.mktemp("rm")).run("rm", "rm")


@pytest.fixture
def here():
    """This process as the only rank, for jobs whose errors a test looks at."""
    import torch

    from aligner_lib.megatron import parallel

    torch.set_num_threads(1)  # on a busy machine two threads wait for each other at every tiny product
    parallel.initialize()
