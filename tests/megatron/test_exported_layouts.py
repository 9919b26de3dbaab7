"""Checkpoints of every layout, exported: transformers computes what the engine does."""

import pytest
import tiny
import torch
from layouts import LAYOUTS

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron.generate import Sampling, generate
from aligner_lib.models.export import export
from aligner_lib.models.reward_scale import RewardScale

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]
CLOSE = 1e-4
TOKENS = torch.randint(3, 96, (3, 40), generator=torch.Generator().manual_seed(7))
SCALE = RewardScale(mean=-0.7, std=0.3)


@pytest.fixture(scope="module", params=["one", *LAYOUTS])
def layout(request, measured, smoke):
    """The folder of a layout's checkpoints, as jobs leave them: with a tokenizer and, the reward model, its scale."""
    for name in tiny.MODELS:
        Tokenizer(smoke).save(measured / request.param / name)
    SCALE.save(measured / request.param / "scalar")
    return measured / request.param


def loaded(name: str, folder):
    """A checkpoint's weights in one process."""
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.model import Numerics

    engine = Engine(tiny.MODELS[name], Numerics())
    engine.load(folder)
    return engine.module.eval()


@pytest.mark.parametrize("name", ["untied", "tied"])
@torch.no_grad()
def test_a_policy_has_the_engine_s_logits_and_greedy_text(layout, name, tmp_path):
    from transformers import AutoModelForCausalLM

    export(layout / name, "hf", tmp_path / "out")
    module = loaded(name, layout / name)
    twin = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").eval()
    ours, theirs = (
        module.logits(module(TOKENS).transpose(0, 1).flatten(0, 1)),
        twin(TOKENS).logits.flatten(0, 1),
    )
    assert theirs.std() > 0.05
    torch.testing.assert_close(ours, theirs, atol=CLOSE, rtol=0)
    prompt = TOKENS[:1, :8]
    said = twin.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=None)[0, 8:].tolist()
    not_said = next(token for token in range(96) if token not in said)  # as the stop token it would end ours
    greedy = Sampling(max_length=12, min_length=12, greedy=True)
    (response,) = generate(module, prompt.tolist(), [0], greedy, stop_ids=[not_said])
    assert response.tokens == said


@torch.no_grad()
def test_a_reward_model_has_the_engine_s_scores(layout, tmp_path, monkeypatch):
    from transformers import AutoModelForSequenceClassification

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    export(layout / "scalar", "hf", tmp_path / "out")
    module = loaded("scalar", layout / "scalar")
    twin = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    ours = SCALE(module.values(module(TOKENS))[-1])
    assert ours.std() > 0.05
    torch.testing.assert_close(twin(TOKENS).logits[:, 0], ours, atol=CLOSE, rtol=0)
