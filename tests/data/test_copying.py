"""The share of a response that is copied from its prompt."""

from statistics import fmean

import pytest

from aligner_lib.config.kinds import alarms_of
from aligner_lib.run_folder.alarms import active
from data.copying import copied_share
from widgets.recordings.replay import Recording

PROMPT = 'How do I sow carrots? The word "fact" has to appear in your answer.'


@pytest.mark.parametrize(
    ("response", "share"),
    [
        ("THE WORD FACT, has to appear!", 1.0),  # neither case nor punctuation counts
        ("Sow them in May. In fact, the word fact is in here.", 0.0),  # three words in a row at most
        ("Fine: the word fact has to appear.", 6 / 7),
        ("In May, do I sow carrots? Yes.", 4 / 7),
        ("Yes, how do I sow carrots? The word.", 7 / 8),  # overlapping phrases count each word once
        ("", 0.0),
    ],
)
def test_words_in_four_or_more_words_in_a_row_of_the_prompt_count_as_copied(response, share):
    assert copied_share(PROMPT, response) == pytest.approx(share)


@pytest.mark.parametrize(
    ("at_first", "now", "sounds"),
    [
        ([0.16, 0.15, 0.12, 0.29], [0.29, 0.31, 0.44], True),  # the recorded run of notebook 05's Break it
        ([0.16, 0.15, 0.18, 0.14], [0.21, 0.21, 0.13], False),  # the recorded healthy run
        ([0.40, 0.41, 0.39, 0.40], [0.45, 0.46, 0.44], False),  # a task whose answers quote the prompt
        ([0.16, 0.15, 0.12, 0.29], [0.31, 0.44], False),  # two steps only
        ([], [0.5, 0.5, 0.5], False),  # a run of before the share was logged
    ],
)
def test_the_alarm_sounds_where_the_share_is_high_and_has_risen(at_first, now, sounds):
    start, last = (
        [{"step": 1, "train_rollouts/copied_from_prompt": share} for share in x] for x in (at_first, now)
    )
    for kind in ("ppo", "grpo"):
        names = [alarm.name for alarm in active(alarms_of(kind), start, last)]
        assert names == ["copies_prompt"] * sounds


@pytest.mark.parametrize(
    ("recording", "step"), [("ppo-forms", None), ("ppo-forms-both", 6), ("ppo-forms-high-lr", 9)]
)
def test_the_alarm_sounds_in_the_recorded_runs_whose_responses_are_echoes(recording, step):
    run = Recording(recording, speed=float("inf"))
    assert {a["name"]: a["step"] for a in run.alarms()}.get("copies_prompt") == step
    for record in run.metrics():
        rows = [r for r in run.rollouts() if (r["step"], r["split"]) == (record["step"], "train")]
        if rows:
            share = fmean(copied_share(row["prompt"], row["response"]) for row in rows)
            assert record["train_rollouts/copied_from_prompt"] == pytest.approx(share, abs=1e-6)
