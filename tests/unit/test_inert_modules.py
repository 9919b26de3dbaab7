"""Inert modules stand in for packages during an import, and leave no trace."""

import importlib
import sys

import pytest

from aligner_lib.megatron.inert_modules import inert_modules


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """`kept`, which is imported, and `slow`, which must not be. `user` imports `slow` and a package that is not installed."""
    for name in ("kept", "slow", "slow/part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("real = True\n")
    (tmp_path / "user.py").write_text(
        "import missing\nimport missing.language as ml\nfrom slow.part import Tensor\nimport slow.part\nfrom kept import real\n\n\n"
        "@missing.jit\ndef kernel(size: ml.constexpr): ...\n\n\n"
        "@missing.heuristics({'size': 1})\ndef other(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("kept", "slow", "slow.part", "user"):
        sys.modules.pop(name, None)


def test_inside_names_are_classes_that_nothing_is_an_instance_of(packages):
    with inert_modules(["slow", "missing"]):
        user = importlib.import_module("user")
    assert user.real is True
    assert not isinstance(3, user.Tensor)
    assert user.missing.__version__ == "0"
    assert user.kernel is not None and user.other is not None


def test_afterwards_the_real_package_is_imported(packages):
    with inert_modules(["slow", "missing"]):
        importlib.import_module("user")
    assert importlib.import_module("slow.part").real is True
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("missing")


def test_a_module_that_was_imported_before_stays(packages):
    before = importlib.import_module("slow")
    with inert_modules(["slow"]):
        inside = importlib.import_module("slow")
        part = importlib.import_module("slow.part")
    assert inside is before and not hasattr(part, "__file__")
    assert not hasattr(before, "part")
    assert importlib.import_module("slow.part").real is True
