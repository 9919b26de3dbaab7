"""The recorded runs of notebook 10: each shows its fault, none names it, and a wrong choice tells nothing of other runs."""

import gzip
import json
import math
from collections import Counter
from functools import cache
from types import SimpleNamespace

import pytest

from aligner_lib.run_folder.reader import flatten
from aligner_lib.tutorial.hunt.bug_hunt import (
    CHARTS,
    EVIDENCE,
    HEALTHY,
    HEALTHY_CHOICE,
    HUNTED,
    NO_FAULT,
    NO_FIGURE,
    NO_STEP,
    SEED,
    UNLISTED_CHOICE,
    first_difference,
    question_ids,
    questions,
)
from aligner_lib.tutorial.hunt.faults import FAULTS, UNLISTED
from aligner_lib.tutorial.quiz.quiz_file import QuizFile
from widgets.quiz.quiz import Quiz
from widgets.recordings.recording_file import PACKED, SHIPPED
from widgets.recordings.replay import Recording
from widgets.share.page import write_quiz

# the step by which the evidence of a fault is in its run
STEPS = dict.fromkeys(["mask_shift", "padding", "temperature", "reward_token", "learning_rate"], 1)
STEPS |= {"reward_scale": 0, "moving_reference": 2, "stale_rollouts": 2, "stop_token": 5, "kl_sign": 4}
STEPS |= {UNLISTED.name: 20}
FAULTY = [name for name, hidden in HUNTED.items() if hidden.fault != NO_FAULT]


@cache
def whole(name: str) -> Recording:
    return Recording(name, speed=float("inf"))


@cache
def asked(name: str) -> QuizFile:
    return questions(name, whole(name).metrics(), *(whole(usual).metrics() for usual in HEALTHY))


@pytest.fixture(scope="module")
def healthy() -> Recording:
    return whole(next(iter(HEALTHY)))


# ---- the runs --------------------------------------------------------------------------------------------------------


def test_ten_faults_two_of_them_again_one_that_no_list_has_and_two_healthy_runs():
    counts = Counter(hidden.fault for hidden in HUNTED.values())
    assert counts.keys() == {*FAULTS, UNLISTED.name, NO_FAULT} and len(HUNTED) == 15
    assert sorted(counts.values()) == [1] * 9 + [2] * 3 and counts[NO_FAULT] == 2
    assert {*EVIDENCE} == {*FAULTS, UNLISTED.name} and UNLISTED.name not in FAULTS
    assert [hidden.fault for hidden in HUNTED.values()][:10] != list(FAULTS), "the order is the list's"


def test_a_seed_does_not_tell_a_healthy_run():
    own = [hidden.fault for hidden in HUNTED.values() if hidden.seed != SEED]
    assert own.count(NO_FAULT) == len(own) / 2 == 2


@pytest.mark.parametrize("name", FAULTY)
def test_the_evidence_of_a_fault_is_in_its_run(name, healthy):
    fault = HUNTED[name].fault
    evidence, run = EVIDENCE[fault], whole(name)
    step, value, _ = evidence.first(run.metrics(), healthy.metrics())
    assert step <= STEPS[fault]
    sentence = evidence.sentence(run.metrics(), healthy.metrics())
    assert f"At step {step} `{evidence.metric}` is {value:.3g}" in sentence
    assert evidence.metric in [m for one in CHARTS for m in ([one] if isinstance(one, str) else one)]


@pytest.mark.parametrize("fault", EVIDENCE)
@pytest.mark.parametrize(
    "name", [*list(HEALTHY)[1:], *(name for name in HUNTED if HUNTED[name].fault == NO_FAULT)]
)
def test_no_evidence_is_found_in_a_healthy_run_with_another_seed(fault, name, healthy):
    with pytest.raises(ValueError, match="nowhere apart"):
        EVIDENCE[fault].first(whole(name).metrics(), healthy.metrics())


@pytest.mark.parametrize("name", HUNTED)
def test_a_recording_does_not_reveal_its_fault(name, healthy):
    file = SHIPPED / f"{name}{PACKED}"
    text = gzip.decompress(file.read_bytes()).decode()
    titles = {**{fault: FAULTS[fault].title for fault in FAULTS}, UNLISTED.name: UNLISTED.title}
    assert "functions" not in text and not [title for title in titles.values() if title in text]
    run = json.loads(text)
    of_run, usual = flatten(run["info"]["config"]), flatten(healthy.info["config"])
    assert {key for key in of_run.keys() | usual.keys() if of_run.get(key) != usual.get(key)} <= {
        "model.seed",
        "critic.model.seed",
    }
    assert run["info"]["name"] == name and run["info"]["status"] == "finished"
    assert file.stat().st_size < 60_000


# ---- the questions ---------------------------------------------------------------------------------------------------


def test_every_run_has_three_questions_and_all_list_the_same_faults_in_the_same_order():
    orders = set()
    for name, hidden in HUNTED.items():
        which, figure, step = asked(name).questions
        assert (which.id, figure.id, step.id) == question_ids(name)
        right = {NO_FAULT: HEALTHY_CHOICE, UNLISTED.name: UNLISTED_CHOICE}
        assert which.choices[0].text == (right.get(hidden.fault) or FAULTS[hidden.fault].title)
        orders.add(tuple(choice.text for choice in which.shuffled(0)))
    assert orders == {(*sorted(fault.title for fault in FAULTS.values()), UNLISTED_CHOICE, HEALTHY_CHOICE)}
    assert "What is wrong with run 1?" in Quiz(asked("hunt-01")).static_html()


@pytest.mark.parametrize("name", HUNTED)
def test_the_right_figure_and_step_are_those_of_the_evidence(name, healthy):
    _, figure, step = asked(name).questions
    if name not in FAULTY:
        assert (figure.choices[0].text, step.choices[0].text) == (NO_FIGURE, NO_STEP)
        return
    evidence = EVIDENCE[HUNTED[name].fault]
    first, *_ = evidence.first(whole(name).metrics(), healthy.metrics())
    assert figure.choices[0].text == f"`{evidence.metric}`" and step.choices[0].text == f"at step {first}"
    assert len(figure.choices) >= 3 and len(step.choices) >= 5
    assert figure.choices[-1].text == NO_FIGURE and step.choices[-1].text == NO_STEP


@pytest.mark.parametrize("name", HUNTED)
def test_a_wrong_choice_speaks_of_this_run_alone(name):
    """What a fault looks like would tell the answer of the run that has it."""
    of_others = {evidence.why for fault, evidence in EVIDENCE.items() if fault != HUNTED[name].fault}
    for question in asked(name).questions:
        assert len({choice.text for choice in question.choices}) == len(question.choices)
        for choice in question.choices:
            assert choice.why.endswith(".") and not [why for why in of_others if why in choice.why]


def test_the_explanations_of_all_wrong_faults_are_one_sentence_that_names_no_figure(tmp_path):
    """A sentence for each fault would show in run 1 which figure reveals it, in the kernel and on the site's page."""
    titles = {fault.title for fault in FAULTS.values()}
    whys = {c.why for name in HUNTED for c in asked(name).questions[0].choices[1:] if c.text in titles}
    assert len(whys) == 1 and "`" not in whys.pop()
    page = write_quiz("hunt-01", tmp_path / "quiz.html").read_text()  # as the site has it
    assert not [e.metric for e in EVIDENCE.values() if f"`{e.metric}`" in page.partition("hunt-01-figure")[0]]


def test_the_first_difference_of_two_runs_is_reported(healthy):
    assert first_difference(healthy, healthy) == ""
    turned = next(name for name in FAULTY if HUNTED[name] == type(HUNTED[name])("kl_sign"))
    assert first_difference(whole(turned), healthy).startswith("at step 2 train_rollouts/")


def test_a_figure_that_only_one_run_has_is_a_difference_and_nan_twice_is_none():
    def run(**figures):
        return SimpleNamespace(metrics=lambda: [{"step": 1, **figures}])

    assert first_difference(run(a=math.nan), run(a=math.nan)) == ""
    assert first_difference(run(), run(b=2.0)) == "at step 1 b is None and 2.0"
