"""Each alarm sounds on its own figure, and none on a healthy run."""

import math
import re
from dataclasses import asdict

import pytest
from run_folders import write_run

from aligner_lib.config import kinds
from aligner_lib.run_folder.alarms import (
    BY_PROGRAM,
    Thresholds,
    Watch,
    active,
    as_record,
    metrics_read,
    stale,
)
from aligner_lib.run_folder.reader import RunFolder, flatten
from aligner_lib.run_folder.writer import RunWriter
from widgets.runs.alarms import Alarms
from widgets.runs.series import Series

PPO, GRPO = kinds.alarms_of("ppo"), kinds.alarms_of("grpo")
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
ENDED = "rollouts__fraction_of_samples_properly_ended"
HACKING = {"rollouts__rewards": 1.0, "rollouts__kl": 0.4, "rollouts__generation_length": 30.0}
NO_REWARD = {"rollouts__rewards_failed": 1.0, "rollouts__rewards": None, "rollouts__rewards_std": None}


def records(count=3, start=0, **changes):
    named = {f"train_{name.replace('__', '/')}": value for name, value in changes.items()}
    return [{"step": start + i, "time": 0.0, **HEALTHY, **named} for i in range(count)]


def last_of_three(**changes) -> list[dict]:
    """Three records of which only the last one is changed."""
    return records(2, 20) + records(1, 22, **changes)


def alike(share: float, count=3, start=20) -> list[dict]:
    return records(count, start, rollouts__groups_alike=share)


def validated_without_rewards(share: float, step: int) -> list[dict]:
    return [record | {"val_rollouts/rewards_failed": share} for record in records(1, step)]


@pytest.mark.parametrize(
    ("recent", "names"),
    [
        (records(3, 20, rollouts__kl=0.4), ["kl"]),
        (records(3, 20, rollouts__entropy=0.0), ["entropy"]),
        (records(3, 20, optim__clip_fraction=0.5), ["clip_fraction"]),
        (records(3, 20, optim__first_ppo_ratio=1.1), ["first_ratio"]),
        (records(3, 20, **{ENDED: 0.0}), ["endless"]),
        (records(3, 20, rollouts__rewards_failed=0.2), ["rewards_failed"]),
        (records(3, 20, **NO_REWARD), ["rewards_failed"]),
        (last_of_three(rollouts__rewards_failed=1.0), ["rewards_failed"]),  # one step without any reward
        (last_of_three(rollouts__rewards_failed=0.5), []),
        (validated_without_rewards(1.0, 21) + records(1, 22), ["rewards_failed"]),
        (validated_without_rewards(1.0, 21) + validated_without_rewards(0.5, 22), []),
        (last_of_three(rollouts__kl=9.0), []),  # one odd step
        (records(3, 20, rollouts__rewards=3.0), []),  # a reward that rises alone is success
        (records(3, 20, **HACKING), ["kl", "reward_hacking"]),
        (records(3, 20, **HACKING | {"rollouts__rewards": 0.2}), ["kl"]),
        (records(3, 20, **HACKING | {"rollouts__kl": 0.1}), []),
        (records(3, 20, **HACKING | {"rollouts__generation_length": 35.0}), ["kl"]),
    ],
)
def test_each_alarm_sounds_on_its_own_figures(recent, names):
    alarms = active(PPO, records(5), recent)
    assert [(alarm.name, alarm.step) for alarm in alarms] == [(name, 22) for name in names]


def test_a_loss_that_is_no_number_is_an_alarm_at_its_first_step():
    (alarm,) = active(PPO, records(5), records(3, 20, optim__loss=math.nan))
    assert (alarm.name, alarm.step) == ("not_finite", 20)


def test_the_meaning_of_an_alarm_has_its_figures():
    _, hacking = active(PPO, records(4), records(3, 20, **HACKING))
    assert "25% shorter and the KL 0.40" in hacking.meaning
    (failed,) = active(PPO, records(5), last_of_three(rollouts__rewards_failed=1.0))
    assert "100%" in failed.meaning
    (groups,) = active(GRPO, records(5), records(3, 20, rollouts__groups_alike=1.0, rollouts__rewards=0.25))
    assert "In 100% of the groups all rewards are equal (their mean is 0.25)" in groups.meaning


@pytest.mark.parametrize(
    ("recent", "limits", "sounds"),
    [
        (alike(1.0), Thresholds(), True),
        (alike(0.95), Thresholds(groups_alike=0.97), False),
        (alike(0.6), Thresholds(), False),  # a healthy run
        (alike(1.0, 2) + alike(0.5, 1, 22), Thresholds(), False),
        (records(3, 20), Thresholds(), False),  # a teacher's run may have groups without any reward
    ],
)
def test_groups_that_are_all_alike_are_an_alarm(recent, limits, sounds):
    alarms = active(GRPO, records(5, rollouts__groups_alike=0.5), recent, limits)
    assert [alarm.name for alarm in alarms] == ["groups_alike"] * sounds


@pytest.mark.parametrize(("by_program", "names"), [(0.5, {"kl", "entropy"}), (1.0, set())])
def test_a_program_s_reward_may_be_won_far_from_the_reference(by_program, names):
    """A task with one right answer ends there: the alarms on gaming a reward model stay silent."""
    now = {"train_rollouts/kl": 1.1, "train_rollouts/entropy": 0.1, BY_PROGRAM: by_program}
    alarms = active(PPO, records(4), [record | now for record in records(3, 18)])
    assert {alarm.name for alarm in alarms} == names


def test_thresholds_are_the_callers():
    recent = records(3, 20, rollouts__kl=0.4)
    assert active(PPO, records(5), recent, Thresholds(kl=0.5)) == []
    (alarm,) = active(PPO, records(5), recent, Thresholds(kl=0.3))
    assert "0.40 nats a token" in alarm.meaning
    assert stale(100.0, 7) is None
    assert stale(130.0, 7).name == "stale_heartbeat" and "over 120 s" in stale(130.0, 7).meaning
    assert stale(130.0, 7) == stale(131.0, 7), (
        "a screen reader would read a text that counts seconds every second"
    )


# ---- overfitting and endings, record by record -----------------------------------------------------------------------


def supervised(*validations: float, train: float) -> list[dict]:
    """A record a step: the training loss falls evenly from 2.0 to `train`, every fifth step is validated."""
    steps = 5 * len(validations)
    records = [{"step": i, "train/loss": 2.0 + (train - 2.0) * i / steps} for i in range(1, steps + 1)]
    for i, loss in enumerate(validations):
        records[5 * i + 4]["validation/loss"] = loss
    return records


def heard(records: list[dict], limits: Thresholds | None = None, kind: str = "sft") -> list[tuple[str, int]]:
    watch = Watch(kinds.alarms_of(kind), limits or Thresholds())
    return [(alarm.name, alarm.step) for record in records for alarm in watch.check(record)]


OVERFITTING = supervised(2.1, 2.0, 2.05, 2.3, 2.4, train=0.03)


@pytest.mark.parametrize("kind", ["sft", "rm"])
def test_validation_that_rises_while_training_falls_is_overfitting(kind):
    assert heard(OVERFITTING, kind=kind) == [("overfitting", 25)]
    assert heard(OVERFITTING, Thresholds(overfitting=0.3), kind=kind) == []


@pytest.mark.parametrize(
    ("validations", "train"),
    [
        ((2.1, 2.0, 1.9, 1.9, 1.91), 0.5),  # levels off
        ((2.1, 2.0, 2.3, 2.05, 2.3), 0.5),  # one odd validation, twice
        ((2.1, 2.0, 2.1, 2.3, 2.4), 2.2),  # training rises too: not overfitting
        ((2.0, 2.4), 0.5),  # no two after the lowest
        ((-2.1, -2.5, -2.4, -2.3, -2.4), -3.0),  # robust DPO: 4 and 8 % above the lowest
    ],
)
def test_what_is_not_overfitting(validations, train):
    assert heard(supervised(*validations, train=train)) == []


def test_a_single_batch_with_a_high_loss_is_no_fall_of_the_training_loss():
    run = supervised(2.1, 2.0, 2.3, 2.4, train=2.0)
    run[9]["train/loss"] = 3.0  # at the lowest validation; the mean of its five steps is 2.2
    assert heard(run) == []


def test_a_resumed_run_remembers_its_validations():
    watch = Watch(kinds.alarms_of("sft"))
    watch.remember(OVERFITTING[:23])
    assert [alarm.step for record in OVERFITTING[23:] for alarm in watch.check(record)] == [25]


@pytest.mark.parametrize(
    ("shares", "sounds"),
    [
        # four records are the start, three are judged
        ((0.2, 0.1, 0.2, 0.1, 0.2, 0.1, 0.2), [("endless", 7)]),
        ((0.2, 0.1, 0.2, 0.2, 0.4, 0.4, 0.45, 0.7), []),  # on its way: a policy from SFT that learns to end
        ((0.4, 0.4, 0.4, 0.4, 0.45, 0.45, 0.45), [("endless", 7)]),  # by too little to be on its way
        ((0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.2), [("endless", 7)]),  # unlearns it
    ],
)
def test_a_policy_that_learns_to_end_is_left_alone(shares, sounds):
    ended = "train_rollouts/fraction_of_samples_properly_ended"
    assert heard([{"step": i, ended: share} for i, share in enumerate(shares, 1)], kind="ppo") == sounds


def test_a_watch_reports_an_alarm_once_until_it_has_passed():
    odd = {"rollouts__entropy": 0.1}
    run = records(5) + records(4, 5, **odd) + records(4, 9) + records(3, 13, **odd)
    assert heard(run, kind="ppo") == [("entropy", 7), ("entropy", 15)]
    assert as_record(active(PPO, records(5), records(3, 5, **odd))[0], time=5.0)["name"] == "entropy"


# ---- settings and metrics that rules name ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_what_an_alarm_advises_is_a_setting_of_the_kind(kind):
    """The last parts of settings' names, as `initial_policy_kl_penalty`: each kind has them in a group of its own."""
    settings = {part for name in flatten(asdict(kinds.kinds()[kind].schema())) for part in name.split(".")}
    recent = records(3, 20, **{"rollouts__entropy": 0.1, ENDED: 0.1} | HACKING)
    alarms = active(kinds.alarms_of(kind), records(5), recent)
    advised = {word for alarm in alarms for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", alarm.control)}
    assert len(alarms) == 4 and {"initial_policy_kl_penalty", "missing_eos_penalty"} <= advised <= settings


@pytest.mark.parametrize(
    ("coefficient", "advice"),
    [
        ({"rollouts__kl_coef": 0.0}, "Raise initial_policy_kl_penalty, or "),
        ({}, "Set model.grpo.kl=k3 and initial_policy_kl_penalty (this objective has no KL), or "),
    ],
)
def test_an_objective_without_a_kl_is_advised_to_add_one(coefficient, advice):
    (alarm,) = active(GRPO, records(5), records(3, 20, rollouts__kl=0.4, **coefficient))
    assert alarm.control == f"{advice}lower the actor's learning rate."


def test_metrics_are_all_that_the_rules_read():
    read = set()

    class Record(dict):
        def __contains__(self, metric):
            read.add(metric)
            return super().__contains__(metric)

    recent = records(3, 20, **HACKING, rollouts__groups_alike=1.0)
    active(GRPO, [Record(r) for r in records(4)], [Record(r) for r in recent])
    assert sorted(read) == sorted(metrics_read(GRPO))


# ---- whole runs, and a monitor that comes late ------------------------------------------------------------------------


def alarms_of(path) -> dict[str, int]:
    """The alarms of a run, and where each one began last."""
    return dict(heard(RunFolder(path).metrics(), kind="ppo"))


def monitored(path, limits: Thresholds | None = None) -> list[dict]:
    """What a monitor that opens the run now shows."""
    run = RunFolder(path)
    series = Series(run)
    series.poll()
    return Alarms(run, series, limits).now()


def test_a_healthy_run_is_quiet(healthy):
    assert alarms_of(healthy) == {}


def test_a_run_without_kl_penalty_is_not(gaming):
    began = alarms_of(gaming)
    assert {"kl", "reward_hacking", "entropy", "endless"} <= began.keys()
    shown = {alarm["name"]: alarm["where"] for alarm in monitored(gaming, Thresholds())}
    assert shown and shown == {name: f"since step {began[name]}" for name in shown}


def test_a_monitor_dates_an_alarm_of_the_first_step_as_the_run_does(tmp_path):
    run = write_run(tmp_path, {"train_optim/first_ppo_ratio": [0.9] * 6}, kind="ppo")
    assert [alarm["where"] for alarm in monitored(run)] == ["since step 1"]
    assert alarms_of(run) == {"first_ratio": 1}


def test_a_monitor_hears_of_overfitting_since_the_same_step(tmp_path):
    run = supervised(2.1, 2.0, 2.05, 2.3, 2.4, 2.5, 2.6, train=0.03)
    metrics = {name: [record.get(name) for record in run] for name in ("train/loss", "validation/loss")}
    (alarm,) = monitored(write_run(tmp_path, metrics))
    assert (alarm["name"], alarm["where"]) == ("overfitting", "since step 25")
    assert "rose from 2.00 at step 10 to 2.60" in alarm["meaning"]
    assert "fell from 1.55 to 0.14" in alarm["meaning"], "at steps 8 and 33, the middle ones of five"


@pytest.mark.parametrize("odd", [math.nan, 1.7e308])
def test_a_nan_of_a_step_that_a_resumed_run_repeats_and_a_sum_without_a_float_are_no_alarm(tmp_path, odd):
    lines = [{"step": step, "time": step, "train/loss": loss} for step, loss in enumerate([1.0, odd, odd])]
    if math.isnan(odd):
        lines += [line | {"train/loss": 1.0} for line in lines[1:]]
    assert monitored(write_run(tmp_path, lines)) == []


def test_a_monitor_takes_the_limits_that_the_run_was_given(tmp_path):
    config = {"exp_manager": {"alarms": {"kl": 0.5, "a_later_version_s": 1.0}}}
    with RunWriter(tmp_path, kind="ppo", config=config, seed=0, hashes={}, max_steps=9) as writer:
        writer.start(0)
        for record in records(4, rollouts__kl=0.4):
            writer.log(record["step"], {name: record[name] for name in HEALTHY})
        writer.finish("finished")
    assert monitored(tmp_path) == []
    assert [alarm["name"] for alarm in monitored(tmp_path, Thresholds(kl=0.3))] == ["kl"]
