"""What `aligner doctor` says of versions that are not the lock's."""

import importlib.metadata
from pathlib import Path

from aligner_lib.cli.doctor import pinned_versions

ROOT = Path(__file__).parents[2]


def installed(monkeypatch, requires: list[str], versions: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    monkeypatch.setattr(importlib.metadata, "version", version)


def test_a_package_that_was_lifted_above_the_lock_is_named(monkeypatch):
    installed(monkeypatch, ["numpy==1.26.4", "torch==2.9.0"], {"numpy": "2.4.1", "torch": "2.9.0+cpu"})
    finding = pinned_versions()
    assert not finding.ok and finding.needed
    assert "numpy 2.4.1 (pinned: 1.26.4)" in finding.detail and "torch" not in finding.detail
    assert "requirements.lock" in finding.detail


def test_extras_count_where_they_are_installed_and_other_platforms_never(monkeypatch):
    requires = [
        "a==1",
        'b==2; extra == "bench"',
        'c==3; extra == "gpu"',
        'd==4; sys_platform == "plan9"',
        'a==1; extra == "bench"',
    ]
    installed(monkeypatch, requires, {"a": "1", "b": "2.1", "d": "5"})
    assert pinned_versions().detail.startswith("b 2.1 (pinned: 2):")


def test_the_lock_of_environments_leaves_numpy_as_it_is():
    names = [
        line.partition("==")[0] for line in (ROOT / "requirements-environments.lock").read_text().splitlines()
    ]
    assert "verifiers" in names and "reasoning-gym" in names and "numpy" not in names
