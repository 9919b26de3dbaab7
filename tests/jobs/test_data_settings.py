"""model.data in jobs: token files give the figures of their lines, and a template goes from a policy to what follows it."""

import json

import pytest
from smoke_jobs import SPLITS, assert_same_first_steps, first_steps

from aligner_lib.cli.main import main
from aligner_lib.datasets.chat_template import OWN, PLAIN, recorded_template
from aligner_lib.datasets.tokenize_files import tokenize_file
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.jobs.inference import tokenizer_of
from aligner_lib.models import resolve


def test_of_token_files_the_figures_are_the_same_to_the_bit(jobs, smoke, ppo, tmp_path):
    """Two steps of PPO's run by lines. Other samples of token files: unit/test_token_files.py."""
    settings = {"model__data__data_impl": "mmap"}
    for split, name in SPLITS:
        source = jobs.formatted / f"{name}_prompts.jsonl"
        tokens = tokenize_file(source, tmp_path / source.stem, Tokenizer(smoke), append_eod=False)
        settings[f"model__data__data_prefix__{split}"] = f"['{tokens.prefix}']"
    by_ids = jobs.run("ppo", "ppo_mmap", **settings, **first_steps("ppo", 2))
    assert_same_first_steps(by_ids, ppo)
    first = [[record for record in run.rollouts() if record["step"] <= 1] for run in (by_ids, ppo)]
    assert first[0] == first[1]
    names = {f"train_prompts_text_document.{end}" for end in ("bin", "idx")}
    assert names < set(by_ids.info["hashes"])


# ---- templates ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chatty(jobs):
    """A policy that has learnt by its tokenizer's chat template."""
    return jobs.run("sft", "chatty", trainer__sft__max_steps=1, model__data__chat_template=OWN)


def test_a_policy_s_template_is_recorded(sft, chatty):
    for run, name in ((sft, PLAIN), (chatty, OWN)):
        assert recorded_template(resolve(run.path)) == tokenizer_of(resolve(run.path)).template == name
        assert run.info["warnings"] == []


def test_a_run_whose_template_differs_from_its_policy_s_says_so(jobs, chatty, capsys, monkeypatch):
    """PPO's prompts are written by the policy's template, but its reward model was trained with another one."""
    run = jobs.run(
        "ppo",
        "ppo_chatty",
        trainer__ppo__max_steps=1,
        trainer__ppo__critic_warmup_steps=0,
        pretrained_checkpoint__restore_from_path=f"'{chatty.path}'",
    )
    prompts = {record["prompt"] for record in run.rollouts()}
    # the records leave special tokens out
    assert prompts and all(p.startswith("user\n") and p.endswith("\nassistant\n") for p in prompts)
    (warning,) = run.info["warnings"]
    assert "the reward model in" in warning and "was trained on chat_template=plain" in warning
    assert json.loads((run.latest_checkpoint() / "template.json").read_text()) == {"chat_template": OWN}
    assert warning in jobs.log("ppo_chatty").read_text()
    monkeypatch.setattr("sys.argv", ["aligner", "show", str(run.path)])
    with pytest.raises(SystemExit):
        main()
    assert "was trained on" in " ".join(capsys.readouterr().out.split())
