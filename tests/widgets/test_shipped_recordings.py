"""The two recordings that come with the package: real runs, and the alarms tell the broken one from the healthy."""

import gzip
import re
import runpy
import tomllib
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

from aligner_lib.config.kinds import alarms_of
from aligner_lib.run_folder.alarms import Thresholds, Watch
from widgets.recording_file import PACKED, SHIPPED, shipped
from widgets.replay import Recording

ROOT = Path(__file__).parents[2]


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
    assert shipped() == ["grpo-forms", "healthy", "no-kl-penalty", "ppo-sums"]
    assert all((SHIPPED / f"{name}{PACKED}").stat().st_size < 300_000 for name in shipped())
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert "recordings/*" in data["widgets"], "an installed copy has them, too"


def test_the_healthy_run_is_quiet_and_gets_better():
    run = whole("healthy")
    assert alarms_in(run) == {} and run.alarms() == [] and run.status == "finished"
    validation = [r["val_rollouts/rewards"] for r in run.metrics() if "val_rollouts/rewards" in r]
    assert validation[-1] > validation[0] + 0.5
    first = next(record for record in run.metrics() if record["step"] == 1)
    assert first["train_rollouts/kl"] == 0
    assert first["train_optim/first_ppo_ratio"] == pytest.approx(1, abs=1e-5)


def test_the_run_without_a_penalty_sets_off_the_alarms():
    run = whole("no-kl-penalty")
    assert {record["train_rollouts/kl_coef"] for record in run.metrics() if record["step"]} == {0.0}
    assert alarms_in(run) == {"kl": 5, "reward_hacking": 8}
    assert {alarm["name"]: alarm["step"] for alarm in run.alarms()} == {"kl": 5, "reward_hacking": 8}
    assert (
        run.info["config"]["exp_manager"]["alarms"]["kl"] == Thresholds().kl
    )  # a monitor's alarms are the same


def test_it_was_made_by_the_command_that_is_documented():
    broken = runpy.run_path(str(ROOT / "notebooks" / "record.py"))["BROKEN"]
    config = whole("no-kl-penalty").info["config"]
    for setting, value in broken.items():
        assert reduce(getitem, setting.split("."), config) == value, setting


@pytest.mark.parametrize("name", ["healthy", "no-kl-penalty"])
def test_every_step_has_its_texts(name):
    run = whole(name)
    steps = {record["step"] for record in run.metrics() if record["step"]}
    assert {rollout["step"] for rollout in run.rollouts() if rollout["split"] == "train"} >= steps
    assert all(len(r["tokens"]) == len(r["token_kl"]) for r in run.rollouts() if r["split"] == "train")


@pytest.mark.parametrize("name", ["healthy", "no-kl-penalty"])
def test_nothing_says_where_it_was_made(name):
    text = gzip.decompress((SHIPPED / f"{name}{PACKED}").read_bytes()).decode()
    assert not re.search(r'"/(work|root|home|tmp|Users)', text)
    assert {"host", "pid"}.isdisjoint(whole(name).info)
