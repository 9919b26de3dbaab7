"""Inert modules stand in for packages during an import, and leave no trace. See also megatron/test_cpu.py."""

import importlib
import sys

from aligner_lib.megatron.inert_modules import inert_modules


def test_a_package_that_was_imported_before_stays_and_its_other_modules_are_real_afterwards(
    tmp_path, monkeypatch
):
    for name in ("slow", "slow/part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = importlib.import_module("slow")
    with inert_modules(["slow", "missing"]):
        inside, part = importlib.import_module("slow"), importlib.import_module("slow.part")
        assert not isinstance(3, importlib.import_module("missing").Tensor)
    assert inside is before and not hasattr(part, "__file__")
    assert not hasattr(before, "part") and "missing" not in sys.modules
    assert importlib.import_module("slow.part").real is True
    for name in ("slow", "slow.part"):
        del sys.modules[name]
