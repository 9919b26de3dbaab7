"""Evaluated policies side by side: figures by hand, and what can't be compared."""

import json
import math

import pytest

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial import compare_policies
from aligner_lib.tutorial.comparison.evaluation import runs_of_seeds
from aligner_lib.tutorial.comparison.policies import PolicyComparison


def evaluated(folder, rewards, length, prompts=("Why?", "How?"), obeys=None):
    """A run folder with two answers of this length to each of two prompts. The last answer was cut."""
    folder.mkdir()
    with (folder / "rollouts.jsonl").open("w") as file:
        for i, reward in enumerate(rewards):
            record = {"step": 0, "split": "evaluation", "prompt": prompts[i // 2], "group": i // 2}
            record |= {"response": "a b a b", "finished": i != 3, "reward": reward, "length": length}
            record |= {"token_kl": [0.5] * length} | ({"metrics": {"obeys": obeys[i]}} if obeys else {})
            file.write(json.dumps(record) + "\n")
    return RunFolder(folder)


@pytest.fixture
def runs(tmp_path):
    return {
        "SFT": evaluated(tmp_path / "sft", [0.0, 1.0, 0.0, 1.0], 10),
        "PPO": evaluated(tmp_path / "ppo", [1.0, 1.0, 2.0, 3.0], 5),
    }


def test_figures_by_hand(runs):
    figures = compare_policies(runs, against="SFT").figures
    sft, ppo = figures["SFT"], figures["PPO"]
    assert (sft["reward"].value, ppo["reward"].value, ppo["gain"].value) == (1 / 2, 7 / 4, 5 / 4)
    # Student's t of two prompts, whose gains are 0.5 and 2, with residuals over 1 - 1/2
    half = 12.7062 * 0.75 * math.sqrt(2)
    assert ppo["gain"][1:] == pytest.approx((1.25 - half, 1.25 + half), abs=1e-3)
    assert ppo["win_rate"].value == (1 + 0.5 + 1 + 1) / 4 and "win_rate" not in sft
    assert (ppo["tokens"].value, ppo["ended"].value) == (5, 0.75)
    assert (ppo["kl_per_token"], ppo["distinct_2"]) == (0.5, 2 / 12)


def test_a_prompt_that_an_evaluation_repeats_is_one_prompt(runs):
    """30 held-out sums with 60 answers are evidence of 30 prompts."""
    for run in runs.values():
        path = run.path / "rollouts.jsonl"
        path.write_text(path.read_text().replace("How?", "Why?"))
    assert compare_policies(runs, against="SFT").caption.startswith("4 answers to 1 held-out prompts")


def test_the_verdict_of_a_program_stands_beside_the_reward(tmp_path):
    verdicts = {"SFT": [0.0, 0.0, 1.0, 0.0], "PPO": [1.0, 0.0, 1.0, 1.0]}
    runs = {name: evaluated(tmp_path / name, [0.0] * 4, 10, obeys=of) for name, of in verdicts.items()}
    figures = compare_policies(runs, against="SFT").figures
    assert (figures["SFT"]["obeys"].value, figures["PPO"]["obeys"].value) == (0.25, 0.75)
    gain = figures["PPO"]["obeys_gain"]  # half an answer for each of the two prompts, which are few
    assert gain.value == 0.5 and gain.low < 0 and gain.high == 1
    assert "obeys_gain" not in figures["SFT"]


def test_texts_are_no_markup():
    page = PolicyComparison("", {"a": {"<i>": "<b>"}})._repr_html_()
    assert "<td>&lt;b&gt;</td>" in page and "&lt;i&gt;</th>" in page


def test_a_kl_at_another_temperature_is_not_compared(runs):
    for run, temperature in zip(runs.values(), (0.7, 1.0)):
        settings = {"config": {"model": {"ppo": {"sampling_params": {"temperature": temperature}}}}}
        (run.path / "run.json").write_text(json.dumps(settings))
    table = compare_policies(runs, against="SFT")
    assert all("kl_per_token" not in measures for measures in table.figures.values())
    assert "no KL, because the answers were drawn at different temperatures (SFT 0.7, PPO 1" in table.caption


def test_seeds_are_pooled_and_each_is_shown(tmp_path, runs):
    again = {
        "SFT": evaluated(tmp_path / "sft-2", [1.0, 1.0, 1.0, 1.0], 10),
        "PPO": evaluated(tmp_path / "ppo-2", [1.0, 1.0, 0.0, 1.0], 5),
    }
    pooled = {name: [run, again[name]] for name, run in runs.items()}
    table = compare_policies(pooled, against="SFT")
    assert table.caption.startswith("8 answers of 2 training seeds to 2 held-out prompts")
    assert table.figures["PPO"]["reward_by_seed"] == [7 / 4, 3 / 4]
    assert table.figures["PPO"]["gain"].value == (5 / 4 - 1 / 4) / 2  # each seed's PPO against its own SFT
    assert table.figures["PPO"]["win_rate"].value == (3.5 + 1.5) / 8
    once = {name: [run] for name, run in runs.items()}
    assert compare_policies(once, "SFT") == compare_policies(runs, "SFT")


def test_one_seed_is_not_pooled_twice(tmp_path, runs):
    with pytest.raises(ValueError, match=r"sft and .*sft evaluated the same policies"):
        compare_policies({name: [run, run] for name, run in runs.items()}, "SFT")
    pooled = {name: [run, evaluated(tmp_path / f"{name}-2", [0.0] * 4, 5)] for name, run in runs.items()}
    ppo_of_two_seeds = [run.path / "run.json" for run in pooled["PPO"]]
    for path in [run.path / "run.json" for run in pooled["SFT"]] + ppo_of_two_seeds:
        path.write_text(json.dumps({"hashes": {"model": "a"}}))
    with pytest.raises(ValueError, match=r"sft and .*SFT-2 evaluated the same policies"):
        compare_policies(pooled, "SFT")
    ppo_of_two_seeds[1].write_text(json.dumps({"hashes": {"model": "b"}}))
    assert "2 training seeds" in compare_policies(pooled, "SFT").caption


def test_a_folder_beside_needs_a_finished_evaluation_of_each_policy(tmp_path, runs):
    for name in runs:
        (tmp_path / "seed-7" / "runs" / "evaluate" / name).mkdir(parents=True)
    with pytest.raises(ValueError, match=r"beside='.*seed-7, ': there is no finished evaluation in .*/SFT;"):
        runs_of_seeds(runs, f"{tmp_path}/seed-7, ")
    for name in runs:
        (tmp_path / "seed-7" / "runs" / "evaluate" / name / "run.json").write_text('{"status": "finished"}')
    pooled = runs_of_seeds(runs, f" {tmp_path}/seed-7")
    assert [run.path.name for run in pooled["PPO"]] == ["ppo", "PPO"]
    assert runs_of_seeds(runs, "") == {name: [run] for name, run in runs.items()}


def test_other_prompts_are_refused(tmp_path, runs):
    other = evaluated(tmp_path / "other", [0.0] * 4, 5, prompts=("Why?", "Who?"))
    with pytest.raises(ValueError, match=r"other and .*sft answered different prompts"):
        compare_policies({"SFT": [runs["SFT"], other]}, against="SFT")
    with pytest.raises(ValueError, match="DPO and SFT answered different prompts"):
        compare_policies(runs | {"DPO": other}, against="SFT")


def test_an_unknown_name_and_missing_rewards_are_refused_with_what_is_there(tmp_path, runs):
    in_sums = runs["SFT"].path / "rollouts.jsonl"
    in_sums.write_text(in_sums.read_text().replace('"step": 0', '"environment": "sums"'))
    unrewarded = evaluated(tmp_path / "unrewarded", [None] * 4, 5)
    for given, options, words in (
        (runs, {"against": "sft"}, "against='sft' is none of the policies: choose from SFT, PPO"),
        ({"SFT": runs["SFT"]}, {"environment": "sms"}, "environment='sms': SFT has only answers of sums"),
        ({"SFT": RunFolder(tmp_path / "none")}, {}, "SFT has no answers: evaluate SFT"),
        ({"SFT": unrewarded}, {}, "none of the 4 answers has a reward for all of SFT: read the reasons"),
    ):
        with pytest.raises(ValueError, match=words):
            compare_policies(given, **{"against": "SFT"} | options)


def test_answers_without_a_reward_are_left_out_on_both_sides_and_counted(tmp_path, runs):
    runs["GRPO"] = evaluated(tmp_path / "grpo", [None, 1.0, 1.0, 1.0], 5)
    table = compare_policies(runs, against="SFT")
    assert table.figures["SFT"]["reward"].value == pytest.approx(2 / 3)
    assert "1 answers without a reward are left out" in table.caption
