"""The memory of importing and exporting is that of a few weights, however large the model is."""

import dataclasses
import sys

import pytest
from sparse_models import LLAMA_2_7B, peak_bytes, write_sparse_hf

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.tensor_store import read_header


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_layers_of_llama_2_7b_pass_one_weight_at_a_time(tmp_path, smoke):
    """Two layers are 0.75 GiB; the largest weight of a layer, gate and up of 2 · 11,008 · 4096 in bfloat16, is 0.17."""
    arch = dataclasses.replace(LLAMA_2_7B, num_layers=2, vocab_size=1024)
    hf = write_sparse_hf(tmp_path / "hf", arch, smoke)
    bound = 2 * (2 * 2 * 11_008 * 4096) + 2**27  # parts and what becomes of them; Python and libraries
    assert bound < 2**29
    model, out = tmp_path / "model", tmp_path / "out"
    assert max(peak_bytes(("import", hf, model), ("hf", model, out))) < bound
    assert Architecture.load(model) == arch
    (path,) = out.glob("*.safetensors")
    assert read_header(path)["model.layers.1.mlp.gate_proj.weight"]["shape"] == [11_008, 4096]
    size, on_disk = path.stat().st_size, 512 * path.stat().st_blocks
    assert size > 2 * arch.num_parameters > 1000 * on_disk, "files of holes"
