"""How right alarms and `explain` are: the counting, by hand. The runs are `python -m benchmarks.alarms`."""

import json

import pytest

from aligner_lib.run_folder.reader import RunFolder
from benchmarks import alarms as bench
from benchmarks.alarms import CHOSEN_ON, STEPS, RunVerdict, Trial, alarm_figures, explained


def verdict(name, alarms=None, cause=None, off=None, seed=2, **trial) -> RunVerdict:
    common = {"status": "finished", "steps": STEPS, "better": True, "watched": ("kl", "endless")}
    return RunVerdict(
        Trial(name, "ppo", seed, **trial), alarms=alarms or {}, cause=cause, off=off or {}, **common
    )


BEYOND = "at step 3 init_policy_kl is 5.1 nats, beyond trainer.ppo.max_init_policy_kl=5.0"
RUNS = [
    verdict("healthy-1"),
    verdict("healthy-2", {"kl": 12}),
    verdict("healthy-3"),
    verdict("healthy-4"),
    verdict("kl-sign-2", {"kl": 6, "endless": 12}, "kl_sign", {"kl_penalty": 2}, fault="kl_sign"),
    verdict("padding-2", {}, "temperature", {"first_ratio": 1}, fault="padding"),
    verdict("no-leash-2", {"kl": 12}, breaks=("kl",)),
]


def test_rates_and_the_share_of_a_run_that_an_alarm_saves():
    kl, endless, any_ = alarm_figures(RUNS)
    assert (kl.false, kl.healthy, kl.heard, kl.broken, kl.due) == (1, 4, 2, 3, "1 of 1")
    assert (kl.step, kl.left) == (9, pytest.approx((18 / 24 + 12 / 24) / 2))
    assert kl.false_rate.value == 0.25 and kl.false_rate.low < 0.25 < kl.false_rate.high
    assert (endless.false, endless.heard, endless.due, endless.left) == (0, 1, "", 0.5)
    assert 0 < endless.false_rate.high < 0.61  # none of four is not never
    assert (any_.name, any_.false, any_.heard, any_.step) == ("any", 1, 2, 9)
    _, _, *rows = bench.tables(RUNS).splitlines()
    assert rows[0].startswith("| kl | 1 of 4 |") and rows[0].endswith("| 2 of 3 | 1 of 1 | 9 | 62% |")


def test_what_is_named_and_who_is_accused():
    runs = [*RUNS, verdict("healthy-5", off={"repeated": 3}), verdict("healthy-6", seed=CHOSEN_ON)]
    explanations = explained(runs)
    assert explanations["held_out"] == {
        "faults": 2,
        "named": 1,
        "wrong": {"padding-2": "temperature"},
        "healthy": 5,
        "accused": {"healthy-5": ["repeated"]},
    }
    assert (explanations["chosen_on"]["faults"], explanations["chosen_on"]["healthy"]) == (0, 1)


@pytest.mark.parametrize(
    ("status", "steps", "message", "healthy", "broken"),
    [
        ("finished", 3, "", True, True),
        ("failed", 3, BEYOND, False, True),
        ("failed", 3, "No space left on device", False, False),
        ("failed", 0, BEYOND, False, False),
        ("stopped", 3, "", False, False),
        ("running", 3, "", False, False),  # by a process that no longer exists
    ],
)
def test_only_runs_that_came_to_their_end_are_judged_again(tmp_path, status, steps, message, healthy, broken):
    info = {
        "status": status,
        "host": "another",
        "message": message,
        "heartbeat": {"time": 0.0, "step": steps},
    }
    (tmp_path / "run.json").write_text(json.dumps(info))
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in range(steps)))
    run = RunFolder(tmp_path)
    assert (bench.is_complete(run, is_healthy=True), bench.is_complete(run, is_healthy=False)) == (
        healthy,
        broken,
    )
