"""Each alarm sounds on its own figure, and none on a healthy run."""

import json
import math
import re
from dataclasses import asdict

import pytest

from aligner_lib.config import kinds
from aligner_lib.run_folder import alarms
from aligner_lib.run_folder.alarms import Thresholds, Watch, active, as_record, metrics_read, stale
from aligner_lib.run_folder.reader import RunFolder, flatten
from widgets.runs.alarms import Alarms
from widgets.runs.series import Series

PPO = kinds.alarms_of("ppo")
HEALTHY = {
    "train_rollouts/rewards": 0.0,
    "train_rollouts/rewards_std": 1.0,
    "train_rollouts/kl": 0.02,
    "train_rollouts/generation_length": 40.0,
    "train_rollouts/entropy": 2.0,
    "train_rollouts/fraction_of_samples_properly_ended": 0.95,
    "train_optim/clip_fraction": 0.05,
    "train_optim/first_ppo_ratio": 1.0,
}


def records(count=3, start=0, **changes):
    named = {f"train_{name.replace('__', '/')}": value for name, value in changes.items()}
    return [{"step": start + i, "time": 0.0, **HEALTHY, **named} for i in range(count)]


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"rollouts__kl": 0.4}, "kl"),
        ({"rollouts__entropy": 0.2}, "entropy"),
        ({"rollouts__entropy": 0.0}, "entropy"),
        ({"optim__clip_fraction": 0.5}, "clip_fraction"),
        ({"optim__first_ppo_ratio": 1.1}, "first_ratio"),
        ({"rollouts__fraction_of_samples_properly_ended": 0.1}, "endless"),
        ({"rollouts__fraction_of_samples_properly_ended": 0.0}, "endless"),
        ({"rollouts__rewards_failed": 0.2}, "rewards_failed"),
        (
            {"rollouts__rewards_failed": 1.0, "rollouts__rewards": None, "rollouts__rewards_std": None},
            "rewards_failed",
        ),
        ({"optim__loss": math.nan}, "not_finite"),
    ],
)
def test_each_alarm(changes, name):
    (alarm,) = active(PPO, records(5), records(3, 20, **changes))
    assert name in [rule.name for rule in PPO]
    assert alarm.name == name and alarm.step == (20 if name == "not_finite" else 22)
    assert alarm.meaning.endswith(".") and alarm.control.endswith(".")


def test_one_step_without_any_reward_is_an_alarm_and_one_with_a_few_missing_is_none():
    (alarm,) = active(PPO, records(5), records(2, 20) + records(1, 22, rollouts__rewards_failed=1.0))
    assert (alarm.name, alarm.step) == ("rewards_failed", 22) and "100%" in alarm.meaning
    assert active(PPO, records(5), records(2, 20) + records(1, 22, rollouts__rewards_failed=0.5)) == []


HACKING = {"rollouts__rewards": 1.0, "rollouts__kl": 0.4, "rollouts__generation_length": 30.0}


def test_reward_hacking_is_more_than_a_large_kl():
    (kl, hacking) = active(PPO, records(4), records(3, 20, **HACKING))
    assert (kl.name, hacking.name) == ("kl", "reward_hacking")
    assert "25% shorter and the KL 0.40" in hacking.meaning


@pytest.mark.parametrize(
    "healthy",
    [{"rollouts__rewards": 0.2}, {"rollouts__kl": 0.1}, {"rollouts__generation_length": 35.0}],
)
def test_reward_hacking_needs_all_three(healthy):
    alarms = active(PPO, records(4), records(3, 20, **HACKING | healthy))
    assert "reward_hacking" not in [alarm.name for alarm in alarms]


# ---- overfitting ----------------------------------------------------------------------------------------------------


def supervised(*validations: float, train: float) -> list[dict]:
    """A record a step: the training loss falls evenly from 2.0 to `train`, every fifth step is validated."""
    steps = 5 * len(validations)
    found = [{"step": i, "train/loss": 2.0 + (train - 2.0) * i / steps} for i in range(1, steps + 1)]
    for i, loss in enumerate(validations):
        found[5 * i + 4]["validation/loss"] = loss
    return found


def heard(records: list[dict], limits: Thresholds | None = None, kind: str = "sft") -> list[tuple[str, int]]:
    watch = Watch(kinds.alarms_of(kind), limits or Thresholds())
    return [(alarm.name, alarm.step) for record in records for alarm in watch.check(record)]


@pytest.mark.parametrize("kind", ["sft", "rm"])
def test_validation_that_rises_while_training_falls_is_overfitting(kind):
    assert heard(supervised(2.1, 2.0, 2.05, 2.3, 2.4, train=0.03), kind=kind) == [("overfitting", 25)]


@pytest.mark.parametrize(
    ("validations", "train"),
    [
        ((2.1, 2.0, 1.9, 1.9, 1.91), 0.5),  # levels off
        ((2.1, 2.0, 2.3, 2.05, 2.3), 0.5),  # one odd validation, twice
        ((2.1, 2.0, 2.1, 2.3, 2.4), 2.2),  # training rises too: not overfitting
        ((2.0, 2.4), 0.5),  # no two after the lowest
    ],
)
def test_what_is_not_overfitting(validations, train):
    assert heard(supervised(*validations, train=train)) == []


def test_the_limit_of_overfitting_is_the_callers():
    records = supervised(2.1, 2.0, 2.05, 2.3, 2.4, train=0.03)
    assert heard(records, Thresholds(overfitting=0.3)) == []


def test_a_resumed_run_remembers_its_validations():
    records = supervised(2.1, 2.0, 2.05, 2.3, 2.4, train=0.03)
    watch = Watch(kinds.alarms_of("sft"))
    watch.remember(records[:23])
    assert [alarm.step for record in records[23:] for alarm in watch.check(record)] == [25]


def test_a_monitor_hears_of_overfitting_since_the_same_step(tmp_path):
    records = supervised(2.1, 2.0, 2.05, 2.3, 2.4, 2.5, 2.6, train=0.03)
    lines = [json.dumps({"time": 0.0} | record) + "\n" for record in records]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    (tmp_path / "run.json").write_text(json.dumps({"kind": "sft", "status": "finished"}))
    run = RunFolder(tmp_path)
    series = Series(run)
    series.poll()
    (alarm,) = Alarms(run, series, None).now()
    assert (alarm["name"], alarm["where"]) == ("overfitting", "since step 25")
    assert "rose from 2.00 at step 10 to 2.60" in alarm["meaning"]


# ---- endings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "sounds"),
    [
        (
            (0.2, 0.1, 0.2, 0.1, 0.2, 0.1, 0.2),
            [("endless", 7)],
        ),  # four records are the start, three are judged
        ((0.2, 0.1, 0.2, 0.2, 0.4, 0.4, 0.45, 0.7), []),  # on its way: a policy from SFT that learns to end
        ((0.4, 0.4, 0.4, 0.4, 0.45, 0.45, 0.45), [("endless", 7)]),  # by too little to be on its way
        ((0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.2), [("endless", 7)]),  # unlearns it
    ],
)
def test_a_policy_that_learns_to_end_is_left_alone(shares, sounds):
    ended = "train_rollouts/fraction_of_samples_properly_ended"
    run = [{"step": step, ended: share} for step, share in enumerate(shares, start=1)]
    assert heard(run, kind="ppo") == sounds


# ---- groups ---------------------------------------------------------------------------------------------------------

GRPO = kinds.alarms_of("grpo")


def test_groups_that_are_all_alike_teach_nothing():
    (alarm,) = active(GRPO, records(5), records(3, 20, rollouts__groups_alike=1.0, rollouts__rewards=0.25))
    assert (alarm.name, alarm.step) == ("groups_alike", 22)
    assert "In 100% of the groups all rewards are equal (their mean is 0.25)" in alarm.meaning


@pytest.mark.parametrize(
    "recent",
    [
        records(3, 20, rollouts__groups_alike=0.6),  # a healthy run
        records(2, 20, rollouts__groups_alike=1.0) + records(1, 22, rollouts__groups_alike=0.5),
        records(3, 20),  # a teacher's run may have groups without any reward
    ],
)
def test_groups_that_differ_now_and_then_teach(recent):
    assert active(GRPO, records(5, rollouts__groups_alike=0.5), recent) == []


def test_the_limit_of_groups_that_are_alike_is_the_callers():
    recent = records(3, 20, rollouts__groups_alike=0.95)
    assert [alarm.name for alarm in active(GRPO, records(5), recent)] == ["groups_alike"]
    assert active(GRPO, records(5), recent, Thresholds(groups_alike=0.97)) == []


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_what_an_alarm_advises_is_a_setting_of_the_kind(name):
    """The last parts of settings' names, as `initial_policy_kl_penalty`: each kind has them in a group of its own."""
    rules, settings = kinds.alarms_of(name), settings_of(name)
    odd = {"rollouts__entropy": 0.1, "rollouts__fraction_of_samples_properly_ended": 0.1} | HACKING
    alarms = active(rules, records(5), records(3, 20, **odd))
    advised = {word for alarm in alarms for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", alarm.control)}
    assert len(alarms) == 4 and {"initial_policy_kl_penalty", "missing_eos_penalty"} <= advised <= settings


def settings_of(kind: str) -> set[str]:
    """The last parts of the names of all its settings."""
    names = flatten(asdict(kinds.kinds()[kind].schema()))
    return {part for name in names for part in name.split(".")}


def test_metrics_are_all_that_the_rules_read():
    asked = set()

    class Record(dict):
        def __contains__(self, metric):
            asked.add(metric)
            return super().__contains__(metric)

    recent = records(3, 20, **HACKING, rollouts__groups_alike=1.0)
    active(GRPO, [Record(r) for r in records(4)], [Record(r) for r in recent])
    assert sorted(asked) == sorted(metrics_read(GRPO))


def test_one_odd_step_is_no_alarm():
    assert active(PPO, records(5), records(2, 20) + records(1, 22, rollouts__kl=9.0)) == []


def test_a_reward_that_rises_alone_is_success():
    assert active(PPO, records(5), records(3, 20, rollouts__rewards=3.0)) == []


def test_thresholds_are_the_callers():
    assert active(PPO, records(5), records(3, 20, rollouts__kl=0.4), Thresholds(kl=0.5)) == []


def test_stale_heartbeat():
    assert stale(100.0, 7) is None
    assert stale(130.0, 7).name == "stale_heartbeat"
    assert "130 s" in stale(130.0, 7).meaning


def test_a_watch_says_it_once_until_it_has_passed():
    watch = Watch(PPO)
    heard = []
    for record in (
        records(5)
        + records(4, 5, rollouts__entropy=0.1)
        + records(4, 9)
        + records(3, 13, rollouts__entropy=0.1)
    ):
        heard += watch.check(record)
    assert [(alarm.name, alarm.step) for alarm in heard] == [("entropy", 7), ("entropy", 15)]
    assert as_record(heard[0], time=5.0)["name"] == "entropy"


def alarms_of(path):
    watch = Watch(PPO)
    return {alarm.name for record in RunFolder(path).metrics() for alarm in watch.check(record)}


def test_a_healthy_run_is_quiet(healthy):
    assert alarms_of(healthy) == set()


def test_a_run_without_kl_penalty_is_not(gaming):
    assert {"kl", "reward_hacking", "entropy", "endless"} <= alarms_of(gaming)


def test_a_monitor_that_comes_late_says_since_when(gaming):
    run = RunFolder(gaming)
    series, watch = Series(run), Watch(PPO)
    series.poll()
    began = {}
    for record in run.metrics():
        began |= {alarm.name: f"since step {alarm.step}" for alarm in watch.check(record)}
    shown = {alarm["name"]: alarm["where"] for alarm in Alarms(run, series, Thresholds()).now()}
    assert shown and shown == {name: began[name] for name in shown}


def test_a_monitor_takes_the_limits_that_the_run_was_given(tmp_path):
    from aligner_lib.run_folder.writer import RunWriter

    config = {"exp_manager": {"alarms": {"kl": 0.5, "a_later_version_s": 1.0}}}
    with RunWriter(tmp_path, kind="ppo", config=config, seed=0, hashes={}, max_steps=9) as writer:
        writer.start(0)
        for record in records(4, rollouts__kl=0.4):
            writer.log(record["step"], {name: record[name] for name in HEALTHY})
        writer.finish("finished")
    run = RunFolder(tmp_path)
    series = Series(run)
    series.poll()
    assert Alarms(run, series, None).now() == []
    assert [alarm["name"] for alarm in Alarms(run, series, Thresholds(kl=0.3)).now()] == ["kl"]


@pytest.mark.parametrize(
    "by_program, sounding", [(0.0, {"kl", "entropy"}), (0.5, {"kl", "entropy"}), (1.0, set())]
)
def test_a_program_s_reward_may_be_won_far_from_the_reference(by_program, sounding):
    """A task with one right answer ends there: the alarms on gaming a reward model stay silent."""
    first = [{"step": step, "train_rollouts/entropy": 2.0} for step in range(1, 4)]
    now = {"train_rollouts/kl": 1.1, "train_rollouts/entropy": 0.1, alarms.BY_PROGRAM: by_program}
    recent = [{"step": step} | now for step in (18, 19, 20)]
    found = alarms.active((alarms.kl, alarms.entropy), first, recent)
    assert {alarm.name for alarm in found} == sounding


def test_a_validation_without_any_reward_is_an_alarm_until_a_later_one_has_rewards():
    def validation(share: float, step: int) -> list[dict]:
        return [record | {"val_rollouts/rewards_failed": share} for record in records(1, step)]

    (alarm,) = active(PPO, records(5), validation(1.0, 20) + records(1, 21))
    assert (alarm.name, alarm.step) == ("rewards_failed", 21) and "last validation" in alarm.meaning
    assert active(PPO, records(5), validation(1.0, 20) + validation(0.5, 21)) == []
