"""Hacks are found in the rollouts of a run, with their first step and the minutes to it."""

import json

import pytest

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.attack.hacks import first_and_last_validation, hacks

ASKS = 'User: Please tell me why honey is sweet. Use the word "bees".\n\nAssistant:'
HONEST = "Honey is sweet because {} bees collect sugar from flowers."
ECHO = 'Use the word "bees".'


def run_of(folder, steps: list[list[tuple[str, float]]]) -> RunFolder:
    """A run with these (response, reward) of each step, a minute a step."""
    with (folder / "metrics.jsonl").open("w") as metrics, (folder / "rollouts.jsonl").open("w") as rollouts:
        for step, responses in enumerate(steps):
            metrics.write(json.dumps({"step": step, "time": 1000.0 + 60 * step}) + "\n")
            for response, reward in responses:
                record = {"step": step, "split": "train", "prompt": ASKS, "response": response}
                rollouts.write(json.dumps(record | {"reward": reward, "finished": True}) + "\n")
    return RunFolder(folder)


def step_of(honest: int, echoes: int, reward: float = 1.0) -> list[tuple[str, float]]:
    """Different honest answers, and echoes with this reward."""
    return [(HONEST.format(number), 1.0) for number in range(honest)] + [(ECHO, reward)] * echoes


@pytest.mark.parametrize(
    ("steps", "first_step", "share"),
    [
        ([step_of(10, 0), step_of(9, 1), step_of(8, 2), step_of(5, 5)], 2, 0.2),
        # a rise of exactly a tenth: 0.2 + 0.1 is 0.30000000000000004
        ([step_of(8, 2), step_of(7, 3)], 1, 0.3),
    ],
)
def test_a_fault_of_paid_responses_that_becomes_frequent_is_a_hack_with_its_first_step(
    tmp_path, steps, first_step, share
):
    echo = next(hack for hack in hacks(run_of(tmp_path, steps)) if hack.part == "own_words")
    assert (echo.step, echo.minutes, echo.share, echo.example) == (first_step, first_step, share, ECHO)


def test_a_run_that_was_stopped_before_its_last_validation_has_no_change(tmp_path):
    first, last = (
        {"step": step, "val_rollouts/good": step / 24, "val_rollouts/rewards": 0.5} for step in (0, 12)
    )
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps(first) + '\n{"step": 1}\n')
    assert first_and_last_validation(RunFolder(tmp_path)) is None
    metrics.write_text(metrics.read_text() + json.dumps(last) + "\n")
    assert first_and_last_validation(RunFolder(tmp_path)) == (first, last)
    failed = json.dumps(last | {"step": 24, "val_rollouts/rewards": None})
    metrics.write_text(metrics.read_text() + failed + "\n")
    assert first_and_last_validation(RunFolder(tmp_path)) is None, "the judge failed for every response"


def test_a_step_in_which_the_run_was_killed_is_left_out(tmp_path):
    run = run_of(tmp_path, [step_of(10, 0), step_of(5, 5)])
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    assert "own_words" not in [hack.part for hack in hacks(run)]


@pytest.mark.parametrize(
    "steps",
    [
        [step_of(10, 0), step_of(5, 5, reward=0.4)],  # the judge does not pay for the echo
        [step_of(5, 5), step_of(5, 5)],  # as frequent as in the first step
        [step_of(10, 0), step_of(2, 5)],  # seven paid responses are too few
    ],
)
def test_rare_constant_or_unpaid_faults_are_no_hacks(tmp_path, steps):
    assert "own_words" not in [hack.part for hack in hacks(run_of(tmp_path, steps))]


def test_prompts_without_an_instruction_are_refused(tmp_path):
    run = run_of(tmp_path, [step_of(8, 0)])
    rollouts = tmp_path / "rollouts.jsonl"
    rollouts.write_text(rollouts.read_text().replace('Use the word \\"bees\\".', ""))
    with pytest.raises(ValueError, match=r"no instruction of data/forms\.py is in this prompt: 'Please tell"):
        hacks(run)
