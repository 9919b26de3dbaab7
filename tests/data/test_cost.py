"""What the data room costs: memory on as many pairs as the real HH data has (its speed: ./lab bench --only disk)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HH_REAL = ROOT.parent / "shared" / "data" / "hh-harmless-1200.jsonl.gz"
PAIRS, REPEATS = 1_200, 134  # 160,800 pairs


@pytest.mark.slow
@pytest.mark.skipif(not HH_REAL.exists(), reason="no ../shared/data/hh-harmless-1200.jsonl.gz here")
def test_160_000_pairs_stream_in_little_memory(tmp_path):
    raw = tmp_path / "raw.jsonl.gz"
    raw.write_bytes(HH_REAL.read_bytes() * REPEATS)  # gzip files may be chained
    # VmHWM, because ru_maxrss starts from what the parent process had when it forked.
    script = f"""
import json, pathlib, re, resource, sys
from data import format_hh
report = format_hh({str(raw)!r}, {str(tmp_path / "out")!r}, "train")
status = pathlib.Path("/proc/self/status")
if status.exists():
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) / 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({{"read": report.read, "kept": report.kept, "mib": peak}}))
"""
    command = [sys.executable, "-c", script]
    run = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    assert run["read"] == PAIRS * REPEATS
    assert run["mib"] <= 300
    comparisons = (tmp_path / "out/train_comparisons.jsonl").read_bytes()
    assert comparisons.count(b"\n") == 2 * run["kept"] - 1
