"""`import widgets` and every name in it: quick (in processor time, whatever else the machine does), without torch."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import sys, time
import anywidget, ipywidgets, numpy  # what the notebook's kernel needs anyway
started = time.process_time()
import widgets
for name in widgets.__all__:
    getattr(widgets, name)
print(time.process_time() - started)
assert not {"torch", "megatron", "transformers", "matplotlib", "pandas"} & set(sys.modules)
"""
STATIC = """
import sys
from widgets import compare_completions, curves, explore, show_completions
assert "anywidget" not in sys.modules
"""


def output(code: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_is_quick_and_light():
    assert float(output(CODE)) < 1.0


def test_what_stays_still_needs_no_widget():
    output(STATIC)
