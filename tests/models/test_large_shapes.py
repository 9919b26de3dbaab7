"""The memory of importing and exporting is that of a few weights, however large the model is."""

import dataclasses
import sys

import gguf
import pytest
import tiny_llama
import tiny_nemo
import torch
from sparse_models import LLAMA_2_7B, peak_bytes, write_sparse_hf

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.tensor_store import read_header

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")


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


SIZES = {"hidden_size": 256, "ffn_hidden_size": 704, "kv_channels": 64}


def write_gguf(folder, layers: int, smoke):
    arch = dataclasses.replace(tiny_llama.ARCH, num_layers=layers, **SIZES)
    weights, kind = tiny_llama.random_weights(arch), gguf.GGMLQuantizationType.Q8_0
    return tiny_llama.write_gguf(folder / f"{layers}.gguf", arch, weights, smoke, kind)


def write_nemo(folder, layers: int, smoke):
    arch = dataclasses.replace(tiny_nemo.GPT_2B, num_layers=layers, **SIZES)
    tiny_nemo.put_tokenizer(smoke, folder)
    config = {**tiny_nemo.CONFIG, "num_layers": layers, **SIZES}
    weights = tiny_nemo.random_weights(arch, torch.float32)
    tiny_nemo.write_old(folder / f"{layers}", weights, config, layers=layers)
    return tiny_nemo.pack(folder / f"{layers}", folder / f"{layers}.nemo")


@pytest.mark.parametrize("write_source", [write_gguf, write_nemo])
def test_a_longer_model_does_not_raise_the_peak_of_an_import_and_an_export(tmp_path, smoke, write_source):
    """Eight more layers are 25 MiB in float32. Of a GGUF file, whose pages are mapped, a quarter of them counts."""
    steps = []
    for layers in (4, 12):
        source, model = write_source(tmp_path, layers, smoke), tmp_path / f"model{layers}"
        steps += [("import", source, model), ("nemo", model, tmp_path / f"back{layers}.nemo")]
    _, of_few, _, of_many = peak_bytes(*steps)
    assert of_many - of_few < 10 << 20
