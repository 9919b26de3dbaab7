"""The memory of importing and exporting is that of a few weights, however large the model is."""

import dataclasses
import sys

import pytest
from sparse_models import LLAMA_2_70B, peak_bytes, write_sparse_hf

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.tensor_store import read_header


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_a_layer_of_llama_2_70b_passes_within_4_gib(tmp_path, smoke):
    """Its largest weight, gate and up of 2 · 28,672 · 8192 in bfloat16, is 0.88 GiB; all 80 layers would be 127."""
    arch = dataclasses.replace(LLAMA_2_70B, num_layers=1, vocab_size=1024)
    hf = write_sparse_hf(tmp_path / "hf", arch, smoke)
    largest = 2 * 2 * 28_672 * 8192
    assert peak_bytes("import", hf, tmp_path / "model") < 2 * largest + 2**28
    assert Architecture.load(tmp_path / "model") == arch
    assert peak_bytes("export", tmp_path / "model", tmp_path / "out") < 2 * largest + 2**28 < 2**32
    (path,) = (tmp_path / "out").glob("*.safetensors")
    header = read_header(path)
    assert header["model.layers.0.mlp.gate_proj.weight"]["shape"] == [28_672, 8192]
    assert path.stat().st_size > 2 * arch.num_parameters > 1000 * 512 * path.stat().st_blocks, "holes"
