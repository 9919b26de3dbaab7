"""transformers computes what the engine does with SmolLM2's weights. Small models of every family: test_families.py."""

import pytest
import torch
from twins import transformers_twin

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.generate import Sampling, generate
from aligner_lib.megatron.model import Numerics
from aligner_lib.models.architecture import Architecture

pytestmark = [pytest.mark.megatron, pytest.mark.model, pytest.mark.usefixtures("one_process")]
COUNT = 8


@torch.no_grad()
def test_smollm2_has_transformers_logits_and_continuations(smollm2):
    engine, twin = Engine(Architecture.load(smollm2), Numerics()), transformers_twin(smollm2)
    engine.load(smollm2)
    module = engine.module.eval()
    prompt = Tokenizer(smollm2).encode(
        "Once upon a time, in a small house at the edge of the forest, there lived"
    )
    tokens = torch.tensor([prompt])
    hidden, expected = module(tokens).transpose(0, 1).flatten(0, 1), twin(tokens).logits.flatten(0, 1)
    assert expected.std() > 0.05
    torch.testing.assert_close(module.logits(hidden), expected, atol=1e-4, rtol=0)

    arguments = {"max_new_tokens": COUNT, "do_sample": False, "eos_token_id": None}
    theirs = twin.generate(tokens, attention_mask=torch.ones_like(tokens), **arguments)[0, len(prompt) :]
    unused = next(token for token in range(96) if token not in theirs)  # as the stop token it would end ours
    greedy = Sampling(max_length=COUNT, min_length=COUNT, greedy=True)
    (response,) = generate(module, [prompt], [0], greedy, stop_ids=[unused])
    assert response.tokens == theirs.tolist()
