"""The recorded runs of notebook 10: each shows its fault, none names it, and the healthy ones show none."""

import gzip
import json
from functools import cache

import pytest

from aligner_lib.tutorial.hunt.bug_hunt import CHARTS, EVIDENCE, HEALTHY, HUNTED, first_difference, question
from aligner_lib.tutorial.hunt.faults import FAULTS
from widgets.quiz.quiz import Quiz
from widgets.recordings.recording_file import PACKED, SHIPPED
from widgets.recordings.replay import Recording

# the step by which the evidence of a fault is in its run
STEPS = dict.fromkeys(["mask_shift", "padding", "temperature", "reward_token", "learning_rate"], 1)
STEPS |= {"reward_scale": 0, "moving_reference": 2, "stale_rollouts": 2, "stop_token": 5, "kl_sign": 3}


@cache
def whole(name: str) -> Recording:
    return Recording(name, speed=float("inf"))


@pytest.fixture(scope="module")
def healthy() -> Recording:
    return whole(next(iter(HEALTHY)))


def test_every_fault_has_a_run_and_evidence():
    assert sorted(HUNTED.values()) == sorted(FAULTS) == sorted(EVIDENCE)
    assert list(HUNTED.values()) != list(FAULTS), "the numbers are in the order of the list"


@pytest.mark.parametrize("name", HUNTED)
def test_the_evidence_of_a_fault_is_in_its_run(name, healthy):
    evidence, run = EVIDENCE[HUNTED[name]], whole(name)
    step, value, _ = evidence.first(run.metrics(), healthy.metrics())
    assert step <= STEPS[HUNTED[name]]
    sentence = evidence.sentence(run.metrics(), healthy.metrics())
    assert f"At step {step} `{evidence.metric}` is {value:.3g}" in sentence
    shown = [metric for one in CHARTS for metric in ([one] if isinstance(one, str) else one)]
    assert evidence.metric in shown


@pytest.mark.parametrize("fault", EVIDENCE)
def test_no_evidence_is_found_in_a_healthy_run_with_another_seed(fault, healthy):
    other = whole(list(HEALTHY)[1])
    with pytest.raises(ValueError, match="nowhere apart"):
        EVIDENCE[fault].first(other.metrics(), healthy.metrics())


@pytest.mark.parametrize("name", HUNTED)
def test_a_recording_does_not_reveal_its_fault(name, healthy):
    file = SHIPPED / f"{name}{PACKED}"
    text = gzip.decompress(file.read_bytes()).decode()
    assert "functions" not in text and FAULTS[HUNTED[name]].title not in text
    run = json.loads(text)
    assert run["info"]["config"] == healthy.info["config"]
    assert run["info"]["name"] == name and run["info"]["status"] == "finished"
    assert file.stat().st_size < 60_000


def test_every_question_lists_all_faults_in_the_same_order(healthy):
    orders = set()
    quiz = Quiz(question(next(iter(HUNTED)), whole(next(iter(HUNTED))).metrics(), healthy.metrics()))
    assert "What is wrong with run 1?" in quiz.static_html()
    for name, fault in HUNTED.items():
        (asked,) = question(name, whole(name).metrics(), healthy.metrics()).questions
        assert {choice.text for choice in asked.choices} == {one.title for one in FAULTS.values()}
        assert asked.choices[0].text == FAULTS[fault].title
        orders.add(tuple(choice.text for choice in asked.shuffled(0)))
        assert all(choice.why.startswith("This fault would show in `") for choice in asked.choices[1:])
    assert len(orders) == 1


def test_the_first_difference_of_two_runs_is_reported(healthy):
    assert first_difference(healthy, healthy) == ""
    stale = next(name for name, fault in HUNTED.items() if fault == "kl_sign")
    assert first_difference(whole(stale), healthy).startswith("at step 2 train_rollouts/")
