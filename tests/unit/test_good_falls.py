"""The alarm where the share of good responses falls while the reward rises."""

import math
import random

import pytest

from aligner_lib.config.kinds import alarms_of
from aligner_lib.run_folder import alarms
from aligner_lib.run_folder.alarms import Thresholds, Watch
from aligner_lib.run_folder.good_fall import good_fall
from widgets.recordings.replay import Recording


def step(number: int, good: int, reward: float = 0.0, responses: int = 32, split="train_rollouts", **more):
    figures = {"good": good / responses, "rollout_size": responses, "rewards": reward, "rewards_std": 2.0}
    return {"step": number} | {f"{split}/{name}": value for name, value in (figures | more).items()}


def validation(number: int, good: int, reward: float = 0.0) -> dict:
    return step(number, good, reward, 64, "val_rollouts")


FIRST = step(1, 8)
LAST = [step(7, 0, 0.5), step(8, 0, 1.0), step(9, 0, 1.5)]


def test_a_fall_is_counted_in_standard_errors():
    """8 of 32, then 0 of 96. If the policy were the same, 8 of 128 good ones would give the first step 2 of its 32."""
    change = good_fall([FIRST], LAST)
    assert change.fall == 0.25 and change.rise == 0.5  # a reward of 1 with a deviation of 2
    assert change.errors == pytest.approx((8 - 2) / math.sqrt(1 / 16 * 15 / 16 * (32 * 96 / 128)))


def test_a_validation_is_compared_with_the_first_validation():
    """16 of 64, then 0 of 64: 8 more than expected, beside the 6 of the training steps."""
    last = [*LAST[:2], LAST[2] | validation(9, 0, 1.0)]
    change = good_fall([validation(0, 16), FIRST], last)
    assert change.fall == 0.25 and change.rise == 0.5
    variance = 1 / 16 * 15 / 16 * 24 + 1 / 8 * 7 / 8 * 32
    assert change.errors == pytest.approx((6 + 8) / math.sqrt(variance))


def test_of_several_validations_on_the_same_prompts_the_last_one_counts():
    last = [*LAST[:2], LAST[2] | validation(9, 4)]
    with_an_earlier_one = [LAST[0], LAST[1] | validation(8, 60), LAST[2] | validation(9, 4)]
    first = [validation(0, 16), FIRST]
    assert good_fall(first, last) == good_fall(first, with_an_earlier_one)


def test_responses_to_the_same_prompt_count_less():
    grouped = [record | {"train_rollouts/prompts": 8} for record in (FIRST, *LAST)]  # four to each prompt
    errors = good_fall([FIRST], LAST).errors
    assert good_fall(grouped[:1], grouped[1:]).errors == pytest.approx(errors / math.sqrt(1 + 3 * 0.25))


@pytest.mark.parametrize(
    ("first", "recent"),
    [
        ([FIRST], LAST[:2]),  # two steps only
        ([FIRST], [FIRST, *LAST[:2]]),  # the first step is among the last
        ([{"step": 1, "train_rollouts/rewards": 0.0}], LAST),  # a run of before the share was logged
        ([step(1, 8, None)], LAST),  # a first step without rewards
        ([step(1, 8, rewards_std=0.0)], LAST),  # equal rewards
        ([], []),
    ],
)
def test_a_run_without_the_figures_has_no_fall(first, recent):
    assert good_fall(first, recent) is None


@pytest.mark.parametrize(
    ("counts", "reward", "sounds"),
    [
        ((8, 1, 0, 1), 1.0, True),
        ((8, 1, 0, 1), 0.4, False),  # a reward that rises by a fifth of its deviation
        ((8, 1, 0, 1), -1.0, False),  # the reward falls as well: no reward hacking
        ((8, 4, 3, 4), 1.0, False),  # by half, which 32 responses may do by chance
        ((0, 0, 0, 0), 1.0, False),  # nothing to lose
    ],
)
def test_the_alarm_sounds_where_good_falls_and_the_reward_rises(counts, reward, sounds):
    first, *last = [step(at, good, reward * (at > 1)) for at, good in enumerate(counts, 1)]
    for kind in ("ppo", "grpo"):
        active = alarms.active(alarms_of(kind), [first], last)
        assert [alarm.name for alarm in active] == ["good_falls"] * sounds
    if sounds:
        (alarm,) = active
        assert "rose by 0.50 of its standard deviation" in alarm.meaning and "fell by 0.23" in alarm.meaning
        assert "Train the reward model" in alarm.control and "initial_policy_kl_penalty" in alarm.control


def test_a_small_fall_of_very_many_responses_is_no_alarm():
    first, last = [step(1, 5000, 0.0, 20_000)], [step(at, 4400, 1.0, 20_000) for at in (2, 3, 4)]
    assert good_fall(first, last).errors > 3.5
    assert alarms.active(alarms_of("ppo"), first, last) == []
    assert alarms.active(alarms_of("ppo"), first, last, Thresholds(good_fall=0.02))


def test_chance_alone_sounds_in_less_than_2_of_100_runs():
    """16 steps of 32 responses and validations of 64, all of one policy, whose reward rises throughout."""
    draw, heard, runs, share = random.Random(1), 0, 1000, 0.25

    def count(responses: int) -> int:
        return sum(draw.random() < share for _ in range(responses))

    for _ in range(runs):
        watch = Watch((alarms.good_falls,))
        records = [validation(0, count(64)), *(step(at, count(32), float(at)) for at in range(1, 17))]
        for at in (8, 16):
            records[at] |= validation(at, count(64), float(at))
        heard += any([watch.check(record) for record in records])
    assert heard < 0.02 * runs


@pytest.mark.parametrize(
    ("recording", "fallen", "alarm"),
    [("ppo-forms", None, None), ("ppo-forms-both", 3, 4), ("ppo-forms-high-lr", 3, 4)],
)
def test_the_alarm_sounds_a_step_after_good_has_fallen_by_a_tenth_at_most(recording, fallen, alarm):
    run = Recording(recording, speed=float("inf"))
    good = {record["step"]: record["train_rollouts/good"] for record in run.metrics() if record["step"]}
    lasting = [at for at in good if all(later <= good[1] - 0.1 for s, later in good.items() if s >= at)]
    assert min(lasting, default=None) == fallen
    first_alarms = {alarm["name"]: alarm["step"] for alarm in reversed(run.alarms())}
    assert first_alarms.get("good_falls") == alarm
    assert alarm is None or alarm < min(step for name, step in first_alarms.items() if name != "good_falls")
