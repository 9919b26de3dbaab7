"""Runs, exported: what their policies say and their reward models score in transformers, and what their cards tell."""

import json
import re
import shutil

import pytest
import torch
from smoke_jobs import rewards_of

from aligner_lib.datasets.chat_template import OWN, PLAIN
from aligner_lib.datasets.load import load_pairs
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.jobs.inference import scoring
from aligner_lib.models import resolve
from aligner_lib.models.export import export

NAMES = {"plain": PLAIN, "own": OWN}


@pytest.fixture(scope="module")
def exported(rm, ppo, tmp_path_factory):
    """exported("rm"): the folder for transformers that a run is exported to."""
    folder = tmp_path_factory.mktemp("exported")
    for name, run in {"rm": rm, "ppo": ppo}.items():
        export(run.path, "hf", folder / name)
    return lambda name: folder / name


@pytest.fixture(autouse=True)
def own_modules(tmp_path, monkeypatch):
    """The code of a reward model's folder is not taken from another test's."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


@torch.no_grad()
def scores(folder, texts: list[str], **options) -> torch.Tensor:
    """As a user of transformers scores a padded batch of texts that have ended."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype="auto", **options).eval()
    batch = tokenizer([text + tokenizer.eos_token for text in texts], padding=True, return_tensors="pt")
    return model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[:, 0]


@pytest.fixture
def judged(rm, here, formatted):
    """Uneven texts, and PPO's score of each."""
    folder = resolve(rm.path)
    tokenizer = Tokenizer(folder)
    pairs, _ = load_pairs([formatted / "test_comparisons.jsonl"], tokenizer, 256)
    rows = [row for pair in pairs[:6] for row in (pair.chosen, pair.rejected)]
    rewards = torch.tensor(rewards_of(folder, rows, tokenizer.pad_id))
    assert rewards.std() > 0.1
    return [tokenizer.decode(row) for row in rows], rewards


def test_a_reward_model_scores_in_transformers_as_in_ppo(exported, judged):
    """The padding must not hide the stop token at which the reward is read. Without our code the constant is missing."""
    from transformers import AutoConfig

    texts, ours = judged
    theirs = scores(exported("rm"), texts, trust_remote_code=True)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)
    constant = AutoConfig.from_pretrained(exported("rm")).reward_constant
    assert abs(constant) > 0.01
    torch.testing.assert_close(scores(exported("rm"), texts) + constant, ours, atol=1e-5, rtol=0)


@pytest.fixture(scope="module", params=["plain", "own"])
def exported_judge(request, rm, tmp_path_factory):
    """A reward model as it was trained, and as if it had learnt its tokenizer's template; and each one's export."""
    model = tmp_path_factory.mktemp("judge") / "model"
    shutil.copytree(resolve(rm.path), model)
    (model / "template.json").write_text(json.dumps({"chat_template": NAMES[request.param]}))
    export(model, "hf", model.with_name("exported"))
    return model, model.with_name("exported")


@torch.no_grad()
def test_the_snippet_of_its_card_gives_a_reward_model_s_score(exported_judge, here):
    model, folder = exported_judge
    (snippet,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.DOTALL)
    names = {"folder": str(folder)}
    exec(snippet, names)
    expected = scoring(model)("How are you?", "I am well.")
    assert names["reward"] == pytest.approx(expected, abs=1e-5)

    from transformers import pipeline

    text = names["tokenizer"].apply_chat_template(names["messages"], tokenize=False)
    judge = pipeline("text-classification", model=names["model"], tokenizer=names["tokenizer"])
    assert judge(text, add_special_tokens=False)[0]["score"] == pytest.approx(expected, abs=1e-5)


def test_a_policy_generates_as_its_rollouts_did(exported):
    """Its logits and its greedy text: megatron/test_transformers.py."""
    from transformers import GenerationConfig

    settings = GenerationConfig.from_pretrained(exported("ppo"))
    assert (settings.do_sample, settings.temperature, settings.top_p, settings.top_k) == (True, 1.0, 1.0, 0)
    assert (settings.max_new_tokens, settings.eos_token_id) == (12, [2])


def test_a_card_tells_of_the_run_and_not_of_the_machine(exported, ppo, jobs, tmp_path):
    card = (exported("ppo") / "README.md").read_text()
    first, last = ppo.metrics()[0], ppo.metrics()[-1]
    assert f"| val_rollouts/rewards | {first['val_rollouts/rewards']:.4g} (step 0) |" in card
    assert f"| {last['train_rollouts/rewards']:.4g} (step {last['step']}) |" in card
    seed = f"Seed {ppo.info['seed']}"
    for words in ("1. smoke", "2. `aligner ppo`, 8 steps", "train_prompts.jsonl", '"initial_policy_kl', seed):
        assert words in card
    assert not re.findall(r"(?<![\w.])/(?:\w+/)+", card), "a path"
    assert str(jobs.out) not in card and ppo.info["host"] not in card.replace("aligner-lab", "").split()
    export(ppo.latest_checkpoint() / "critic", "hf", tmp_path / "critic")
    card = (tmp_path / "critic/README.md").read_text()
    assert "A reward model" in card and "3. `aligner ppo`" in card
