"""Evaluations: several answers to a prompt, and programs beside the reward model."""

from __future__ import annotations

import os
import signal

import pytest
from smoke_jobs import UNEXPORTED, assert_same_run, prepare_smoke_job, run_smoke_job

from aligner_lib.config.compose import compose
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.jobs import run as run_module
from aligner_lib.kinds.prepared_job import PreparedJob
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.trainers.loop import stop_signals
from aligner_lib.tutorial import compare_policies
from data import format_hh
from data.forms import obeys


@pytest.fixture(scope="module")
def mixed(jobs, tmp_path_factory):
    """The reward model judges conversations and forms, a program sums."""
    forms = tmp_path_factory.mktemp("forms")
    format_hh("forms", forms, "test")
    settings = {"model__environments__sums__use": "sums", "model__environments__sums__args__examples": 0}
    for name, folder in {"conversations": jobs.formatted, "forms": forms}.items():
        file = f"'{folder}/test_prompts.jsonl'"
        settings[f"model__environments__{name}__use"] = "reward_model"
        settings[f"model__environments__{name}__args__prompts"] = f"{{train: {file}, validation: {file}}}"
    settings |= {"model__ppo__num_val_samples": 12, "evaluation__num_generations_per_prompt": 2}
    return jobs.run("evaluate", "evaluate_mixed", **settings)


def test_more_answers_change_none_of_the_first_ones(evaluate, jobs):
    often = jobs.run("evaluate", "evaluate_often", evaluation__num_generations_per_prompt=3)
    once, several = evaluate.rollouts(), often.rollouts()
    assert len(several) == 3 * len(once)
    groups = {r["group"]: [other for other in several if other["group"] == r["group"]] for r in once}
    for record in once:
        first, *others = groups[record["group"]]
        assert (first["response"], first["prompt"]) == (record["response"], record["prompt"])
        assert first["reward"] == pytest.approx(record["reward"], abs=1e-4)
        assert len(others) == 2
    # with random numbers of their own
    assert any(first["response"] != second["response"] for first, second, _ in groups.values())


def test_a_policy_after_another_one_is_evaluated_as_alone(evaluate, sft, jobs):
    """The policy after another one has its own weights, and both have the first reference."""
    policies = f"{{sft: '{sft.path}', same: '{jobs.model}'}}"
    several = jobs.run("evaluate", "evaluate_several", evaluation__policies=policies)
    assert several.info["message"] == "evaluated sft, same" and several.metrics() == []
    of_sft, same = (RunFolder(several.path / name) for name in ("sft", "same"))
    assert_same_run(same, evaluate, within=0)
    assert same.info["hashes"] == evaluate.info["hashes"]
    assert of_sft.metrics()[0]["evaluation/kl"] != 0 == same.metrics()[0]["evaluation/kl"]
    for run in (of_sft, same):
        assert several.info["hashes"][f"policies.{run.name}"] == run.info["hashes"]["model"]


def test_a_stopped_evaluation_of_several_policies_goes_on_with_those_that_are_not_evaluated(
    jobs, here, monkeypatch
):
    """Runs without a model stand in for the evaluations. What was evaluated with other settings is evaluated again."""
    name, evaluated = "evaluate_stopped", []
    run = jobs.run_folder(name)

    def evaluate(kind, config, profile, job):
        with run_module.opened_run(kind, config, profile, job, resume=False) as part:
            part.finish("finished", run_module.EVALUATED)
            evaluated.append(part.path.name)
        if evaluated[-1] == stop_after:
            run.request_stop()

    monkeypatch.setattr(run_module, "_evaluate", evaluate)
    policies = f"{{a: '{jobs.model}', b: '{jobs.model}'}}"
    settings = jobs.settings("evaluate", name, evaluation__policies=policies)
    for stop_after, more, expected in (
        ("a", [], ["a"]),
        (None, [], ["b"]),
        ("a", [], ["a"]),  # a finished evaluation begins anew
        (None, ["evaluation.num_generations_per_prompt=2"], ["a", "b"]),
    ):
        evaluated.clear()
        run_smoke_job("evaluate", settings + more)
        assert evaluated == expected
        assert run.status == ("stopped" if stop_after else "finished")
        assert run.info["message"] == ("evaluated a" if stop_after else "evaluated a, b")


@pytest.mark.parametrize(("kind", "activity"), [("sft", "loading"), ("evaluate", "evaluating")])
def test_a_scheduler_s_signals_stop_a_job_that_loads_or_evaluates_and_its_log_ends_with_the_reason(
    here, tmp_path, monkeypatch, capsys, kind, activity
):
    run_module.configure_logging()
    run_job = {"sft": run_module.run_job, "evaluate": run_module.run_evaluation}[kind]
    config = compose(kind, [f"{key}={value}" for key, value in UNEXPORTED.items()])
    config.exp_manager.explicit_log_dir = str(tmp_path)
    loop = compose("sft").trainer.sft

    def terminate(*_) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    job = PreparedJob(terminate, 9, loop, close=terminate, hashes={})
    monkeypatch.setattr(run_module, "prepare_job", lambda *_: job)
    # stop_signals: pytest itself outlives the signals
    with stop_signals() as outside, pytest.raises(KeyboardInterrupt):
        run_job(kind, config)
    info, message = RunFolder(tmp_path).info, f"stopped while {activity} (SIGTERM)"
    assert (info["status"], info["message"]) == ("stopped", message)
    assert not outside.is_set() and capsys.readouterr().err.endswith(f"{tmp_path.name}: {message}\n")


def test_a_policy_that_is_none_is_told_before_any_is_evaluated(jobs, rm):
    policies = f"{{a: '{jobs.model}', b: '{rm.path}'}}"
    settings = jobs.settings("evaluate", "evaluate_wrong", evaluation__policies=policies)
    with pytest.raises(UserError, match=r"evaluation\.policies\.b=.* is a reward model or a critic"):
        prepare_smoke_job("evaluate", settings)


@pytest.mark.parametrize("name", ["../elsewhere", "run.json", "job"])
def test_a_policy_s_name_is_a_folder_that_a_run_does_not_use(name):
    with pytest.raises(ConfigError, match="names of letters, digits, '_' and '-'"):
        compose("evaluate", [f"evaluation.policies={{{name}: smoke}}"], "smoke")


def of_environment(run, name: str) -> list[dict]:
    return [record for record in run.rollouts() if record["environment"] == name]


def test_each_is_judged_by_its_own_and_a_program_stands_beside_the_reward_model_where_it_can(mixed):
    names = ("conversations", "forms", "sums")
    conversations, of_forms, of_sums = (of_environment(mixed, name) for name in names)
    assert len(conversations) == len(of_forms) == len(of_sums) == 8
    assert {record["reward"] for record in of_sums} == {0.0}  # a random model can't add
    for records in (conversations, of_forms):  # the reward of forms is the model's all the same
        assert len({record["reward"] for record in records}) > 1
    assert all(record["metrics"] == {} for record in conversations)
    verdicts = [obeys(record["prompt"], record["response"]) for record in of_forms]
    assert [record["metrics"]["obeys"] for record in of_forms] == verdicts
    (figures,) = mixed.metrics()
    assert figures["evaluation_environments/forms/obeys"] == pytest.approx(sum(verdicts) / 8)
    assert figures["evaluation_environments/sums/exact"] == 0
    assert figures["evaluation_environments/conversations/samples"] == 8
    assert figures["evaluation/rollout_size"] == 24


def test_policies_are_compared_where_both_were_judged(mixed, jobs):
    table = compare_policies({"a": mixed, "b": mixed}, against="a", environment="sums")
    assert table.caption.startswith("8 answers to 4 held-out prompts")
    rate, low, high = table.figures["b"]["win_rate"]
    # ties say little of other prompts
    assert rate == 0.5 and low == pytest.approx(1 - high) and 0 < low < 0.5
    assert table.figures["b"]["kl_per_token"] == pytest.approx(0, abs=1e-6)


def test_an_evaluation_without_any_reward_says_so_and_has_null_in_place_of_0(jobs, tmp_path):
    (tmp_path / "broken.py").write_text("def reward(prompt, response):\n    return 1 / 0\n")
    prompts = jobs.formatted / "test_prompts.jsonl"
    run = jobs.run(
        "evaluate",
        "evaluate_broken",
        critic__pretrained_checkpoint__restore_from_path="null",
        model__environments__e__use=f"'{tmp_path / 'broken.py'}'",
        model__environments__e__args__prompts=f"{{train: '{prompts}', validation: '{prompts}'}}",
        model__ppo__num_val_samples=2,
    )
    (figures,) = run.metrics()
    assert (figures["evaluation/rewards"], figures["evaluation/rewards_failed"]) == (None, 1)
    assert run.info["message"].startswith("evaluated, but no response has a reward")
