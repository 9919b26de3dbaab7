"""Runs for other libraries: TRL's first step from the written folder is the run's own first step; NeMo-RL's and verl's keys
are published keys."""

import importlib
import json
import random
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet
import pytest
import yaml
from omegaconf import OmegaConf
from smoke_jobs import prepare_smoke_job

from aligner_lib.algorithms.objective import SWITCHES, Objective
from aligner_lib.algorithms.schedule import learning_rate
from aligner_lib.config.environments import EnvironmentSettings
from aligner_lib.config.schema import Optim, Sched
from aligner_lib.datasets.samples import SFTSample
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.jobs.graduate import graduate, nemo_rl, target_of, trl, trl_scripts, verl
from aligner_lib.jobs.graduate.graduation import Graduation
from aligner_lib.jobs.graduate.texts import Texts
from aligner_lib.models.export.trained import Trained
from aligner_lib.run_folder.reader import RunFolder

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
    runs = {}

    def of(name):
        if name in ("sft", "rm", "rm_further", "dpo", "ppo"):
            return request.getfixturevalue(name)
        if name not in runs:
            runs[name] = jobs.run("grpo", f"graduating-{name}", **settings_of_run(name, rm.path))
        return runs[name]

    return of


def script_of(folder: Path, monkeypatch, script: str = "train"):
    """A script of the folder as a module."""
    monkeypatch.syspath_prepend(folder)
    for name in ("train", "graduated", "rewards", "environment_rewards"):
        sys.modules.pop(name, None)
    return importlib.import_module(script)


def first_step(trainer) -> tuple[float, float]:
    """Loss and gradient norm of the first optimizer step."""
    trainer.train()
    log = trainer.state.log_history[0]
    return log["loss"], log["grad_norm"]


def one_step(tmp_path) -> dict:
    return {"output_dir": str(tmp_path / "out"), "max_steps": 1, "save_strategy": "no", "eval_strategy": "no"}


# ---- TRL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sft", "rm", "rm_further", "dpo"])
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
    "objective", ["grpo", "dr_grpo"], ids=["k3 and a reward model", "constant normaliser"]
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
    record = run.metrics()[1]
    expected = record["train_optim/loss"], record["train_optim/grad_norm"]
    assert expected[1] > 1e-3
    assert first_step(trainer) == pytest.approx(expected, abs=CLOSE, rel=CLOSE)
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


def test_environments_without_aligner_lab_end_the_script_before_the_models_are_loaded(
    run_of, tmp_path, monkeypatch
):
    pytest.importorskip("trl", reason="TRL is not installed: ./lab test installs it")
    graduate(run_of("dr_grpo").path, "trl", tmp_path / "out")
    script = script_of(tmp_path / "out", monkeypatch)
    monkeypatch.setattr(script, "AutoModelForCausalLM", None)
    monkeypatch.setitem(sys.modules, "aligner_lib.rollouts.environments", None)  # as if it were not installed
    with pytest.raises(SystemExit, match=r"no module aligner_lib.*after `pip install -e '\.\[bench\]'`"):
        script.make_trainer()


def test_trl_s_rows_may_contain_separators_of_lines(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="datasets is not installed: ./lab test installs it")
    rows = [{"text": "a\u2028b\x85c"}, {"text": "d\r\n"}]
    graduation = Graduation(None, tmp_path, tmp_path)
    graduation.write_rows({"train": rows}, "texts")
    graduation.copy_scripts({"graduated.py": "graduated.py"})
    assert script_of(tmp_path, monkeypatch, "graduated").rows("train").to_list() == rows


REWARDS = """
import random
def reward(prompt, response, **fields):
    if response == "raise":
        raise ValueError("too short")
    return {"none": None, "draw": random.random()}.get(response, 1.0)
"""


def test_a_response_without_a_reward_ends_neither_trl_nor_verl(tmp_path, monkeypatch, capsys):
    shutil.copy(Path(trl_scripts.__file__).with_name("environment_rewards.py"), tmp_path)
    (tmp_path / "mine.py").write_text(REWARDS)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    args = {"prompts": str(tmp_path / "prompts.jsonl"), "held_out": 0.5}
    settings = {"e": {"use": str(tmp_path / "mine.py"), "args": args}}
    (tmp_path / "environments.json").write_text(json.dumps(settings))
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("environment_rewards", None)
    script, state = importlib.import_module("environment_rewards"), random.getstate()
    responses = ["good", "none", "raise", "draw", "draw"]
    good, *without, drawn, again = script.judge(["e"] * 5, ["train"] * 5, [0] * 5, responses)
    assert (good, without, drawn) == (1.0, [None, None], again)
    assert random.getstate() == state, "the trainer's own draws do not change"
    assert script.compute_score("e", "raise", "", {"split": "train", "seed": 0}) == 0.0
    assert "ValueError: too short" in capsys.readouterr().out


# ---- NeMo-RL, verl --------------------------------------------------------------------------------------------------


def names(value: dict, prefix: str = "") -> set[str]:
    """The dotted keys of nested settings."""
    keys = set()
    for key, inner in value.items():
        is_group = isinstance(inner, dict) and inner
        keys |= names(inner, f"{prefix}{key}.") if is_group else {f"{prefix}{key}"}
    return keys


@pytest.mark.parametrize(
    ("to", "kind"), [("nemo-rl", "sft"), ("nemo-rl", "rm"), ("nemo-rl", "dpo"), ("verl", "sft"), ("nemo-rl", "grpo"), ("verl", "ppo"), ("verl", "dr_grpo")]
)  # fmt: skip
def test_every_key_is_published(to, kind, run_of, tmp_path):
    graduate(run_of(kind).path, to, tmp_path / "out")
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    published = KEYS[to][CONFIGS.get((to, kind), kind)]
    assert published["releases"] if to == "verl" else len(published["commit"]) == 40
    assert names(config) - set(published["names"].split()) - {"defaults", "hydra.searchpath"} == set()
    assert "${oc.env:GRADUATED}/model" in json.dumps(config)


def graduation_of(run, to: str, out: Path, changes: dict[str, object]) -> Graduation:
    """A run on its way to another library, as if some of its settings had other values."""
    graduation = Graduation(Trained.find(run.path), out, out)
    for key, value in changes.items():
        OmegaConf.update(graduation.config, key, value)
    graduation.contents["start/"] = "as if export_models had been called"
    target_of(to).KINDS[graduation.kind](graduation)
    return graduation


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
OVER_VLLM = {"model.generation.backend": "vllm", "model.grpo.sampler_correction": "masked"}
# (target, kind, changed settings, the target's settings that follow by hand)
CARRIED = [
    (
        "verl",
        "ppo",  # 16 responses and 2 passes of global batches of 8: 4 optimizer steps in a step
        {
            "model.ppo.rollout_epochs": 2,
            "trainer.ppo.target_kl": 0.1,
            "model.optim.sched.warmup_steps": 5,
            "critic.model.optim.sched.warmup_steps": 3,
            "critic.model.optim.betas": [0.8, 0.9],
            "critic.model.loss_clip_val": 0.5,
            "trainer.ppo.gradient_clip_val": 0,  # no clipping
            "model.ppo.sampling_params.temperature": 0.7,
        },
        {
            "algorithm.kl_ctrl.horizon": 160,
            f"{ACTOR}.optim.lr_warmup_steps": 2,
            f"{ACTOR}.clip_ratio_c": 1e9,
            "critic.optim.lr_warmup_steps": 1,
            "critic.optim.betas": [0.8, 0.9],
            "critic.cliprange_value": 0.5,
            f"{ACTOR}.grad_clip": 1e9,
            "reward.reward_model.rollout": {"name": "vllm", "tensor_model_parallel_size": 1},
            f"{ROLLOUT}.val_kwargs": {"do_sample": True, "temperature": 0.7, "top_p": 1.0, "top_k": -1},
        },
    ),
    (
        "verl",
        "ppo",
        # programs judge, beside a critic
        {"model.environments.sums": EnvironmentSettings(), "critic.model.loss_clip_val": 0.0},
        {
            "critic.cliprange_value": 1e9,
            "reward.reward_model": None,
            "reward.custom_reward_function.name": "compute_score",
        },
    ),
    (
        "verl",
        "ppo",  # the settings of the other job's critic are not here
        {"remote_critic_rm.critic.ip": "node7"},
        {"critic.ppo_epochs": 1, "critic.optim": None, "critic.cliprange_value": None},
    ),
    (
        "verl",
        "dr_grpo",
        {"model.grpo.sampling_params.use_greedy": True},
        {f"{ROLLOUT}.val_kwargs": {"do_sample": False}, f"{ACTOR}.loss_scale_factor": 12},
    ),
    (
        "verl",
        "dr_grpo",
        # each of the 58 steps has 12 of 699 prompts: 3 rollouts of 4
        {"model.grpo.max_rollouts_per_step": 3, "trainer.grpo.max_steps": -1, "trainer.grpo.max_epochs": 1},
        {"trainer.total_training_steps": 58, "trainer.total_epochs": 1},
    ),
    ("verl", "sft", {"trainer.sft.gradient_clip_val": 0}, {"optim.clip_grad": 1e9}),
    ("nemo-rl", "dpo", {"trainer.dpo.gradient_clip_val": 0}, {"policy.max_grad_norm": None}),
    (
        "nemo-rl",
        "grpo",
        {
            "model.grpo.max_rollouts_per_step": 3,
            "model.global_batch_size": 8,  # 2 optimizer steps in a step
            "model.optim.sched.warmup_steps": 5,
            "trainer.grpo.max_steps": -1,
            "trainer.grpo.max_epochs": 2,
        },
        {
            "grpo.max_num_steps": 116,
            "grpo.max_num_epochs": 2,
            "grpo.use_dynamic_sampling": True,
            "grpo.dynamic_sampling_max_gen_batches": 1000,
            "policy.scheduler[0].kwargs.total_iters": 3,
        },
    ),
    (
        "trl",
        "grpo",
        OVER_VLLM | {"model.grpo.sampling_params.use_greedy": True, "model.grpo.length_params.min_length": 3},
        {
            "trainer.generation_kwargs": {"temperature": 0.0, "min_tokens": 3},
            "trainer.vllm_importance_sampling_correction": True,
            "trainer.vllm_importance_sampling_mode": "token_mask",
            "trainer.vllm_importance_sampling_clip_max": 2.0,
        },
    ),
    (
        "trl",
        "dr_grpo",  # a step of 16 responses has 2 passes of a global batch of 8: 4 optimizer steps
        {
            "model.global_batch_size": 8,
            "model.micro_batch_size": 8,
            "model.grpo.rollout_epochs": 2,
            "trainer.grpo.val_check_interval": 5,
            "trainer.grpo.save_interval": 10,
        },
        {"trainer.eval_steps": 20, "trainer.save_steps": 40},
    ),
    (
        "trl",
        "dr_grpo",
        {"model.grpo.objective": "cispo"},
        {"trainer.loss_type": "cispo", "trainer.epsilon": 1.0, "trainer.epsilon_high": 1.28},
    ),
    (
        "trl",
        "dpo",  # 700 pairs: 3 epochs have 262 batches of 8, and TRL's own epochs would have 88 batches each
        {"trainer.dpo.max_steps": -1, "trainer.dpo.max_epochs": 3},
        {"trainer.max_steps": 262, "trainer.num_train_epochs": None},
    ),
    (
        "trl",
        "dpo",
        {"model.dpo.sft_loss_weight": 0.5},
        {"trainer.loss_type": ["sigmoid", "sft"], "trainer.loss_weights": [1.0, 0.5]},
    ),
    (
        "trl",
        "dpo",  # a batch of 9 with at least 2 rows in a micro batch
        {"model.dpo.preference_loss": "kto", "model.global_batch_size": 9, "model.micro_batch_size": 1},
        {"trainer.per_device_train_batch_size": 3, "trainer.gradient_accumulation_steps": 3},
    ),
]


@pytest.mark.parametrize(("to", "kind", "changes", "expected"), CARRIED)
def test_a_setting_has_the_same_meaning_in_the_other_library(to, kind, changes, expected, run_of, tmp_path):
    config = OmegaConf.create(graduation_of(run_of(kind), to, tmp_path, changes).target_config)
    assert {key: OmegaConf.select(config, key) for key in expected} == expected
    assert OmegaConf.select(config, "actor_rollout_ref.actor.optim.total_training_steps") is None


def test_a_critic_of_another_job_is_the_reward_model(run_of, tmp_path):
    run = RunFolder(shutil.copytree(run_of("ppo").path, tmp_path / "run"))
    critic = run.latest_checkpoint() / "critic"
    shutil.rmtree(critic)
    critic.mkdir()
    (critic / "remote.json").write_text('{"updates": 4}')
    graduation = graduation_of(run, "verl", tmp_path, {"remote_critic_rm.critic.ip": "node7"})
    assert graduation.contents["critic/"].startswith("the reward model, as at the run's start")


def torch_s_rates(scheduler: list[dict], lr: float, count: int) -> list[float]:
    """The learning rates of NeMo-RL's first steps with these torch schedulers."""
    from torch import zeros
    from torch.optim import SGD, lr_scheduler

    optimizer = SGD([zeros(1, requires_grad=True)], lr)
    *parts, milestones = scheduler
    classes = [
        getattr(lr_scheduler, part["name"].removeprefix("torch.optim.lr_scheduler.")) for part in parts
    ]
    schedulers = [class_(optimizer, **part["kwargs"]) for class_, part in zip(classes, parts)]
    sequence, rates = lr_scheduler.SequentialLR(optimizer, schedulers, **milestones), []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        sequence.step()
    return rates


@pytest.mark.parametrize(
    "changes",
    [
        {"warmup_steps": 0},
        {"constant_steps": 3, "max_steps": 12},
        {"name": "constant", "warmup_steps": 0},
        {"min_lr": 2.0},
    ],
)
def test_nemo_rl_s_learning_rate_is_the_run_s_and_does_not_rise_after_the_decay(changes):
    sched = Sched(**{"warmup_steps": 4, "min_lr": 0.1, **changes})
    optim, written = OmegaConf.structured(Optim(lr=1.0, sched=sched)), {}
    run = SimpleNamespace(put=lambda key, value, *_: written.update({key: value}))
    nemo_rl._schedule(run, optim, 20, 1)
    settings = {"peak": 1.0} | vars(sched) | {"max_steps": sched.max_steps or 20}
    expected = [learning_rate(step, **settings) for step in range(1, 41)]
    assert torch_s_rates(written["policy.scheduler"], 1.0, 40) == pytest.approx(expected)
    # with two optimizer steps in a step, NeMo-RL's rate is the run's in every second optimizer step
    nemo_rl._schedule(run, optim, 10, 2)
    halved = {key: -(-settings[f"{key}_steps"] // 2) for key in ("warmup", "constant", "max")}
    halved = settings | {f"{key}_steps": steps for key, steps in halved.items()}
    expected = [learning_rate(step, **halved) for step in range(1, 21)]
    assert torch_s_rates(written["policy.scheduler"], 1.0, 20) == pytest.approx(expected)


def test_the_reward_model_s_template_in_verl_joins_texts_and_ends_with_the_stop_token(run_of, tmp_path):
    transformers = pytest.importorskip("transformers")
    graduate(run_of("grpo").path, "verl", tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "reward_model")
    turns = [{"role": "user", "content": "User: a "}, {"role": "assistant", "content": "b"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == f"User: a b{tokenizer.eos_token}"


def test_verl_s_turns_join_to_the_run_s_samples(run_of, tmp_path):
    graduate(run_of("sft").path, "verl", tmp_path / "out")
    first = pyarrow.parquet.read_table(tmp_path / "out" / "data" / "train.parquet").to_pylist()[0]["messages"]
    assert [turn["role"] for turn in first] == ["user", "assistant"]
    tokenizer = Tokenizer(run_of("sft").latest_checkpoint())
    ids = tokenizer.encode_parts([turn["content"] for turn in first])
    assert ids[1][-1] == tokenizer.eos_id


@pytest.mark.parametrize(("steps", "is_told"), [(7, False), (8, True)])  # 7 batches of 100 are the 700 pairs
def test_differences_of_later_epochs_in_trl_are_told(steps, is_told, run_of, tmp_path):
    changes = {"trainer.dpo.max_steps": steps, "model.global_batch_size": 100}
    differences = graduation_of(run_of("dpo"), "trl", tmp_path, changes).differences
    assert any("new order in each epoch" in sentence for sentence in differences) == is_told


def test_an_unknown_setting_is_an_error(run_of, tmp_path):
    graduation = Graduation(Trained.find(run_of("dpo").path), tmp_path, tmp_path)
    with pytest.raises(KeyError, match="has no setting"):
        graduation.copy("dpo.clip", "model.dpo.loss_clip_val")


# ---- what is told, what is refused ----------------------------------------------------------------------------------


def test_readme_names_every_setting_that_differs_from_its_default(run_of, tmp_path):
    from aligner_lib.config.compose import settings_of
    from aligner_lib.run_folder.reader import flatten

    run = run_of("dpo")
    graduate(run.path, "trl", tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    paths = ("exp_manager.", "model.data.", "pretrained_checkpoint.")
    differing = {key for key in flatten(settings_of("dpo", run.info["config"])) if not key.startswith(paths)}
    assert "model.optim.lr" in differing
    assert {key for key in differing if f"`{key}`" not in text} == set()
    assert str(tmp_path) not in text and str(run.path.parent) not in text
    assert "`trainer.dpo.limit_val_batches`: `2`" in text.partition("## Not carried over")[2]


@pytest.mark.parametrize("function", [None, "functions/hinge.py:loss"])
def test_a_run_with_an_own_function_is_not_called_the_same_as_in_trl(function, run_of, tmp_path):
    run = run_of("dpo")
    graduation = graduation_of(run, "trl", tmp_path, {"functions": {"loss": function, "learning_rate": None}})
    graduation.note_own_functions("TRL")
    expected = ["functions.loss: the run trained with your own hinge.py; TRL computes"] if function else []
    notes = [note for note in graduation.notes if note.startswith("functions.")]
    assert [note.partition(" what ")[0] for note in notes] == expected
    assert ("the run's own first step" in graduation.checked) == (function is None)


@pytest.mark.parametrize(
    ("kind", "to", "words"),
    [
        ("ppo", "trl", "has no trainer for: TRL has sft, rm, dpo, grpo; choose --to verl"),
        ("dpo", "verl", "has no trainer for: verl has sft, ppo, grpo; choose --to trl or nemo-rl"),
        ("dr_grpo", "nemo-rl", "judge by programs"),
        ("sft", "axolotl", "the targets are trl, nemo-rl, verl"),
        ("a model", "trl", "aligner model export"),
    ],
)
def test_a_refusal_names_what_lacks_and_the_cure(kind, to, words, run_of, smoke, tmp_path):
    run = smoke if kind == "a model" else run_of(kind).path
    for source in (run, RunFolder(run).latest_checkpoint() or run):
        with pytest.raises(UserError) as refusal:
            graduate(source, to, tmp_path / "out")
        assert words in " ".join(str(refusal.value).split())
    assert not (tmp_path / "out").exists()


def test_a_run_of_one_s_own_kind_is_refused_for_its_kind_also_without_a_model(tmp_path):
    (tmp_path / "checkpoints" / "step_000001").mkdir(parents=True)
    (tmp_path / "run.json").write_text('{"kind": "toy"}')
    with pytest.raises(UserError, match="no target has a trainer for toy: if its checkpoints are models"):
        graduate(tmp_path, "trl", tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model.grpo.baseline": "leave_one_out", "model.grpo.scale": "group_std"},
            "baseline=leave_one_out with scale=group_std",
        ),
        (
            {"model.grpo.ratio": "sequence", "model.grpo.normalizer": "tokens"},
            "ratio=sequence with normalizer=tokens",
        ),
        (
            {"model.environments.e.use": "judge", "model.environments.e.args.compare": True},
            r"environments\.e\.args\.compare=true compares",
        ),
        (
            {"model.environments.e.rewards": {"exact": 1.0}},
            r"environments\.e\.rewards adds several weighted rewards",
        ),
    ],
)
def test_what_verl_would_compute_otherwise_is_refused(changes, words, run_of, tmp_path):
    with pytest.raises(UserError, match=words):
        graduation_of(run_of("dr_grpo"), "verl", tmp_path, changes)


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("check", [trl._loss_of, nemo_rl._check_objective, verl._check_objective])
def test_a_new_value_of_a_switch_is_refused_until_a_target_names_it(check, switch, monkeypatch):
    monkeypatch.setitem(SWITCHES, switch, (*SWITCHES[switch], "new"))
    settings = ["model.grpo.objective=own", "trainer.grpo.initial_policy_kl_penalty=0.1"]
    run = SimpleNamespace(config=OmegaConf.from_dotlist(settings))
    with pytest.raises(UserError, match=f"objective=own has {switch}=new, which"):
        check(run, Objective(**{switch: "new"}))


def test_nemo_rl_has_no_ratio_of_sequences_with_a_loss_of_tokens(run_of, tmp_path):
    changes = {"model.grpo.ratio": "sequence", "model.grpo.normalizer": "tokens"}
    with pytest.raises(UserError, match="ratio=sequence with normalizer=tokens"):
        graduation_of(run_of("grpo"), "nemo-rl", tmp_path, changes)


def test_kto_of_single_responses_is_refused_for_trl(run_of, tmp_path):
    changes = {"model.dpo.preference_loss": "kto", "model.global_batch_size": 1}
    with pytest.raises(UserError, match="a batch needs 2 or more"):
        graduation_of(run_of("dpo"), "trl", tmp_path, changes)


def test_dpo_without_its_reference_is_refused(run_of, tmp_path, monkeypatch):
    monkeypatch.setattr(Trained, "origin", lambda trained: "gone")
    with pytest.raises(UserError, match="TRL needs the model as the reference: put the model back"):
        graduate(run_of("dpo").path, "trl", tmp_path / "out")
    graduate(run_of("sft").path, "trl", tmp_path / "out")
    assert "can be continued and not repeated" in (tmp_path / "out" / "README.md").read_text()


def test_a_reward_model_without_a_use_is_refused(run_of, tmp_path):
    with pytest.raises(UserError, match="has no reward model: leave the option out"):
        graduate(run_of("sft").path, "trl", tmp_path / "out", reward_model=str(run_of("rm").path))
    assert not (tmp_path / "out").exists()


def test_a_reward_model_beside_programs_is_refused(run_of, tmp_path):
    run = run_of("dr_grpo")
    args = run.info["config"]["model"]["environments"]["e"]["args"]
    judged = EnvironmentSettings("reward_model", args=args)
    with pytest.raises(UserError, match="asks no program beside a reward model"):
        graduation_of(run, "verl", tmp_path, {"model.environments.judged": judged})


def test_the_files_in_an_environments_arguments_are_copied_and_other_texts_stay(tmp_path):
    args = {"prompts": str(Path(__file__)), "rubric": ["a" * 5000, "~50 words at most"]}
    copied = Graduation(None, tmp_path, tmp_path)._with_copied_files(args)
    assert copied == args | {"prompts": "environments/1_test_graduate.py"}


def test_texts_that_are_read_differently_are_counted(smoke):
    tokenizer = Tokenizer(smoke)
    ids = tokenizer.encode("abc") + [tokenizer.eos_id]
    texts = Texts(tokenizer, in_turns=True)
    assert texts.turns(SFTSample(ids, answer_start=len(ids) - 1)) == [
        {"role": "user", "content": "abc"},
        {"role": "assistant", "content": tokenizer.decode(ids[-1:], True)},
    ]
    assert (texts.total, texts.different, texts.note("verl")) == (1, 0, [])
    apart = [tokenizer.encode(letter)[0] for letter in "abc"]
    texts.prompt(apart)
    assert texts.different == int(apart != tokenizer.encode("abc"))
