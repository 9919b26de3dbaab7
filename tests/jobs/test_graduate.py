"""Runs for other libraries: TRL's first step from the written folder is the run's own first step; NeMo-RL's and verl's keys
are published keys."""

import importlib
import json
import sys
import tomllib
from pathlib import Path

import pyarrow.parquet
import pytest
import yaml
from smoke_jobs import prepare_smoke_job

from aligner_lib.config.compose import compose
from aligner_lib.datasets.samples import SFTSample
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.jobs.graduate import graduate
from aligner_lib.jobs.graduate.graduation import Graduation
from aligner_lib.jobs.graduate.texts import Texts
from aligner_lib.models.export.trained import Trained

CLOSE = 1e-4
CONFIGS = {("verl", "dr_grpo"): "ppo"}  # one config for both
KEYS = tomllib.loads(Path(__file__).with_name("published_keys.toml").read_text())


ONE_UPDATE = {
    "trainer__grpo__max_steps": 1,
    "model__global_batch_size": 16,
    "model__micro_batch_size": 16,
    "model__grpo__rollout_epochs": 1,
    "model__grpo__sampling_params__end_strings": "[]",
    "trainer__grpo__target_kl": "null",
}


def settings_of_run(name: str, reward_model: Path) -> dict[str, object]:
    """The settings of a run of one step. name: an objective of GRPO; `grpo` itself has a reward model."""
    settings = {**ONE_UPDATE, "model__grpo__objective": name, "model__grpo__kl": "none"}
    if name == "grpo":
        settings["model__grpo__kl"] = "k3"
        settings["model__environments__e__use"] = "reward_model"
        settings["reward_model__rm_model_file"] = f"'{reward_model}'"
    return settings


@pytest.fixture(scope="module")
def run_of(jobs, rm, request):
    """run_of(name): the session's run of a kind, or a run of GRPO with the settings of settings_of_run."""
    made = {}

    def of(name):
        if name in ("sft", "rm", "dpo", "ppo"):
            return request.getfixturevalue(name)
        if name not in made:
            made[name] = jobs.run("grpo", f"graduating-{name}", **settings_of_run(name, rm.path))
        return made[name]

    return of


def script_of(folder: Path, monkeypatch):
    """The folder's train.py as a module."""
    monkeypatch.syspath_prepend(folder)
    for name in ("train", "graduated", "rewards", "environment_rewards"):
        sys.modules.pop(name, None)
    return importlib.import_module("train")


def first_step(trainer) -> tuple[float, float]:
    """Loss and gradient norm of the first optimizer step."""
    trainer.train()
    log = trainer.state.log_history[0]
    return log["loss"], log["grad_norm"]


def one_step(tmp_path) -> dict:
    return {"output_dir": str(tmp_path / "out"), "max_steps": 1, "save_strategy": "no", "eval_strategy": "no"}


# ---- TRL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sft", "rm", "dpo"])
def test_the_first_step_in_trl_is_the_run_s(kind, run_of, tmp_path, monkeypatch):
    pytest.importorskip("trl", reason="TRL is not installed: ./lab test installs it")
    run, folder = run_of(kind), tmp_path / "graduated"
    graduate(run.path, "trl", folder)
    trainer = script_of(folder, monkeypatch).make_trainer("start", **one_step(tmp_path))
    (record,) = (record for record in run.metrics() if record["step"] == 1)
    expected = record["train/loss"], record["train/grad_norm"]
    assert expected[1] > 0.01
    assert first_step(trainer) == pytest.approx(expected, abs=CLOSE, rel=CLOSE)


@pytest.mark.parametrize(
    "objective",
    ["grpo", "dr_grpo", "cispo"],
    ids=["k3 and a reward model", "constant normaliser", "stop-gradient"],
)
def test_grpo_s_first_step_on_the_same_responses_is_the_run_s(
    objective, run_of, jobs, rm, here, tmp_path, monkeypatch
):
    pytest.importorskip("trl", reason="TRL is not installed: ./lab test installs it")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    run, folder = run_of(objective), tmp_path / "graduated"
    graduate(run.path, "trl", folder)
    settings = jobs.settings("grpo", "again", **settings_of_run(objective, rm.path))
    responses = responses_of_first_step(settings)
    trainer = script_of(folder, monkeypatch).make_trainer("start", **one_step(tmp_path))

    def given(prompt_ids, *_, **__):
        return [responses[tuple(ids)].pop(0) for ids in prompt_ids], None

    monkeypatch.setattr(trainer, "_generate_single_turn", given)
    found, (_, record) = first_step(trainer), run.metrics()[:2]
    assert record["train_optim/grad_norm"] > 1e-3
    assert found == pytest.approx(
        (record["train_optim/loss"], record["train_optim/grad_norm"]), abs=CLOSE, rel=CLOSE
    )
    records = [r for r in run.rollouts() if (r["step"], r["split"]) == (1, "train")]
    advantages = [r["token_advantage"][0] for r in records]
    assert max(advantages) > 0
    assert sorted(trainer._logs["advantages"]) == pytest.approx(sorted(advantages), abs=CLOSE)


def responses_of_first_step(settings: list[str]) -> dict[tuple, list[list[int]]]:
    """The responses of a run's first step by their prompts, as token ids. They follow from the seed."""
    from aligner_lib.rollouts.timers import Timers

    job = prepare_smoke_job("grpo", settings)
    try:
        trainer = job.build(None)
        trainer.load(None)
        rollouts = trainer.collect(1, Timers()).rollouts
    finally:
        job.close()
    responses: dict[tuple, list[list[int]]] = {}
    for row in range(rollouts.size):
        prompt = tuple(int(token) for token in rollouts.prompt_tokens(row))
        responses.setdefault(prompt, []).append([int(token) for token in rollouts.response_tokens(row)])
    return responses


# ---- NeMo-RL, verl --------------------------------------------------------------------------------------------------


def names(value: dict, prefix: str = "") -> set[str]:
    return {
        name
        for key, inner in value.items()
        for name in (
            names(inner, f"{prefix}{key}.") if isinstance(inner, dict) and inner else {f"{prefix}{key}"}
        )
    }


@pytest.mark.parametrize(
    ("to", "kind"), [("nemo-rl", "sft"), ("nemo-rl", "rm"), ("nemo-rl", "dpo"), ("verl", "sft"), ("nemo-rl", "grpo"), ("verl", "ppo"), ("verl", "dr_grpo")]
)  # fmt: skip
def test_every_key_is_published(to, kind, run_of, tmp_path):
    graduate(run_of(kind).path, to, tmp_path / "out")
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    published = KEYS[to][CONFIGS.get((to, kind), kind)]
    assert len(published["commit"]) == 40
    assert names(config) - set(published["names"].split()) - {"defaults", "hydra.searchpath"} == set()
    assert "${oc.env:GRADUATED}/model" in json.dumps(config)


def test_verl_s_turns_join_to_the_run_s_samples(run_of, tmp_path):
    graduate(run_of("sft").path, "verl", tmp_path / "out")
    first = pyarrow.parquet.read_table(tmp_path / "out" / "data" / "train.parquet").to_pylist()[0]["messages"]
    assert [turn["role"] for turn in first] == ["user", "assistant"]
    tokenizer = Tokenizer(run_of("sft").latest_checkpoint())
    ids = tokenizer.encode_parts([turn["content"] for turn in first])
    assert ids[1][-1] == tokenizer.eos_id


# ---- what is told, what is refused ----------------------------------------------------------------------------------


def test_readme_names_every_setting_that_differs_from_its_default(run_of, tmp_path):
    from aligner_lib.config.compose import save, settings_of
    from aligner_lib.run_folder.reader import flatten

    run = run_of("dpo")
    graduate(run.path, "trl", tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    differing = flatten(settings_of("dpo", run.info["config"]))
    ours = {key for key in differing if not key.startswith("exp_manager.")}
    assert (
        "model.optim.lr" in ours
        and save(compose("dpo"))["model"]["optim"]["lr"] != differing["model.optim.lr"]
    )
    unnamed = {key for key in ours if f"`{key}`" not in text}
    assert {key for key in unnamed if not key.startswith(("model.data.", "pretrained_checkpoint."))} == set()
    assert str(tmp_path) not in text and str(run.path.parent) not in text
    assert "`trainer.dpo.limit_val_batches`: `2`" in text.partition("## Not carried over")[2]


@pytest.mark.parametrize(
    ("kind", "to", "words"),
    [
        ("ppo", "trl", "TRL has no trainer for: TRL has sft, rm, dpo, grpo; choose --to verl"),
        ("dpo", "verl", "verl has no trainer for: verl has sft, ppo, grpo; choose --to trl or nemo-rl"),
        ("dr_grpo", "nemo-rl", "judge by programs"),
        ("sft", "axolotl", "the targets are trl, nemo-rl, verl"),
    ],
)
def test_a_refusal_names_what_lacks_and_the_cure(kind, to, words, run_of, tmp_path):
    with pytest.raises(UserError) as refusal:
        graduate(run_of(kind).path, to, tmp_path / "out")
    assert " ".join(words.split()) in " ".join(
        str(refusal.value).replace("which TRL", "TRL").replace("which verl", "verl").split()
    )
    assert not (tmp_path / "out").exists()


def test_several_weighted_rewards_are_refused(run_of, tmp_path):
    graduation = Graduation(Trained.find(run_of("dr_grpo").path), tmp_path, tmp_path)
    name, environment = next(iter(graduation.config.model.environments.items()))
    environment.rewards = {"exact": 1.0}
    with pytest.raises(UserError, match=rf"environments\.{name}\.rewards adds several weighted rewards"):
        graduation.load_prompts(2)


def test_a_model_without_a_run_is_refused(smoke, tmp_path):
    with pytest.raises(UserError, match="aligner model export"):
        graduate(smoke, "trl", tmp_path / "out")


def test_texts_that_are_read_differently_are_counted(smoke):
    tokenizer = Tokenizer(smoke)
    ids = tokenizer.encode("abc") + [tokenizer.eos_id]
    texts = Texts(tokenizer, in_turns=True)
    turns = texts.turns(SFTSample(ids, answer_start=len(ids) - 1))
    assert turns == [
        {"role": "user", "content": "abc"},
        {"role": "assistant", "content": tokenizer.decode(ids[-1:], True)},
    ]
    assert (texts.total, texts.different, texts.note("verl")) == (1, 0, [])
    apart = [tokenizer.encode("a")[0], tokenizer.encode("b")[0], tokenizer.encode("c")[0]]
    texts.prompt(apart)
    assert texts.different == int(apart != tokenizer.encode("abc"))
