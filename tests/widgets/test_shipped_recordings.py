"""The recordings that come with the package: real runs, and the alarms tell the broken ones from the healthy."""

import gzip
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from aligner_lib.config.compose import compose, save, written
from aligner_lib.config.kinds import alarms_of, kind_of
from aligner_lib.run_folder.alarms import Thresholds, Watch
from aligner_lib.run_folder.reader import flatten
from aligner_lib.tutorial.comparison.over_optimisation import best_of_n_points, ppo_points
from aligner_lib.tutorial.hunt.bug_hunt import HEALTHY, HUNTED
from aligner_lib.tutorial.workspace.longer_runs import (
    ATTACKED_JUDGE,
    BROKEN,
    CHANGED,
    GRPO_ON_FORMS,
    JUDGED,
    LEFT_TO_BREAK,
    PPO_ON_FORMS,
    PPO_ON_SUMS,
    SIXTEEN_ANSWERS,
    TWELVE_STEPS,
)
from widgets.recordings.recording_file import PACKED, SHIPPED, shipped
from widgets.recordings.replay import Recording

ROOT = Path(__file__).parents[2]
PAIRED = {f"ppo-forms-{change}": "ppo-forms" for change in BROKEN} | {
    f"ppo-drawn-{change}": "ppo-drawn" for change in CHANGED
}
"""Runs with a setting changed, and the run whose settings they have otherwise."""


@cache
def whole(name: str) -> Recording:
    return Recording(name, speed=float("inf"))


def alarms_in(recording: Recording) -> dict[str, int]:
    """What sounds with today's thresholds, and at which step first."""
    watch, began = Watch(alarms_of("ppo")), {}
    for record in recording.metrics():
        for alarm in watch.check(record):
            began.setdefault(alarm.name, alarm.step)
    return began


def test_they_are_those_that_the_notebooks_play_and_small():
    played = {"healthy", "no-kl-penalty", "ppo-titles", *MADE_WITH, *HEALTHY, *HUNTED}
    assert shipped() == sorted(played)
    assert all((SHIPPED / f"{name}{PACKED}").stat().st_size < 300_000 for name in shipped())
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert f"recordings/*{PACKED}" in data["widgets"], "an installed copy has them, too"


def test_the_healthy_run_is_quiet_and_gets_better():
    run = whole("healthy")
    assert alarms_in(run) == {} and run.alarms() == [] and run.status == "finished"
    validation = [r["val_rollouts/rewards"] for r in run.metrics() if "val_rollouts/rewards" in r]
    assert validation[-1] > validation[0] + 0.5


def test_the_run_without_a_penalty_sets_off_the_alarms():
    run = whole("no-kl-penalty")
    assert {record["train_rollouts/kl_coef"] for record in run.metrics() if record["step"]} == {0.0}
    recorded = {alarm["name"]: alarm["step"] for alarm in run.alarms()}
    assert alarms_in(run) == recorded == {"kl": 5, "reward_hacking": 8}
    # a monitor's alarms are the same
    assert run.info["config"]["exp_manager"]["alarms"]["kl"] == Thresholds().kl


MADE_WITH = {
    "ppo-sums": ("ppo", PPO_ON_SUMS),
    "grpo-forms": ("grpo", GRPO_ON_FORMS),
    "sft-forms-answers": ("evaluate", SIXTEEN_ANSWERS),
    "ppo-forms": ("ppo", PPO_ON_FORMS),
    "ppo-drawn": ("ppo", TWELVE_STEPS),
    "attacked-naive": ("grpo", ATTACKED_JUDGE),
    "attacked-mended": ("grpo", ATTACKED_JUDGE),
    "judged-rubric": ("grpo", JUDGED),
}
MADE_WITH |= {
    f"ppo-forms-{name}": ("ppo", PPO_ON_FORMS | LEFT_TO_BREAK | change) for name, change in BROKEN.items()
}
MADE_WITH |= {f"ppo-drawn-{name}": ("ppo", TWELVE_STEPS | change) for name, change in CHANGED.items()}


@pytest.mark.parametrize("name", MADE_WITH)
def test_it_has_the_settings_that_would_make_it_again(name):
    """Also after the profile has moved on. Settings that are newer than a recording, and paths, are in one of the two alone.

    Where the profile lets the machine choose the precision, a recording has that of its machine.
    """
    kind, settings = MADE_WITH[name]
    had = flatten(whole(name).info["config"])
    config = compose(kind, [f"{key}={written(value)}" for key, value in settings.items()], "laptop")
    now, unused = flatten(save(config)), tuple(kind_of(kind).without_effect(config))
    shared = [key for key in had.keys() & now.keys() if not key.startswith(unused)]
    both = [key for key in shared if had[key] is not None and now[key] not in (None, "auto")]
    assert len(both) > 30
    assert {key: had[key] for key in both} == {key: now[key] for key in both}


def answers_of(run: Recording, split: str, step: int) -> list[dict]:
    return [r for r in run.rollouts() if (r["split"], r["step"]) == (split, step)]


# ---- notebook 05's runs with a setting changed ----------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRED)
def test_paired_runs_begin_with_the_same_answers(name):
    """Of the same policy, to the same prompts, in the same order, judged alike: up to the first update nothing differs."""
    counts = (64, 32) if PAIRED[name] == "ppo-forms" else (256, 16)  # as many as were recorded
    for split, step, count in zip(("validation", "train"), (0, 1), counts):
        before, changed = (
            [[r["prompt"], r["response"], r["metrics"]] for r in answers_of(whole(run), split, step)]
            for run in (PAIRED[name], name)
        )
        assert before == changed and len(before) == count
    first, other = (whole(run).metrics()[0]["val_rollouts/rewards"] for run in (PAIRED[name], name))
    assert other == pytest.approx(first)


def test_the_sixteen_answers_are_the_same_policy_s_to_the_same_prompts():
    """A prompt's first answer is numbered as if it were the only one, so it is the validation's."""
    sixteen = whole("sft-forms-answers")
    config = flatten(sixteen.info["config"])
    assert sixteen.info["kind"] == "evaluate"
    assert {key: config[key] for key in SIXTEEN_ANSWERS} == SIXTEEN_ANSWERS
    drawn: dict[int, list[str]] = {}
    for answer in sixteen.rollouts():
        drawn.setdefault(answer["group"], []).append(answer["response"])
    assert len(drawn) == 32 and {len(of_prompt) for of_prompt in drawn.values()} == {16}
    validated = answers_of(whole("ppo-forms"), "validation", 0)[:32]
    assert [answer["response"] for answer in validated] == [drawn[prompt][0] for prompt in range(32)]


def test_best_of_n_gets_more_of_both_and_no_less_than_the_leashed_run_at_twice_the_kl():
    """As notebook 05 says below its figure."""
    best = best_of_n_points(whole("sft-forms-answers"))
    for measure in ("kl", "reward", "obeys"):
        values = [getattr(point, measure).value for point in best]
        assert values == sorted(values)
    leashed = ppo_points(whole("ppo-forms"))[-1]
    assert leashed.kl.value > 2 * best[-1].kl.value
    assert best[-1].reward.value > leashed.reward.value and best[-1].obeys.value > leashed.obeys.value


def test_the_high_rate_gets_more_reward_than_anybody_by_repeating_what_was_asked():
    """As notebook 05 says below its figure."""
    run = whole("ppo-forms-high-lr")
    _, collapsed, hacking = ppo_points(run)
    best, leashed = best_of_n_points(whole("sft-forms-answers"))[-1], ppo_points(whole("ppo-forms"))
    assert collapsed.tokens.value < 2 and collapsed.obeys.value == 0
    assert hacking.name == leashed[1].name == "step 8"
    assert hacking.reward.value > max(best.reward.value, leashed[-1].reward.value)
    assert hacking.obeys.value < min(best.obeys.value, leashed[-1].obeys.value)
    assert hacking.kl.value > 2 * leashed[-1].kl.value
    assert alarms_in(run) == {"good_falls": 4, "kl": 5, "reward_hacking": 8, "copies_prompt": 9}
    best_rewarded = max(answers_of(run, "train", 9), key=lambda r: r["reward"])
    assert best_rewarded["response"] == "Your last sentence must be a question."
    validated = answers_of(run, "validation", 8)
    echoes = [r["response"].strip(". ").lower() in r["prompt"].lower() for r in validated]
    assert sum(echoes) > len(echoes) / 2


@pytest.mark.parametrize("name", ["healthy", "no-kl-penalty", "ppo-forms", *PAIRED])
def test_every_step_has_its_texts(name):
    steps = {record["step"] for record in whole(name).metrics() if record["step"]}
    trained = [rollout for rollout in whole(name).rollouts() if rollout["split"] == "train"]
    assert {rollout["step"] for rollout in trained} >= steps
    assert all(len(rollout["tokens"]) == len(rollout["token_kl"]) for rollout in trained)


@pytest.mark.parametrize("name", shipped())
def test_nothing_says_where_it_was_made(name):
    text = gzip.decompress((SHIPPED / f"{name}{PACKED}").read_bytes()).decode()
    assert not re.search(r'"/(work|root|home|tmp|Users)', text)
    assert {"host", "pid"}.isdisjoint(whole(name).info)
