"""What `aligner doctor` says of versions that are not the lock's."""

import importlib.metadata
from pathlib import Path

import pytest

from aligner_lib.cli import doctor
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
    requires = ["a==1", 'a==1; extra == "bench"', 'b==2; extra == "bench"', 'c==3; extra == "gpu"']
    requires += ['d==4; sys_platform == "plan9"']
    for more, words in (({}, "b 2.1 (pinned: 2):"), ({"c": "3.1"}, "b 2.1 (pinned: 2), c 3.1 (pinned: 3):")):
        installed(monkeypatch, requires, {"a": "1", "b": "2.1", "d": "5"} | more)
        assert pinned_versions().detail.startswith(words)


@pytest.mark.parametrize(
    ("versions", "ok", "detail"),
    [
        ({"nvidia-pytriton": "0.7.0", "numpy": "1.26.4"}, True, "0.7.0"),
        ({"nvidia-pytriton": "0.7.0", "numpy": "2.5.5"}, False, "empty arrays under numpy 2.5.5"),
        ({"numpy": "2.5.5"}, False, "not installed: critic and reward model can't be jobs of their own"),
    ],
)
def test_doctor_says_what_pytriton_is_needed_for(monkeypatch, versions, ok, detail):
    installed(monkeypatch, [], versions)
    finding = doctor._pytriton()
    assert finding.ok == ok and (ok or not finding.needed) and detail in finding.detail


def test_the_newest_numpy_of_the_lock_and_pytritons_older_one_both_fit(monkeypatch):
    requires = ["numpy<=2.5.5", 'numpy==1.26.4; extra == "pytriton"']
    for version, fits in {"1.26.4": True, "2.5.5": True, "2.6.0": False}.items():
        installed(monkeypatch, requires, {"numpy": version})
        assert pinned_versions().ok == fits


def test_the_lock_of_environments_leaves_numpy_as_it_is():
    lines = (ROOT / "requirements-environments.lock").read_text().splitlines()
    names = [line.partition("==")[0] for line in lines]
    assert "verifiers" in names and "reasoning-gym" in names and "numpy" not in names
