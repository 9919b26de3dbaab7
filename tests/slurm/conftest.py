"""One real Slurm cluster for the tests of this folder, without accounting; a second one, with it, on demand."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))  # processes_help

from slurm_cluster import SlurmCluster, missing_tools, names_resolve

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


@pytest.fixture
def slurm(plain_cluster, monkeypatch):
    """The cluster without accounting, idle before and after."""
    monkeypatch.setenv("SLURM_CONF", str(plain_cluster.conf))
    yield plain_cluster
    plain_cluster.drain_jobs()


@pytest.fixture
def accounts(accounting_cluster, monkeypatch):
    """The cluster with accounting, idle before and after."""
    monkeypatch.setenv("SLURM_CONF", str(accounting_cluster.conf))
    yield accounting_cluster
    accounting_cluster.drain_jobs()


@pytest.fixture
def run(tmp_path) -> Path:
    return tmp_path / "run"
