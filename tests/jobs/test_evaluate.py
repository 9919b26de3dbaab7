"""Evaluations: several answers to a prompt, and programs beside the reward model."""

from __future__ import annotations

from collections import Counter

import pytest

from aligner_lib.tutorial import compare_policies
from data import format_hh
from data.forms import obeys


@pytest.fixture(scope="module")
def often(jobs):
    """The same evaluation with three answers to each prompt."""
    return jobs.run("evaluate", "evaluate_often", evaluation__num_generations_per_prompt=3)


@pytest.fixture(scope="module")
def mixed(jobs, tmp_path_factory):
    """The reward model judges conversations and forms, a program sums."""
    forms = tmp_path_factory.mktemp("forms")
    format_hh("forms", forms, "test")
    files, of_forms = (
        f"{{train: '{folder}/test_prompts.jsonl', validation: '{folder}/test_prompts.jsonl'}}"
        for folder in (jobs.formatted, forms)
    )
    return jobs.run(
        "evaluate",
        "evaluate_mixed",
        model__environments__conversations__use="reward_model",
        model__environments__conversations__args__prompts=files,
        model__environments__forms__use="reward_model",
        model__environments__forms__args__prompts=of_forms,
        model__environments__sums__use="sums",
        model__environments__sums__args__examples=0,
        model__ppo__num_val_samples=12,
        evaluation__num_generations_per_prompt=2,
    )


def test_more_answers_change_none_of_the_first_ones(evaluate, often):
    once, several = evaluate.rollouts(), often.rollouts()
    assert len(several) == 3 * len(once)
    by_prompt: dict[int, list[dict]] = {}
    for record in several:
        by_prompt.setdefault(record["group"], []).append(record)
    for record in once:
        first, *others = by_prompt[record["group"]]
        assert (first["response"], first["prompt"]) == (record["response"], record["prompt"])
        assert first["reward"] == pytest.approx(record["reward"], abs=1e-4)
        assert len(others) == 2
    assert any(
        first["response"] != others[0]["response"] for first, *others in by_prompt.values()
    )  # with random numbers of their own


def test_each_is_judged_by_its_own(mixed):
    records = mixed.rollouts()
    assert Counter(record["environment"] for record in records) == {"conversations": 8, "forms": 8, "sums": 8}
    of_sums = {record["reward"] for record in records if record["environment"] == "sums"}
    of_conversations = {record["reward"] for record in records if record["environment"] == "conversations"}
    assert of_sums == {0.0} and len(of_conversations) > 1  # a random model can't add
    (figures,) = mixed.metrics()
    assert figures["evaluation_environments/sums/exact"] == 0
    assert figures["evaluation_environments/conversations/samples"] == 8
    assert figures["evaluation/rollout_size"] == 24


def test_a_program_stands_beside_the_reward_model_where_it_can(mixed):
    by_environment: dict[str, list[dict]] = {}
    for record in mixed.rollouts():
        by_environment.setdefault(record["environment"], []).append(record)
    assert all(record["metrics"] == {} for record in by_environment["conversations"])
    of_forms = by_environment["forms"]
    said = [obeys(record["prompt"], record["response"]) for record in of_forms]
    assert [record["metrics"]["obeys"] for record in of_forms] == said
    assert len({record["reward"] for record in of_forms}) > 1  # the reward is the model's all the same
    (figures,) = mixed.metrics()
    assert figures["evaluation_environments/forms/obeys"] == pytest.approx(sum(said) / len(said))


def test_policies_are_compared_where_both_were_judged(mixed, jobs):
    table = compare_policies({"a": mixed, "b": mixed}, against="a", environment="sums")
    assert table.caption.startswith("8 answers to 4 held-out prompts")
    rate, low, high = table.figures["b"]["win_rate"]
    assert (
        rate == 0.5 and low == pytest.approx(1 - high) and 0 < low < 0.5
    )  # ties say little of other prompts
    assert table.figures["b"]["kl_per_token"] == pytest.approx(0, abs=1e-6)


def test_programs_alone_need_no_reward_model(jobs):
    run = jobs.run(
        "evaluate",
        "evaluate_sums",
        critic__pretrained_checkpoint__restore_from_path="null",
        model__environments__sums__use="sums",
        model__environments__sums__args__examples=0,
        model__ppo__num_val_samples=4,
    )
    assert run.status == "finished" and len(run.rollouts()) == 4


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
