import contextlib

import pytest
from processes_help import Gate


@pytest.fixture
def gate(tmp_path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def run(tmp_path):
    """A run folder; whatever job is left there is ended with the test."""
    from cluster import Job, JobNotFound

    folder = tmp_path / "run"
    yield folder
    with contextlib.suppress(JobNotFound):
        Job.attach(folder).cancel()
