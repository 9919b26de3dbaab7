"""GRPO on the smoke model: groups of responses, judged by a program, and what fails on the way."""

import json
import math

import pytest
import torch
from smoke_jobs import REWARD_E

from aligner_lib.algorithms.objective import PRESETS
from aligner_lib.config.compose import compose, notices
from aligner_lib.config.kinds import kinds
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.tutorial.displays.objectives import compare_objectives

OBJECTIVES = [name for name in PRESETS if name not in ("ppo", "grpo", "distill")]


def test_it_logs_the_metrics_that_its_kind_declares(grpo):
    logged = {name for record in grpo.metrics() for name in record} - {"step", "time"}
    named = {name for name in logged if not kinds()["grpo"].is_of_users_names(name)}
    assert grpo.status == "finished" and named == kinds()["grpo"].metric_names()
    assert logged - named == {
        f"{split}_environments/e/{metric}"
        for split in ("train", "val")
        for metric in ("reward", "samples", "failed", "turns", "letters")
    }


@pytest.fixture(scope="module")
def learnt(jobs):
    """A run that is long enough to learn."""
    return jobs.run("grpo", "grpo_learnt", **LONGER, model__grpo__kl="none")


LONGER = {
    "trainer__grpo__max_steps": 24,
    "trainer__grpo__val_check_interval": 24,
    "trainer__grpo__save_interval": 24,
    "model__grpo__num_prompts_per_step": 8,
    "model__grpo__num_generations_per_prompt": 8,
    "model__global_batch_size": 64,
    "model__micro_batch_size": 32,
    "model__grpo__rollout_micro_batch_size": 64,
    "model__grpo__num_val_samples": 64,
    "model__grpo__rollout_epochs": 1,
    "trainer__grpo__max_policy_kl": "null",
}


def test_the_reward_rises(learnt):
    _, rewards = learnt.series("val_rollouts/rewards")
    assert rewards[-1] > 1.2 * rewards[0]


def test_before_the_first_update_the_ratio_is_1_and_the_kl_is_0(grpo):
    first = grpo.metrics()[1]
    assert (
        first["train_rollouts/kl"] == 0 and first["train_optim/kl_loss"] < 0.1
    )  # after the first of two updates
    assert first["train_optim/first_ppo_ratio"] == pytest.approx(1.0, abs=1e-5)


def test_the_sampler_drew_with_the_probabilities_that_training_computes(grpo):
    for record in grpo.metrics()[1:]:
        assert record["train_rollouts/sampler_mismatch_max"] < 1e-4
        assert record["train_rollouts/sampler_effective_sample_size"] == pytest.approx(1, abs=1e-6)


def test_generation_s_own_log_probabilities_will_do(jobs, grpo):
    """One pass less, and the same run: the objective needs none of them before it trains."""
    run = jobs.run("grpo", "grpo_own", trainer__grpo__max_steps=3, model__grpo__recompute_logprobs="null")
    for ours, theirs in zip(run.metrics()[1:], grpo.metrics()[1:]):
        for name in (
            "train_rollouts/rewards",
            "train_rollouts/kl",
            "train_optim/loss",
            "train_optim/grad_norm",
        ):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
        assert ours["train_rollouts/sampler_mismatch"] < 1e-4
        assert ours["train_rollouts/sampler_effective_sample_size"] == pytest.approx(1, abs=1e-6)
        assert "train_rollouts/sampler_mismatch_max" not in ours


def test_records_have_groups_whose_advantages_are_their_rewards_less_the_group_s(grpo):
    """Of the whole first step: dr_grpo divides by nothing."""
    first = [one for one in grpo.rollouts() if one["step"] == 1 and one["split"] == "train"]
    assert sorted(one["group"] for one in first) == [n // 4 for n in range(16)]
    for group in range(4):
        members = [one for one in first if one["group"] == group]
        assert len({one["prompt"] for one in members}) == 1
        mean = sum(one["reward"] for one in members) / 4
        for one in members:
            expected = [one["reward"] - mean] * len(one["tokens"])
            assert one["token_advantage"] == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_moves_the_policy(jobs, objective):
    run = jobs.run("grpo", f"grpo_{objective}", trainer__grpo__max_steps=2, model__grpo__objective=objective)
    assert run.status == "finished"
    assert run.metrics()[-1]["train_rollouts/kl"] != 0


def test_a_student_nears_its_teacher(jobs, learnt):
    """The teacher is what the run above came to: the student's tokens become likelier under it."""
    run = jobs.run(
        "grpo",
        "grpo_distill",
        **LONGER,
        model__grpo__objective="distill",
        model__grpo__teacher__restore_from_path=f"'{learnt.path}'",
        model__grpo__kl="none",
    )
    _, advantages = run.series("train_rollouts/advantages_mean")  # less the reverse KL, a token
    assert advantages[0] < -0.02 and sum(advantages[-3:]) / 3 > 0.6 * advantages[0]
    _, rewards = run.series("val_rollouts/rewards")
    assert rewards[-1] > 1.1 * rewards[0]  # the teacher's reward comes along


def test_groups_that_are_alike_cost_no_update_and_are_counted(jobs, tmp_path):
    (tmp_path / "constant.py").write_text("def reward(prompt, response):\n    return 0.5\n")
    run = jobs.run(
        "grpo",
        "grpo_alike",
        trainer__grpo__max_steps=3,
        model__grpo__kl="none",
        model__environments__e__use=f"'{tmp_path / 'constant.py'}'",
    )
    for record in run.metrics()[1:]:
        assert record["train_rollouts/groups_alike"] == 1
        assert not any(name.startswith("train_optim/") for name in record)
    alarms = [json.loads(line) for line in (run.path / "alarms.jsonl").read_text().splitlines()]
    assert "groups_alike" in {alarm["name"] for alarm in alarms}


FAILING = """
import os, time

def reward(prompt, response):
    if "q" in response:
        raise RuntimeError("I don't like the letter q")
    return float("nan") if "k" in response else response.count("e") / max(len(response), 1)
"""


def test_a_reward_that_fails_costs_its_samples_and_is_told(jobs, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    run = jobs.run(
        "grpo",
        "grpo_failing",
        trainer__grpo__max_steps=2,
        model__environments__e__use=f"'{tmp_path / 'failing.py'}'",
    )
    assert run.status == "finished"
    records = [one for one in run.rollouts() if one["split"] == "train"]
    failed = [one for one in records if one["reward"] is None]
    assert failed and len(failed) < len(records)
    assert {one["failure"] for one in failed} <= {"raised", "not_finite"}
    for one in failed:
        assert set(one["token_advantage"]) == {0.0}
    for record in run.metrics()[1:]:
        of_step = [one for one in failed if one["step"] == record["step"]]
        assert record["train_environments/e/failed"] == len(of_step)
        assert math.isfinite(record["train_rollouts/rewards"])
    told = (run.path / "environment_failures.txt").read_text()
    assert told.count("failed (") == 1  # the first one, of one environment
    assert "letter q" in told or "finite" in told


def test_dynamic_sampling_draws_until_enough_groups_differ(jobs, tmp_path):
    """Half of the prompts have equal rewards: what is trained on differs all the same."""
    (tmp_path / "half.py").write_text(
        "def reward(prompt, response):\n    return len(response) if len(prompt) % 2 else 1.0\n"
    )
    run = jobs.run(
        "grpo",
        "grpo_dynamic",
        trainer__grpo__max_steps=3,
        model__grpo__max_rollouts_per_step=4,
        model__environments__e__use=f"'{tmp_path / 'half.py'}'",
    )
    for record in run.metrics()[1:]:
        assert record["train_rollouts/rollout_size"] == 16
        assert record["train_rollouts/groups"] in (4, 8, 12, 16)
    drawn = [record["train_rollouts/groups"] for record in run.metrics()[1:]]
    assert max(drawn) > 4
    for step in (1, 2, 3):
        groups: dict[int, set] = {}
        for one in run.rollouts():
            if (one["step"], one["split"]) == (step, "train"):
                groups.setdefault(one["group"], set()).add(one["reward"])
        assert len(groups) == 4
        if drawn[step - 1] < 16:
            assert all(len(rewards) > 1 for rewards in groups.values())


ROUNDED = """
from aligner_lib.megatron import generate

exact = generate.draw

def rounded(logits, uniforms, sampling):
    return exact((logits * 2).round() / 2, uniforms, sampling)

generate.draw = rounded
"""


def rounded_sampler(kind: str, settings: list[str]) -> None:
    """A job whose sampler rounds its logits to halves, as one with low precision might."""
    from smoke_jobs import run_smoke_job

    exec(ROUNDED, {})
    run_smoke_job(kind, settings)


@pytest.mark.parametrize("correction", ["none", "truncated", "masked"])
def test_a_sampler_that_is_not_the_policy_is_noticed_and_made_up_for(jobs, correction):
    import forks

    name = f"grpo_rounded_{correction}"
    settings = jobs.settings(
        "grpo", name, trainer__grpo__max_steps=2, model__grpo__sampler_correction=correction
    )
    forks.run(rounded_sampler, "grpo", settings, log=jobs.log(name))
    first = jobs.run_folder(name).metrics()[1]
    assert first["train_rollouts/sampler_mismatch"] > 0.01
    assert first["train_rollouts/sampler_effective_sample_size"] < 0.999
    weight = first["train_rollouts/sampler_weight"]
    assert weight == 1 if correction == "none" else abs(weight - 1) < 0.1 and weight != 1


def test_the_weights_make_the_rounded_sampler_s_gradient_the_policy_s():
    """Over all tokens of a tiny vocabulary: E_sampler[w · A · ∇log π] = E_π[A · ∇log π], which fails without w."""
    from aligner_lib.algorithms.policy_gradient import importance_weights

    logits = torch.tensor([1.3, 0.2, -0.6, 0.9], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, -0.5, 2.0, 0.0], dtype=torch.float64)
    logprobs = logits.log_softmax(0)
    sampler = logits.detach().round().log_softmax(0)

    def gradient(probabilities, weights):
        (value,) = torch.autograd.grad(
            (probabilities.detach() * weights.detach() * advantages * logprobs).sum(),
            logits,
            retain_graph=True,
        )
        return value

    wanted = gradient(logprobs.exp(), torch.ones(4))
    corrected = gradient(sampler.exp(), importance_weights(logprobs, sampler, "truncated", 10.0))
    torch.testing.assert_close(corrected, wanted)
    assert (gradient(sampler.exp(), torch.ones(4)) - wanted).abs().max() > 0.02


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


def test_what_an_environment_says_between_turns_is_read_and_not_learnt(jobs, tmp_path):
    (tmp_path / "echo.py").write_text(TWO_TURNS)
    run = jobs.run(
        "grpo",
        "grpo_turns",
        trainer__grpo__max_steps=2,
        model__environments=f"{{e: {{use: '{tmp_path / 'echo.py'}'}}}}",
        model__grpo__sampling_params__end_strings="[e, t, a]",  # most responses end, and get a second turn
    )
    records = [one for one in run.rollouts() if one["split"] == "train"]
    second = [one for one in records if one["turns"] == 2]
    assert second and any(one["turns"] == 1 for one in records)
    for one in second:
        before, said, _ = one["response"].partition("And then?")
        assert said, one["response"]
        own = "".join(one["tokens"])  # the policy's alone
        assert "And then?" not in own and own.startswith(before[:1])
        assert len(one["tokens"]) == one["length"] == len(one["token_advantage"])
    for record in run.metrics()[1:]:
        of_step = [one for one in records if one["step"] == record["step"]]
        turns = sum(one["turns"] for one in of_step) / len(of_step)
        assert record["train_environments/e/turns"] == pytest.approx(turns)
        assert record["train_optim/first_ppo_ratio"] == pytest.approx(1.0, abs=1e-5)  # masks fit both passes
        assert record["train_rollouts/sampler_mismatch_max"] < 1e-4


@pytest.mark.parametrize("stopped", [True, False])
def test_a_turn_is_closed_once_whether_the_stop_token_or_an_end_string_ended_it(smoke, here, stopped):
    from types import SimpleNamespace

    from aligner_lib.datasets.tokenizer import Tokenizer
    from aligner_lib.megatron.generate import Response
    from aligner_lib.rollouts.collect import RolloutCollector, _Episode
    from aligner_lib.rollouts.environments.base import Step
    from aligner_lib.rollouts.tasks import Task

    tokenizer = Tokenizer(smoke)
    messages = [{"role": "user", "content": "Hi."}]
    episode = _Episode(0, 0, Task([5, 6], "", "e", 0, messages, by_model=False))
    said = [7, 8, *([tokenizer.eos_id] if stopped else [])]
    episode.transcript.add(Response(said, [0.0] * len(said), finished=True))
    episode.texts.append("x")
    policy = SimpleNamespace(tokenizer=tokenizer, sampling=SimpleNamespace(max_length=4))
    environments = SimpleNamespace(max_turns=lambda: {"e": 2})
    assert RolloutCollector(policy, None, 1, 256)._continues(
        episode, Step(0.0, done=False, observation="And?"), environments
    )
    first_turn = episode.transcript.tokens[2:]
    assert first_turn[:3] == [
        7,
        8,
        tokenizer.eos_id,
    ]  # the smoke model's template ends turns with the stop token
    assert first_turn[3] != tokenizer.eos_id


def test_an_environment_that_gives_no_prompt_at_all_ends_the_run_with_its_words(jobs, tmp_path):
    (tmp_path / "mute.py").write_text(
        TWO_TURNS.replace("self.turns = 0", "raise RuntimeError('no prompts today')")
    )
    with pytest.raises(AssertionError):
        jobs.run("grpo", "grpo_mute", model__environments=f"{{e: {{use: '{tmp_path / 'mute.py'}'}}}}")
    run = jobs.run_folder("grpo_mute")
    assert run.status == "failed" and "no prompts today" in run.info["message"]


# ---- settings -------------------------------------------------------------------------------------------------------


def test_a_batch_has_whole_groups(jobs):
    with pytest.raises(ConfigError, match=r"whole groups of model\.grpo\.num_generations_per_prompt=4"):
        compose(
            "grpo", jobs.settings("grpo", "x", model__micro_batch_size=2, model__global_batch_size=6), "smoke"
        )


def test_distillation_needs_a_teacher(jobs):
    with pytest.raises(ConfigError, match=r"set model\.grpo\.teacher\.restore_from_path"):
        compose("grpo", jobs.settings("grpo", "x", model__grpo__objective="distill"), "smoke")


def test_switches_that_an_objective_does_not_have_are_told(jobs):
    settings = jobs.settings("grpo", "x", model__grpo__objective="rloo", model__grpo__clip_low=0.1)
    told = notices("grpo", compose("grpo", settings, "smoke"), "smoke")
    assert any("clip_low=0.1: this objective has no ratio to clip" in line for line in told)


def test_a_reward_file_is_checked_before_any_model_is_built(jobs, tmp_path):
    from aligner_lib.errors import UserError
    from aligner_lib.kinds.grpo.build import prepare

    (tmp_path / "two.py").write_text("def a(prompt, response): ...\ndef b(prompt, response): ...\n")
    settings = jobs.settings("grpo", "x", model__environments__e__use=f"'{tmp_path / 'two.py'}'")
    with pytest.raises(UserError, match=r"model\.environments\.e: "):
        prepare(compose("grpo", settings, "smoke"))


# ---- PPO with a program for a judge ---------------------------------------------------------------------------------


def test_ppo_takes_environments_and_a_critic_that_begins_as_any_model(jobs):
    run = jobs.run(
        "ppo",
        "ppo_e",
        trainer__ppo__max_steps=2,
        critic__pretrained_checkpoint__restore_from_path=f"'{jobs.model}'",
        model__environments__e__use=f"'{REWARD_E}'",
        model__environments__e__args__prompts=f"'{jobs.formatted / 'train_prompts.jsonl'}'",
    )
    assert run.status == "finished"
    first = run.metrics()[1]
    assert first["train_environments/e/samples"] == 16
    assert first["train_rollouts/values_mean"] == first["train_rollouts/values_std"] == 0  # a new head
    assert 0 < first["train_rollouts/rewards"] < 1


def test_one_rollout_shows_what_each_objective_makes_of_it(jobs, grpo):
    """Of the first step, whose KL is 0: what the run's own objective gives each token is the advantage that it logged."""
    own = grpo.info["config"]["model"]["grpo"]
    compared = compare_objectives(grpo, [own["objective"], "dapo", PRESETS["rloo"]], step=1)
    assert (
        compared.objectives[:2] == (own["objective"], "dapo")
        and "baseline=leave_one_out" in compared.objectives[2]
    )
    tokens = sum(len(one["tokens"]) for one in compared.responses)
    for response, weights in zip(compared.responses, compared.weights[own["objective"]]):
        share = {
            "constant": own["length_params"]["max_length"] * 16,
            "tokens": tokens,
            "responses": len(weights) * 16,
        }[PRESETS[own["objective"]].normalizer]
        assert weights == pytest.approx(
            [tokens * one / share for one in response["token_advantage"]], abs=2e-4
        )
    with pytest.raises(UserError, match="baseline=critic: the run had the baseline "):
        compare_objectives(grpo, ["ppo"])
    assert "<script" not in compared._repr_html_() and "dapo" in repr(compared)
