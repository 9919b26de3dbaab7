"""What the data room costs: import time, and memory and speed on as many pairs as the real HH data has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HH_REAL = ROOT.parent / "shared" / "data" / "hh-harmless-1200.jsonl.gz"
PAIRS, REPEATS = 1_200, 134  # 160,800 pairs


def run_python(script: str) -> dict:
    output = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return json.loads(output.stdout)


def test_import_is_light():
    script = """
import json, sys, time
start = time.perf_counter()
import data, data.make_samples
seconds = time.perf_counter() - start
heavy = {"torch", "megatron", "numpy", "pyarrow", "huggingface_hub", "aligner_lib"} & set(sys.modules)
print(json.dumps({"seconds": seconds, "heavy": sorted(heavy)}))
"""
    runs = [run_python(script) for _ in range(3)]
    assert all(run["heavy"] == [] for run in runs)
    assert min(run["seconds"] for run in runs) < 0.5


@pytest.mark.slow
@pytest.mark.skipif(not HH_REAL.exists(), reason="no ../shared/data/hh-harmless-1200.jsonl.gz here")
def test_160_000_pairs_stream_fast_in_little_memory(tmp_path):
    raw = tmp_path / "raw.jsonl.gz"
    raw.write_bytes(HH_REAL.read_bytes() * REPEATS)  # gzip files may be chained
    # VmHWM, because ru_maxrss starts from what the parent process had when it forked.
    script = f"""
import json, pathlib, re, resource, sys, time
from data import format_hh
start = time.perf_counter()
report = format_hh({str(raw)!r}, {str(tmp_path / "out")!r}, "train")
seconds = time.perf_counter() - start
status = pathlib.Path("/proc/self/status")
if status.exists():
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) / 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({{"read": report.read, "kept": report.kept, "pairs_per_second": report.read / seconds, "mib": peak}}))
"""
    runs = [run_python(script) for _ in range(2)]
    print(runs)
    assert all(run["read"] == PAIRS * REPEATS for run in runs)
    assert max(run["mib"] for run in runs) <= 300
    # The better of two: the machine may be busy with something else during one.
    assert max(run["pairs_per_second"] for run in runs) >= 20_000
    comparisons = (tmp_path / "out/train_comparisons.jsonl").read_bytes()
    assert comparisons.count(b"\n") == 2 * runs[0]["kept"] - 1
