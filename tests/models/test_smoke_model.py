"""The smoke model: the same everywhere, of the shape and statistics that it promises."""

import math
import subprocess
import sys

import pytest
import torch

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.models import model_hash
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.smoke import SPECIAL_TOKENS
from aligner_lib.models.tensor_store import StoreReader


def test_of_two_processes_one_makes_the_model_of_the_same_bytes(tmp_path, smoke):
    code = f"from aligner_lib.models import fetch; fetch('smoke', cache={str(tmp_path)!r})"
    environment = {"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    output = "".join(process.communicate(timeout=60)[0] for process in started)
    assert [process.returncode for process in started] == [0, 0]
    assert output.count("made on this machine") == 1
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [".smoke.lock", "smoke"]
    assert model_hash(tmp_path / "models/smoke") == model_hash(smoke)
    for path in smoke.rglob("*.*"):
        assert (tmp_path / "models/smoke" / path.relative_to(smoke)).read_bytes() == path.read_bytes(), (
            path.name
        )


def test_initial_weights_are_megatrons(smoke):
    arch, reader = Architecture.load(smoke), StoreReader(smoke / "weights")
    assert sum(math.prod(reader.shape(name)) for name in reader.names()) == arch.num_parameters
    for name in reader.names():
        weight = reader.read_whole(name)
        assert weight.dtype == torch.float32
        if weight.dim() == 1:
            assert torch.equal(weight, torch.ones_like(weight))
            continue
        into_residual = "linear_proj" in name or "linear_fc2" in name
        std = 0.02 / math.sqrt(2 * arch.num_layers) if into_residual else 0.02
        assert weight.mean().item() == pytest.approx(0, abs=5 * std / math.sqrt(weight.numel()))
        assert weight.std().item() == pytest.approx(std, rel=0.05), name


def test_the_tokenizer_fills_the_vocabulary_and_knows_the_chat_tokens(smoke):
    tokenizer, arch = Tokenizer(smoke), Architecture.load(smoke)
    assert tokenizer.vocab_size == arch.vocab_size == 1024
    text = "<|im_start|>user\nHow do I write a kind letter in 2024?<|im_end|>\n"
    ids = tokenizer.encode(text)
    assert tokenizer.tokens(ids)[0] == "<|im_start|>"
    assert ids.count(tokenizer.eos_id) == 1
    assert "".join(tokenizer.tokens(ids)) == text
    assert [tokenizer.encode(token) for token in SPECIAL_TOKENS] == [[0], [1], [2]]
    assert len(ids) < len(text) / 1.8, "merges were learned"
