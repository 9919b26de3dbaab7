"""What `aligner doctor` says of versions that are not the lock's."""

import importlib.metadata
from types import SimpleNamespace

import pytest

from aligner_lib.cli.doctor import pinned_versions


def installed(monkeypatch, requires: list[str], versions: dict[str, str]) -> None:
    def distribution(name: str) -> SimpleNamespace:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return SimpleNamespace(version=versions[name], locate_file=lambda path: "/other/packages")

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    monkeypatch.setattr(importlib.metadata, "distribution", distribution)


LIFTED = ["numpy==1.26.4", "torch==2.9.0"]
EXTRAS = ["a==1", 'a==1; extra == "bench"', 'b==2; extra == "bench"', 'c==3; extra == "gpu"']
EXTRAS += ['d==4; sys_platform == "plan9"']
TWO_NUMPY = ["numpy<=2.5.5", 'numpy==1.26.4; extra == "pytriton"']
CUDA = ["torch==2.9.0", "nvidia-nccl-cu12==2.27.5"]


@pytest.mark.parametrize(
    ("requires", "versions", "detail", "packages"),
    [
        (LIFTED, {"numpy": "2.4.1", "torch": "2.9.0+cpu"}, "numpy 2.4.1 (pinned: 1.26.4):", "numpy==1.26.4"),
        # extras count where they are installed, and other platforms never
        (EXTRAS, {"a": "1", "b": "2.1", "d": "5"}, "b 2.1 (pinned: 2):", "b==2"),
        # the newest numpy of the lock and PyTriton's older one
        (TWO_NUMPY, {"numpy": "2.5.5"}, None, ""),
        (TWO_NUMPY, {"numpy": "2.6.0"}, "numpy 2.6.0", "numpy==1.26.4"),
        # PyTorch's CPU build comes without CUDA's libraries
        (CUDA, {"torch": "2.9.0+cpu"}, None, ""),
        (CUDA, {"torch": "2.9.0"}, "nvidia-nccl-cu12 is not installed (pinned:", "nvidia-nccl-cu12==2.27.5"),
    ],
)
def test_packages_that_differ_from_the_lock_are_named_with_the_way_to_install_them(
    monkeypatch, tmp_path, requires, versions, detail, packages
):
    installed(monkeypatch, requires, versions)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    finding = pinned_versions()
    assert finding.ok == (detail is None)
    if detail:
        assert finding.needed and finding.detail.startswith(detail)
        assert finding.detail.endswith(f"; run `python -m pip install {packages}`")
        (tmp_path / "lab.stamp").touch()
        assert f"remove {tmp_path}/lab.stamp, and `./lab doctor` installs" in pinned_versions().detail


def test_a_package_that_pythonpath_puts_before_the_environment_s_own_names_the_folder(monkeypatch):
    installed(monkeypatch, ["rich==15.1"], {"rich": "13.0"})
    monkeypatch.setenv("PYTHONPATH", "/nowhere:/other/packages")
    cure = "PYTHONPATH puts /other/packages before this environment: `unset PYTHONPATH`"
    assert pinned_versions().detail.endswith(cure)
