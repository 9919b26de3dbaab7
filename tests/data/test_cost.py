"""What the data room costs: memory, however many pairs stream through it (its speed: ./lab bench --only disk)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HH_REAL = ROOT.parent / "shared" / "data" / "hh-harmless-1200.jsonl.gz"
# VmHWM, because ru_maxrss starts from what the parent process had when it forked.
FORMAT = """
import json, pathlib, re, resource, sys
from data import format_hh
report = format_hh(sys.argv[1], sys.argv[2], "train")
status = pathlib.Path("/proc/self/status")
if status.exists():
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) / 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({"kept": report.kept, "mib": peak}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not HH_REAL.exists(), reason="no ../shared/data/hh-harmless-1200.jsonl.gz here")
def test_four_times_the_pairs_take_no_more_memory(tmp_path):
    peaks, raw = {}, tmp_path / "raw.jsonl.gz"
    for repeats in (10, 40):
        raw.write_bytes(HH_REAL.read_bytes() * repeats)  # gzip files may be chained
        command = [sys.executable, "-c", FORMAT, str(raw), str(tmp_path / "out")]
        run = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        peaks[repeats] = run["mib"]
        comparisons = (tmp_path / "out/train_comparisons.jsonl").read_bytes()
        assert comparisons.count(b"\n") == 2 * run["kept"] - 1
    assert len(comparisons) > 40 << 20 and peaks[40] - peaks[10] < 10
