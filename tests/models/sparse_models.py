"""Models of the sizes that people train, as files of holes: headers with the right shapes, zeros that take no disk.

python tests/models/sparse_models.py 7b 32      # the whole of Llama-2-7B in, and out again: seconds and peaks
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families import to_hf
from aligner_lib.models.names import hf_shapes, weights

LLAMA_2_7B = Architecture(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_query_groups=32,
    ffn_hidden_size=11_008,
    vocab_size=32_000,
    max_position_embeddings=4096,
    kv_channels=128,
    tied_embeddings=False,
)
LLAMA_2_70B = dataclasses.replace(
    LLAMA_2_7B,
    num_layers=80,
    hidden_size=8192,
    num_attention_heads=64,
    num_query_groups=8,
    ffn_hidden_size=28_672,
)

# Runs in a process of its own; a write of zeros becomes a hole, so that no disk is filled. VmHWM and not getrusage: on
# Linux a child's ru_maxrss begins at what its parent held when it forked.
WORK = """
import io, os, re, sys
from pathlib import Path
import numpy as np
from aligner_lib.models import import_model
from aligner_lib.models.export import export

class Holes(io.FileIO):
    def write(self, data):
        data = memoryview(data).cast("B")
        if len(data) < 1 << 20 or np.frombuffer(data, np.uint8).any():
            return super().write(data)
        self.truncate(self.seek(len(data), os.SEEK_CUR))

open_path = Path.open
Path.open = lambda self, mode="r", *more, **named: Holes(self, "wb") if mode == "wb" else open_path(self, mode, *more, **named)
for what, source, out in zip(*[iter(sys.argv[1:])] * 3):
    if what == "import":
        import_model(Path(source), Path(out))
    else:
        export(source, what, Path(out))
    print("peak", re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


def write_sparse_hf(folder: Path, arch: Architecture, tokenizer: Path) -> Path:
    """A Hugging Face folder in bfloat16, all zeros, in one file with holes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(to_hf(arch)))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tokenizer / name).read_bytes())
    header, end = {}, 0
    for weight in weights(arch):
        for name, shape in zip(weight.hf, hf_shapes(weight, arch)):
            start, end = end, end + 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


def peak_bytes(*steps: tuple[str, Path, Path]) -> list[int]:
    """The largest resident set of one process, interpreter and libraries included, after each of its steps: ("import" or an
    export's target, from, to)."""
    command = [sys.executable, "-c", WORK, *(str(word) for step in steps for word in step)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [1024 * int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("peak ")]


def main(size: str, layers: str) -> None:
    import tempfile

    from aligner_lib.models import fetch

    arch = dataclasses.replace({"7b": LLAMA_2_7B, "70b": LLAMA_2_70B}[size], num_layers=int(layers))
    with tempfile.TemporaryDirectory() as folder:
        hf = write_sparse_hf(Path(folder) / "hf", arch, fetch("smoke", progress=False))
        print(
            f"{arch.num_parameters:,} parameters, {hf.joinpath('model.safetensors').stat().st_size:,} bytes"
        )
        for what, source, out in (("import", "hf", "model"), ("hf", "model", "out")):
            began = time.perf_counter()
            (peak,) = peak_bytes((what, Path(folder) / source, Path(folder) / out))
            print(
                f"{'import' if what == 'import' else 'export'}: {time.perf_counter() - began:.0f} s, peak {peak / 2**30:.2f} GiB"
            )
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        print(f"on disk: {sum(512 * os.stat(path).st_blocks for path in files):,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
