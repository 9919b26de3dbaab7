"""model.data in jobs: token files give the figures of their lines, and a template goes from a policy to what follows it."""

import json

import pytest
from smoke_jobs import figures, first_steps

from aligner_lib.cli.main import main
from aligner_lib.datasets.chat_template import OWN, PLAIN, recorded_template
from aligner_lib.datasets.tokenize_files import tokenize_file
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.jobs.inference import tokenizer_of
from aligner_lib.models import resolve

SPLITS = {"train": "train", "validation": "test"}


@pytest.fixture(scope="module")
def token_files(smoke, formatted, tmp_path_factory):
    """token_files("comparisons"): settings for the bundled ones as token files."""
    folder = tmp_path_factory.mktemp("tokens")

    def settings(name: str) -> dict[str, object]:
        found = {"model__data__data_impl": "mmap"}
        for split, begins in SPLITS.items():
            source = formatted / f"{begins}_{name}.jsonl"
            made = tokenize_file(
                source, folder / source.stem, Tokenizer(smoke), append_eod=name == "comparisons"
            )
            found[f"model__data__data_prefix__{split}"] = f"['{made.prefix}']"
        return found

    return settings


@pytest.mark.parametrize("kind", ["dpo", "ppo"])
def test_of_token_files_the_figures_are_the_same_to_the_bit(jobs, request, token_files, kind):
    """Two steps of the run by lines. A reward model reads the same pairs: unit/test_token_files.py."""
    by_lines = request.getfixturevalue(kind)
    samples = "prompts" if kind == "ppo" else "comparisons"
    by_ids = jobs.run(kind, f"{kind}_mmap", **token_files(samples), **first_steps(kind, 2))
    for ours, theirs in zip(figures(by_ids), figures(by_lines)):
        assert ours.items() >= theirs.items()  # ours has validated after its last step, too
    rollouts = [[record for record in run.rollouts() if record["step"] <= 1] for run in (by_ids, by_lines)]
    assert rollouts[0] == rollouts[1]
    names = {f"train_{samples}_text_document.{end}" for end in ("bin", "idx")}
    assert names < set(by_ids.info["hashes"])


# ---- templates ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chatty(jobs):
    """A policy that has learnt by its tokenizer's chat template."""
    return jobs.run("sft", "chatty", trainer__sft__max_steps=2, model__data__chat_template=OWN)


def test_a_policy_s_template_is_recorded_and_goes_on(jobs, sft, chatty):
    begin = {"pretrained_checkpoint__restore_from_path": f"'{chatty.path}'", "trainer__rm__max_steps": 1}
    follows = jobs.run("rm", "rm_chatty", **begin)
    for run, name in ((sft, PLAIN), (chatty, OWN), (follows, OWN)):
        assert recorded_template(resolve(run.path)) == tokenizer_of(resolve(run.path)).template == name
        assert run.info["warnings"] == []
    assert chatty.info["config"]["model"]["data"]["chat_template"] == OWN


def test_a_run_whose_template_differs_from_its_policy_s_says_so(jobs, chatty, capsys, monkeypatch):
    """PPO's prompts are rendered by the policy's template; the reward model was trained by another one."""
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
