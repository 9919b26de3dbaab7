"""transformers computes what the engine does: from exported checkpoints of two ranks, and with SmolLM2's weights."""

import shutil

import pytest
import torch
from twins import transformers_twin

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.generate import Sampling, generate
from aligner_lib.megatron.model import Numerics
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.export import export
from aligner_lib.models.reward_scale import RewardScale

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]
CLOSE = 1e-4
TOKENS = torch.randint(3, 96, (3, 40), generator=torch.Generator().manual_seed(7))
SCALE = RewardScale(mean=-0.7, std=0.3)


def module_of(folder):
    engine = Engine(Architecture.load(folder), Numerics())
    engine.load(folder)
    return engine.module.eval()


@torch.no_grad()
def assert_same_logits(module, twin, tokens: torch.Tensor) -> None:
    ours = module.logits(module(tokens).transpose(0, 1).flatten(0, 1))
    theirs = twin(tokens).logits.flatten(0, 1)
    assert theirs.std() > 0.05
    torch.testing.assert_close(ours, theirs, atol=CLOSE, rtol=0)


def assert_same_continuation(module, twin, prompt: list[int], count: int) -> None:
    tokens = torch.tensor([prompt])
    arguments = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None}
    theirs = twin.generate(tokens, attention_mask=torch.ones_like(tokens), **arguments)[0, len(prompt) :]
    unused = next(token for token in range(96) if token not in theirs)  # as the stop token it would end ours
    greedy = Sampling(max_length=count, min_length=count, greedy=True)
    (ours,) = generate(module, [prompt], [0], greedy, stop_ids=[unused])
    assert ours.tokens == theirs.tolist()


@torch.no_grad()
def test_an_exported_reward_model_has_the_engine_s_scores(measured, smoke, tmp_path, monkeypatch):
    """Of a checkpoint that two ranks wrote. A policy's export is what is stored (test_layouts), as test_families compares it."""
    from transformers import AutoModelForSequenceClassification

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    checkpoint = shutil.copytree(measured / "tp2_sequence" / "scalar", tmp_path / "scalar")
    Tokenizer(smoke).save(checkpoint)
    SCALE.save(checkpoint)
    export(checkpoint, "hf", tmp_path / "out")
    module = module_of(checkpoint)
    twin = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    ours = SCALE(module.values(module(TOKENS))[-1])
    assert ours.std() > 0.05
    torch.testing.assert_close(twin(TOKENS).logits[:, 0], ours, atol=CLOSE, rtol=0)


SENTENCES = [
    "The capital of France is",
    "Once upon a time, in a small house at the edge of the forest, there lived",
]


@pytest.mark.model
def test_smollm2_has_transformers_logits_and_continuations(smollm2):
    module, twin = module_of(smollm2), transformers_twin(smollm2)
    for tokens in Tokenizer(smollm2).encode_batch(SENTENCES):
        assert_same_logits(module, twin, torch.tensor([tokens]))
        assert_same_continuation(module, twin, tokens, 8)
