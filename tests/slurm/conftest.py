"""A real Slurm cluster in each worker, without accounting; a second one, with it, on demand."""

import contextlib
import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "cluster"))  # processes_help

from slurm_cluster import SlurmCluster, missing_tools, names_resolve
from smoke_jobs import SmokeJobs

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in Path(item.fspath).parents:
            item.add_marker(pytest.mark.slurm)


def _cluster(name: str, accounting: bool):
    if missing := missing_tools(accounting):
        pytest.skip(f"Slurm is not installed here (missing {', '.join(missing)})")
    if os.geteuid() != 0:
        pytest.skip("the test cluster's daemons need root")
    cluster = SlurmCluster(name, accounting)
    try:
        with names_resolve():
            yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def plain_cluster():
    yield from _cluster("plain", accounting=False)


@pytest.fixture(scope="session")
def accounting_cluster():
    yield from _cluster("accounts", accounting=True)


@contextlib.contextmanager
def _in_use(cluster: SlurmCluster):
    """Slurm's commands reach this cluster, which is idle before and after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster
        cluster.drain_jobs()


@pytest.fixture
def slurm(plain_cluster):
    """The cluster without accounting."""
    with _in_use(plain_cluster) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def whole_module(plain_cluster):
    """The cluster without accounting for what one module's tests look at together. Ask for it before `slurm`."""
    with _in_use(plain_cluster) as cluster:
        yield cluster


@pytest.fixture
def accounts(accounting_cluster):
    """The cluster with accounting."""
    with _in_use(accounting_cluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def jobs(smoke, formatted, rm, tmp_path_factory) -> SmokeJobs:
    """Short jobs of the real trainers on the smoke model; PPO scores with a reward model of this process's."""
    return SmokeJobs(smoke, formatted, tmp_path_factory.mktemp("jobs"), rm.path)


@pytest.fixture
def run(tmp_path) -> Path:
    return tmp_path / "run"
