"""The same weights in transformers: the same logits, the same greedy continuations."""

import json
import shutil

import pytest
import torch
from twins import random_twins, transformers_twin

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron.generate import Sampling, generate
from aligner_lib.models.architecture import Architecture

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]
LOGITS_CLOSE = 1e-4
NOT_SAID = 1  # a token that neither model says here: as the stop token it would end ours


def megatron(folder, **training):
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.model import Numerics

    engine = Engine(Architecture.load(folder), Numerics(), **training)
    engine.load(folder)
    return engine


@torch.no_grad()
def assert_same_logits(engine, twin, tokens: torch.Tensor) -> None:
    ours = engine.module.eval().logits(engine.module(tokens).transpose(0, 1).flatten(0, 1))
    theirs = twin(tokens).logits.flatten(0, 1)
    assert theirs.std() > 0.05
    torch.testing.assert_close(ours, theirs, atol=LOGITS_CLOSE, rtol=0)


def assert_same_continuations(engine, twin, prompts: list[list[int]], count: int) -> None:
    sampling = Sampling(max_length=count, min_length=count, greedy=True)
    ours = generate(engine.module, prompts, [0] * len(prompts), sampling, stop_ids=[NOT_SAID])
    for prompt, response in zip(prompts, ours):
        tokens = torch.tensor([prompt])
        whole = twin.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False
        )
        assert response.tokens == whole[0, len(prompt) :].tolist()


# ---- a random untied model with grouped queries, written by transformers itself -------------------------------------


@pytest.fixture(scope="module")
def random_model(smoke, tmp_path_factory):
    """transformers' model, and ours imported from what it saved."""
    folder = tmp_path_factory.mktemp("random")
    imported, twin = random_twins(smoke, folder, seed=5)
    config = json.loads((folder / "hf" / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["num_key_value_heads"]) == (False, 2)
    return megatron(imported), twin


def test_a_random_untied_model_has_transformers_logits(random_model):
    tokens = torch.randint(0, 96, (3, 50), generator=torch.Generator().manual_seed(0))
    assert_same_logits(*random_model, tokens)


def test_a_random_untied_model_continues_as_in_transformers(random_model):
    assert_same_continuations(*random_model, [[5, 6, 7], [8], list(range(20, 50))], 24)


# ---- SmolLM2 --------------------------------------------------------------------------------------------------------

SENTENCES = [
    "The capital of France is",
    "Once upon a time, in a small house at the edge of the forest, there lived",
]


@pytest.fixture(scope="module")
def smollm2_twins(smollm2):
    return megatron(smollm2), transformers_twin(smollm2)


@pytest.fixture(scope="module")
def sentences(smollm2) -> list[list[int]]:
    return Tokenizer(smollm2).encode_batch(SENTENCES)


@pytest.mark.model
def test_smollm2_has_transformers_logits(smollm2_twins, sentences):
    for tokens in sentences:
        assert_same_logits(*smollm2_twins, torch.tensor([tokens]))


@pytest.mark.model
def test_smollm2_continues_as_in_transformers(smollm2_twins, sentences):
    assert_same_continuations(*smollm2_twins, sentences, 12)


@pytest.mark.model
def test_a_checkpoint_holds_float32_weights_and_adam_s_two_moments(smollm2, tmp_path):
    engine = megatron(smollm2, optim={"lr": 1e-5, "weight_decay": 0.1, "betas": [0.9, 0.98], "eps": 1e-8})
    engine.save(tmp_path / "checkpoint")
    saved = sum(path.stat().st_size for path in (tmp_path / "checkpoint").rglob("*.safetensors"))
    assert saved > 3 * 4 * engine.module.architecture.num_parameters
    shutil.rmtree(tmp_path / "checkpoint")  # 1.6 GB
