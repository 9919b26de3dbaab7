"""What `aligner doctor` says of versions that are not the lock's."""

import importlib.metadata

import pytest

from aligner_lib.cli import doctor
from aligner_lib.cli.doctor import pinned_versions


def installed(monkeypatch, requires: list[str], versions: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    monkeypatch.setattr(importlib.metadata, "version", version)


LIFTED = ["numpy==1.26.4", "torch==2.9.0"]
EXTRAS = ["a==1", 'a==1; extra == "bench"', 'b==2; extra == "bench"', 'c==3; extra == "gpu"']
EXTRAS += ['d==4; sys_platform == "plan9"']
TWO_NUMPY = ["numpy<=2.5.5", 'numpy==1.26.4; extra == "pytriton"']


@pytest.mark.parametrize(
    ("requires", "versions", "detail"),
    [
        (LIFTED, {"numpy": "2.4.1", "torch": "2.9.0+cpu"}, "numpy 2.4.1 (pinned: 1.26.4):"),
        # extras count where they are installed, and other platforms never
        (EXTRAS, {"a": "1", "b": "2.1", "d": "5"}, "b 2.1 (pinned: 2):"),
        # the newest numpy of the lock and PyTriton's older one
        (TWO_NUMPY, {"numpy": "2.5.5"}, None),
        (TWO_NUMPY, {"numpy": "2.6.0"}, "numpy 2.6.0"),
    ],
)
def test_packages_above_the_lock_are_named(monkeypatch, tmp_path, requires, versions, detail):
    installed(monkeypatch, requires, versions)
    monkeypatch.setattr(doctor.sys, "prefix", str(tmp_path))
    finding = pinned_versions()
    assert finding.ok == (detail is None)
    if detail:
        assert finding.needed and finding.detail.startswith(detail)
        assert finding.detail.endswith("--require-hashes -r requirements-pytriton.lock")
        (tmp_path / "lab.stamp").touch()
        assert f"remove {tmp_path}/lab.stamp, and `./lab doctor` installs" in pinned_versions().detail
