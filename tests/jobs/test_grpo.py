"""GRPO on the smoke model: groups of responses, judged by a program, and what fails on the way."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import forks
import pytest
import torch
from smoke_jobs import REWARD_E, prepare_smoke_job, run_smoke_job

from aligner_lib.algorithms.objective import PRESETS
from aligner_lib.config.compose import compose, notices
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.models.tensor_store import StoreReader
from aligner_lib.rollouts.environments.base import Step
from aligner_lib.rollouts.tasks import Task
from aligner_lib.tutorial.displays.objectives import compare_objectives

ONE_STEP = {"trainer__grpo__max_steps": 1}


@pytest.fixture
def environment(tmp_path):
    """environment(source): the setting that takes a file of this source as the environment e."""

    def setting(source: str) -> dict[str, str]:
        file = tmp_path / "environment.py"
        file.write_text(source)
        return {"model__environments__e__use": f"'{file}'"}

    return setting


def of_training(run) -> list[dict]:
    return [record for record in run.rollouts() if record["split"] == "train"]


LONGER = {
    "trainer__grpo__max_steps": 16,
    "trainer__grpo__val_check_interval": 16,
    "trainer__grpo__save_interval": 16,
    "model__grpo__num_prompts_per_step": 8,
    "model__grpo__num_generations_per_prompt": 8,
    "model__global_batch_size": 64,
    "model__micro_batch_size": 32,
    "model__grpo__rollout_micro_batch_size": 64,
    "model__grpo__num_val_samples": 64,
    "model__grpo__rollout_epochs": 1,
    "model__grpo__kl": "none",
    "trainer__grpo__max_policy_kl": "null",
}


def test_the_reward_rises_and_a_student_nears_its_teacher(jobs):
    """The teacher is the first run: the student's tokens become likelier under it, and its reward rises, too."""
    teacher = jobs.run("grpo", "grpo_learnt", **LONGER)
    _, rewards = teacher.series("val_rollouts/rewards")
    assert rewards[-1] > 1.2 * rewards[0]
    student = jobs.run(
        "grpo",
        "grpo_distill",
        **LONGER,
        model__grpo__objective="distill",
        model__grpo__teacher__restore_from_path=f"'{teacher.path}'",
    )
    _, advantages = student.series("train_rollouts/advantages_mean")  # less the reverse KL, a token
    assert advantages[0] < -0.02 and sum(advantages[-3:]) / 3 > 0.6 * advantages[0]
    _, rewards = student.series("val_rollouts/rewards")
    assert rewards[-1] > 1.1 * rewards[0]


def test_the_first_step_begins_at_the_reference_and_the_sampler_drew_with_training_s_probabilities(grpo):
    first = grpo.metrics()[1]
    assert first["train_rollouts/kl"] == 0
    assert first["train_optim/kl_loss"] < 0.1  # after the first of two updates
    assert first["train_optim/first_ppo_ratio"] == pytest.approx(1.0, abs=1e-5)
    for record in grpo.metrics()[1:]:
        assert record["train_rollouts/sampler_mismatch_max"] < 1e-4
        assert record["train_rollouts/sampler_effective_sample_size"] == pytest.approx(1, abs=1e-6)


def test_generation_s_own_log_probabilities_give_the_same_run(jobs, grpo):
    """One pass less: the objective needs no recomputed log-probabilities before it trains. With environments, a missing
    data file does not matter."""
    more = {"model__grpo__recompute_logprobs": "null", "model__data__data_prefix__train": "[missing.jsonl]"}
    run = jobs.run("grpo", "grpo_own", **ONE_STEP, **more)
    names = ("train_rollouts/rewards", "train_rollouts/kl", "train_optim/loss", "train_optim/grad_norm")
    for ours, theirs in zip(run.metrics()[1:], grpo.metrics()[1:]):
        for name in names:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
        assert ours["train_rollouts/sampler_mismatch"] < 1e-4
        assert ours["train_rollouts/sampler_effective_sample_size"] == pytest.approx(1, abs=1e-6)
        assert "train_rollouts/sampler_mismatch_max" not in ours


def test_a_response_s_advantage_is_its_reward_less_its_group_s_mean(grpo):
    """Of the whole first step: dr_grpo divides by nothing."""
    first = [record for record in of_training(grpo) if record["step"] == 1]
    assert sorted(record["group"] for record in first) == [n // 4 for n in range(16)]
    for group in range(4):
        members = [record for record in first if record["group"] == group]
        assert len({record["prompt"] for record in members}) == 1
        mean = sum(record["reward"] for record in members) / 4
        for record in members:
            expected = [record["reward"] - mean] * len(record["tokens"])
            assert record["token_advantage"] == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("objective", ["gspo", "reinforce_pp", "rloo"])
def test_objectives_of_whole_responses_and_of_whole_batches_have_a_gradient(jobs, here, objective):
    """unit/test_policy_gradient.py compares each objective with its paper's formula."""
    few = ONE_STEP | {"model__grpo__num_val_samples": 1, "model__grpo__rollout_epochs": 1}
    settings = jobs.settings("grpo", f"grpo_{objective}", **few, model__grpo__objective=objective)
    run_smoke_job("grpo", settings)
    record = jobs.run_folder(f"grpo_{objective}").metrics()[1]
    assert record["train_optim/grad_norm"] > 0
    assert ("train_optim/clip_fraction" in record) == (objective != "rloo")  # which has no ratio to clip


def test_groups_that_are_alike_cost_no_update_and_are_counted(jobs, environment):
    constant = environment("def reward(prompt, response):\n    return 0.5\n")
    run = jobs.run("grpo", "grpo_alike", trainer__grpo__max_steps=3, model__grpo__kl="none", **constant)
    for record in run.metrics()[1:]:
        assert record["train_rollouts/groups_alike"] == 1
        assert not any(name.startswith("train_optim/") for name in record)
        assert "train_rollouts/kl_coef" not in record  # kl=none
    assert "groups_alike" in {alarm["name"] for alarm in run.alarms()}
    checkpoint = run.latest_checkpoint()
    assert json.loads((checkpoint / "optimizer" / "steps.json").read_text()) == 0
    trained, start = (StoreReader(folder / "weights") for folder in (checkpoint, jobs.model))
    assert all(torch.equal(trained.read_whole(name), start.read_whole(name)) for name in start.names())


FAILING = """
def reward(prompt, response):
    if "q" in response:
        raise RuntimeError("I don't like the letter q")
    return float("nan") if "k" in response else response.count("e") / max(len(response), 1)
"""


def test_a_reward_that_fails_costs_its_samples_and_is_told(jobs, environment):
    run = jobs.run("grpo", "grpo_failing", **ONE_STEP, **environment(FAILING))
    failed = [record for record in of_training(run) if record["reward"] is None]
    assert 0 < len(failed) < len(of_training(run))
    for record in failed:
        assert record["failure"] in ("raised", "not_finite")
        assert set(record["token_advantage"]) == {0.0}
    for metrics in run.metrics()[1:]:
        of_step = [record for record in failed if record["step"] == metrics["step"]]
        assert metrics["train_environments/e/failed"] == len(of_step)
        assert math.isfinite(metrics["train_rollouts/rewards"])
    log = (run.path / "environment_failures.txt").read_text()
    # the environment's first failure of each reason
    assert log.count("failed (") == len(
        {record["failure"] for record in run.rollouts() if "failure" in record}
    )
    assert "letter q" in log or "finite" in log


def rounded_sampler(kind: str, settings: list[str]) -> None:
    """A job whose sampler rounds its logits to halves, as one with low precision might."""
    from aligner_lib.megatron import generate

    exact = generate.draw
    generate.draw = lambda logits, *more: exact((logits * 2).round() / 2, *more)
    run_smoke_job(kind, settings)


def test_a_sampler_that_is_not_the_policy_is_noticed(jobs):
    """Of its correction see rollouts/test_generators.py."""
    name = "grpo_rounded"
    settings = jobs.settings("grpo", name, trainer__grpo__max_steps=1)
    forks.run(rounded_sampler, "grpo", settings, log=jobs.log(name))
    first = jobs.run_folder(name).metrics()[1]
    assert first["train_rollouts/sampler_mismatch"] > 0.01
    assert first["train_rollouts/sampler_effective_sample_size"] < 0.999
    assert first["train_rollouts/sampler_weight"] == 1


def test_several_rewards_are_weighted_recorded_and_normalised_each(gdpo):
    """The objective on the recorded rollout agrees with the run's own advantages."""
    records = [record for record in of_training(gdpo) if record["environment"] == "e"]
    assert records
    for record in records:
        metrics = record["metrics"]
        assert record["reward"] == pytest.approx(metrics["vowels"] + 0.5 * metrics["short"])
    for step, metrics in enumerate(gdpo.metrics()[1:], 1):
        of_step = [record for record in records if record["step"] == step]
        groups = {record["group"] for record in of_step}
        for name in ("vowels", "short"):
            values = [record["metrics"][name] for record in of_step]
            mean = sum(values) / len(values)
            assert metrics[f"train_environments/e/rewards/{name}"] == pytest.approx(mean)
            alike = [
                len({r["metrics"][name] for r in of_step if r["group"] == group}) == 1 for group in groups
            ]
            assert metrics[f"train_environments/e/groups_alike/{name}"] == sum(alike) / len(groups)
        assert "train_environments/e/length" in metrics and "train_environments/e/vowels" not in metrics
    compared = compare_objectives(gdpo, ["gdpo"], step=1)
    tokens = sum(len(response["tokens"]) for response in compared.responses)
    for response, weights in zip(compared.responses, compared.weights["gdpo"], strict=True):
        share = tokens / (len(weights) * 16)
        expected = [share * advantage for advantage in response["token_advantage"]]
        assert weights == pytest.approx(expected, abs=2e-3)


TWO_TURNS = """
from aligner_lib.rollouts.environments.base import Environment, Step

class Echo(Environment):
    size, max_turns = 8, 2

    def reset(self, seed):
        self.turns = 0
        return [{"role": "user", "content": f"Say something about {seed}."}]

    def step(self, response):
        self.turns += 1
        reward = response.count("e") / max(len(response), 1)
        return Step(reward, done=self.turns == 2, observation="And then?", metrics={"second": float(self.turns == 2)})
"""


def test_what_an_environment_says_between_turns_is_read_and_not_learnt(jobs, environment):
    (file,) = environment(TWO_TURNS).values()
    run = jobs.run(
        "grpo",
        "grpo_turns",
        **ONE_STEP,
        model__environments=f"{{e: {{use: {file}}}}}",
        model__grpo__sampling_params__end_strings="[h, l]",  # most responses end, and get a second turn
    )
    records = of_training(run)
    second = [record for record in records if record["turns"] == 2]
    assert second and any(record["turns"] == 1 for record in records)
    for record in second:
        before, after, _ = record["response"].partition("And then?")
        assert after, record["response"]
        own = "".join(record["tokens"])  # the policy's alone
        assert "And then?" not in own and own.startswith(before[:1])
        assert len(record["tokens"]) == record["length"] == len(record["token_advantage"])
        assert 0 < record["last_turn_length"] < record["length"]
    for metrics in run.metrics()[1:]:
        turns = [record["turns"] for record in records if record["step"] == metrics["step"]]
        assert metrics["train_environments/e/turns"] == pytest.approx(sum(turns) / len(turns))
        assert metrics["train_optim/first_ppo_ratio"] == pytest.approx(1.0, abs=1e-5)  # masks fit both passes
        assert metrics["train_rollouts/sampler_mismatch_max"] < 1e-4


def test_an_environment_of_verifiers_with_turns_trains(jobs, monkeypatch):
    """Responses end at a frequent letter, so that the game of verifiers reaches its later turns. Each process of an environment
    imports verifiers for five seconds."""
    pytest.importorskip("verifiers.v1", reason="verifiers is not installed (docs/environments.md)")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "unit" / "verifiers_tasks"))
    run = jobs.run(
        "grpo",
        "grpo_verifiers",
        trainer__grpo__max_steps=1,
        model__environments="{game: {use: verifiers, processes: 1, args: {taskset: word-game, turns: 3}}}",
        model__encoder_seq_length=512,
        model__grpo__length_params__max_length=16,
        model__grpo__sampling_params__end_strings="[e, a, i]",
    )
    metrics = run.metrics()[-1]
    assert metrics["train_rollouts/rewards_failed"] == 0
    assert 1 < metrics["train_environments/game/turns"] <= 3
    (record, *_) = (record for record in of_training(run) if record["turns"] == 3)
    assert record["response"].count("It begins with") == 2 and record["metrics"]["found"] >= 0


@pytest.mark.parametrize("stopped", [True, False])
def test_a_turn_is_closed_once_whether_the_stop_token_or_an_end_string_ended_it(smoke, here, stopped):
    """The smoke model's template ends turns with the stop token."""
    from aligner_lib.megatron.generate import Response
    from aligner_lib.rollouts.collect import RolloutCollector, _Episode

    tokenizer = Tokenizer(smoke)
    messages = [{"role": "user", "content": "Hi."}]
    episode = _Episode(0, 0, Task([5, 6], "", "e", 0, messages, by_model=False))
    tokens = [7, 8, *([tokenizer.eos_id] if stopped else [])]
    episode.transcript.add(Response(tokens, [0.0] * len(tokens), finished=True))
    episode.texts.append("x")
    policy = SimpleNamespace(tokenizer=tokenizer, sampling=SimpleNamespace(max_length=4))
    environments = SimpleNamespace(max_turns=lambda: {"e": 2})
    step = Step(0.0, done=False, observation="And?")
    assert RolloutCollector(policy, None, 1, 256)._continues(episode, step, environments)
    first_turn = episode.transcript.tokens[2:]
    assert first_turn[:3] == [7, 8, tokenizer.eos_id]
    assert first_turn[3] != tokenizer.eos_id


def test_an_environment_that_gives_no_prompt_at_all_ends_the_run_with_its_words(jobs, here, environment):
    mute = TWO_TURNS.replace("self.turns = 0", "raise RuntimeError('no prompts today')")
    (file,) = environment(mute).values()
    with pytest.raises(UserError, match="no prompts today"):
        settings = jobs.settings("grpo", "grpo_mute", model__environments=f"{{e: {{use: {file}}}}}")
        run_smoke_job("grpo", settings)
    run = jobs.run_folder("grpo_mute")
    assert run.status == "failed" and "no prompts today" in run.info["message"]


# ---- settings -------------------------------------------------------------------------------------------------------

DISTILL = {"model__grpo__objective": "distill", "model__grpo__teacher__restore_from_path": "t"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"model__micro_batch_size": 2, "model__global_batch_size": 6},
            r"groups of model\.grpo\.num_generations.*: set 4 or 8 or 16",
        ),
        (
            {"model__grpo__objective": "rloo", "model__grpo__aggregation": "normalize_then_sum"},
            r"normalize_then_sum with baseline=leave_one_out, scale=none, kl=\w+: .* set model\.grpo\.baseline=group_mean",
        ),
        ({"model__environments__e__rewards": "{a: 0.0}"}, "finite weights, not all 0"),
        ({"model__environments__e__rewards": "{reward: 1}"}, "`reward` is the name of their weighted sum"),
        (
            {"model__grpo__baseline": "teacher"},
            r"baseline=teacher, .* set model\.grpo\.teacher\.restore_from_path",
        ),
        (
            DISTILL | {"model__grpo__kl": "reward"},
            r"kl=reward with baseline=teacher: .* set model\.grpo\.kl=k1, k2, k3 or none",
        ),
        (
            {"model__grpo__baseline": "batch_mean", "model__grpo__scale": "group_std"},
            r"scale=group_std with baseline=batch_mean: .* set model\.grpo\.scale=batch_std or none",
        ),
        (
            {"trainer__grpo__initial_policy_kl_penalty": 0},
            r"initial_policy_kl_penalty=0 with trainer\.grpo\.target_kl=0\.01: .* or target_kl=null",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(jobs, changed, words):
    with pytest.raises(ConfigError, match=words):
        compose("grpo", jobs.settings("grpo", "x", **changed), "smoke")


def test_switches_that_an_objective_does_not_have_are_told(jobs):
    settings = jobs.settings("grpo", "x", model__grpo__objective="rloo", model__grpo__clip_low=0.1)
    lines = notices("grpo", compose("grpo", settings, "smoke"), "smoke")
    assert any("clip_low=0.1: this objective has no ratio to clip" in line for line in lines)


@pytest.mark.parametrize("draws", [1, 3])
def test_an_epoch_counts_the_prompts_that_dynamic_sampling_reserves(jobs, draws):
    """A step reserves four prompts for each of its rollouts."""
    changed = {"trainer__grpo__max_steps": -1, "trainer__grpo__max_epochs": 3}
    settings = jobs.settings("grpo", "x", **changed, model__grpo__max_rollouts_per_step=draws)
    prompts = len((jobs.formatted / "train_prompts.jsonl").read_text().splitlines())
    assert prepare_smoke_job("grpo", settings).max_steps == 3 * prompts // (4 * draws)


def test_a_reward_file_is_checked_before_any_model_is_built(jobs, environment):
    two = environment("def a(prompt, response): ...\ndef b(prompt, response): ...\n")
    with pytest.raises(UserError, match=r"model\.environments\.e: "):
        prepare_smoke_job("grpo", jobs.settings("grpo", "x", **two))


# ---- PPO with a program for a judge ---------------------------------------------------------------------------------


def test_ppo_takes_environments_and_a_critic_that_begins_as_any_model(jobs):
    run = jobs.run(
        "ppo",
        "ppo_e",
        trainer__ppo__max_steps=1,
        trainer__ppo__critic_warmup_steps=0,
        critic__pretrained_checkpoint__restore_from_path=f"'{jobs.model}'",
        model__environments__e__use=f"'{REWARD_E}'",
        model__environments__e__args__prompts=f"'{jobs.formatted / 'train_prompts.jsonl'}'",
    )
    first = run.metrics()[1]
    assert first["train_environments/e/samples"] == 16
    assert first["train_rollouts/values_mean"] == first["train_rollouts/values_std"] == 0  # a new head
    assert 0 < first["train_rollouts/rewards"] < 1


def test_one_rollout_shows_what_each_objective_makes_of_it(jobs, grpo):
    """Of the first step, whose KL is 0: what the run's own objective gives each token is the advantage that it logged."""
    settings = grpo.info["config"]["model"]["grpo"]
    own, longest = settings["objective"], settings["length_params"]["max_length"]
    compared = compare_objectives(grpo, [own, "dapo", PRESETS["rloo"]], step=1)
    assert compared.objectives[:2] == (own, "dapo") and "baseline=leave_one_out" in compared.objectives[2]
    tokens = sum(len(response["tokens"]) for response in compared.responses)
    assert PRESETS[own].normalizer == "constant"  # each token's share of 16 responses of the greatest length
    for response, weights in zip(compared.responses, compared.weights[own]):
        expected = [tokens * a / (16 * longest) for a in response["token_advantage"]]
        assert weights == pytest.approx(expected, abs=2e-4)
    with pytest.raises(UserError, match="baseline=critic: the run had the baseline "):
        compare_objectives(grpo, ["ppo"])
    assert "<script" not in compared._repr_html_() and "dapo" in repr(compared)
