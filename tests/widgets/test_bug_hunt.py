"""The recorded runs of notebook 10: each shows its fault, none names it, and a wrong choice tells nothing of other runs."""

import gzip
import json
from dataclasses import replace
from functools import cache
from runpy import run_path

import numpy as np
import pytest

from aligner_lib.run_folder.reader import flatten
from aligner_lib.tutorial.hunt import bug_hunt
from aligner_lib.tutorial.hunt.bug_hunt import (
    CHARTS,
    EVIDENCE,
    EXACT,
    HEALTHY,
    HEALTHY_CHOICE,
    HUNTED,
    NO_FAULT,
    NO_FIGURE,
    NO_STEP,
    RECORDED,
    SEED,
    UNLISTED_CHOICE,
    first_difference,
    question_ids,
    questions,
)
from aligner_lib.tutorial.hunt.faults import FAULTS, UNLISTED
from aligner_lib.tutorial.quiz.quiz_file import QuizFile
from widgets.recordings.recording_file import PACKED, SHIPPED
from widgets.recordings.replay import Recording
from widgets.share.page import write_quiz

# the step by which the evidence of a fault is in its run
STEPS = dict.fromkeys(["mask_shift", "padding", "temperature", "reward_token", "learning_rate"], 1)
STEPS |= {"reward_scale": 0, "moving_reference": 2, "stale_rollouts": 2, "stop_token": 5, "kl_sign": 4}
STEPS |= {UNLISTED.name: 5}
FAULTY = [name for name, hidden in HUNTED.items() if hidden.fault != NO_FAULT]


@cache
def whole(name: str) -> Recording:
    return Recording(name, speed=float("inf"))


@cache
def quiz_of(name: str) -> QuizFile:
    return questions(name, whole(name).metrics(), *(whole(usual).metrics() for usual in HEALTHY))


@pytest.fixture(scope="module")
def healthy() -> Recording:
    return whole(next(iter(HEALTHY)))


# ---- the runs --------------------------------------------------------------------------------------------------------


def test_order_and_seeds_do_not_tell_the_healthy_runs():
    assert [hidden.fault for hidden in HUNTED.values()][:10] != list(RECORDED), "the order is the list's"
    own = [hidden.fault for hidden in HUNTED.values() if hidden.seed != SEED]
    assert own.count(NO_FAULT) == len(own) / 2 == 2


@pytest.mark.parametrize("name", FAULTY)
def test_the_evidence_of_a_fault_is_in_its_run_and_in_no_healthy_run(name, healthy):
    fault = HUNTED[name].fault
    evidence, run = EVIDENCE[fault], whole(name)
    step, value, _ = evidence.first(run.metrics(), healthy.metrics())
    assert step <= STEPS[fault]
    sentence = evidence.sentence(run.metrics(), healthy.metrics())
    assert f"At step {step} `{evidence.metric}` is {value:.3g}" in sentence
    assert evidence.metric in {metric for chart in CHARTS for metric in np.atleast_1d(chart)}
    if fault == UNLISTED.name:
        return  # only a run with the same seed has no difference
    for other in (list(HEALTHY)[1], *(name for name in HUNTED if HUNTED[name].fault == NO_FAULT)):
        with pytest.raises(ValueError, match="nowhere apart"):
            evidence.first(whole(other).metrics(), healthy.metrics())


@pytest.mark.parametrize("name", HUNTED)
def test_a_recording_does_not_reveal_its_fault(name, healthy):
    text = gzip.decompress((SHIPPED / f"{name}{PACKED}").read_bytes()).decode()
    titles = [fault.title for fault in (*FAULTS.values(), UNLISTED)]
    assert "functions" not in text and not [title for title in titles if title in text]
    info = json.loads(text)["info"]
    of_run, usual = flatten(info["config"]), flatten(healthy.info["config"])
    different = {key for key in of_run.keys() | usual.keys() if of_run.get(key) != usual.get(key)}
    assert different <= {"model.seed", "critic.model.seed"}
    assert (info["name"], info["status"]) == (name, "finished")


# ---- the questions ---------------------------------------------------------------------------------------------------


def test_every_run_has_three_questions_and_all_list_the_same_faults_in_the_same_order():
    orders = set()
    for name, hidden in HUNTED.items():
        which, figure, step = quiz_of(name).questions
        assert (which.id, figure.id, step.id) == question_ids(name)
        right = {NO_FAULT: HEALTHY_CHOICE, UNLISTED.name: UNLISTED_CHOICE}
        assert which.choices[0].text == (right.get(hidden.fault) or FAULTS[hidden.fault].title)
        orders.add(tuple(choice.text for choice in which.shuffled(0)))
    assert orders == {(*sorted(FAULTS[name].title for name in RECORDED), UNLISTED_CHOICE, HEALTHY_CHOICE)}


def test_a_fault_without_a_recording_changes_neither_the_answers_nor_the_choices(monkeypatch, healthy):
    monkeypatch.setitem(FAULTS, "another", replace(UNLISTED, name="another", title="another fault"))
    hunt = run_path(bug_hunt.__file__)
    assert [run.fault for run in hunt["HUNTED"].values()] == [run.fault for run in HUNTED.values()]
    records = [whole(name).metrics() for name in ("hunt-01", *HEALTHY)]
    assert (
        hunt["questions"]("hunt-01", *records).questions[0].choices == quiz_of("hunt-01").questions[0].choices
    )


@pytest.mark.parametrize("name", HUNTED)
def test_the_right_figure_and_step_are_those_of_the_evidence(name, healthy):
    _, figure, step = quiz_of(name).questions
    right = (figure.choices[0].text, step.choices[0].text)
    if name not in FAULTY:
        assert right == (NO_FIGURE, NO_STEP)
        return
    evidence = EVIDENCE[HUNTED[name].fault]
    first, *_ = evidence.first(whole(name).metrics(), healthy.metrics())
    assert right == (f"`{evidence.metric}`", f"at step {first}")
    assert (figure.choices[-1].text, step.choices[-1].text) == (NO_FIGURE, NO_STEP)
    assert len(figure.choices) >= 3 and len(step.choices) >= 5


@pytest.mark.parametrize("name", [name for name, hidden in HUNTED.items() if hidden.seed == SEED])
def test_a_figure_that_differs_from_the_run_with_the_same_seed_is_no_wrong_choice(name, healthy):
    _, figure, step = quiz_of(name).questions
    last = int(step.choices[0].text.rpartition(" ")[2])
    for metric in (choice.text.strip("`") for choice in figure.choices[1:-1]):
        for now, usual in zip(whole(name).metrics()[: last + 1], healthy.metrics()):
            assert now.get(metric, 0.0) == pytest.approx(usual.get(metric, 0.0), abs=1e-4)


@pytest.mark.parametrize(("name", "share"), [("hunt-05", "63%"), ("hunt-06", "68%")])
def test_the_key_of_a_healthy_run_counts_the_figures_outside_of_two_healthy_runs_as_noise(name, share):
    of_fault, _, of_step = quiz_of(name).questions
    assert of_fault.choices[0].why.startswith(
        f"All exact figures are right. {share} of the other figures lie outside"
    )
    assert not [choice for choice in of_step.choices if "out of range" in choice.why]


@pytest.mark.parametrize("name", FAULTY)
def test_only_an_exact_figure_shows_a_fault_in_a_run_with_a_seed_of_its_own(name):
    hidden, evidence = HUNTED[name], EVIDENCE[HUNTED[name].fault]
    assert hidden.seed == SEED or evidence.bound or evidence.metric in EXACT
    (why,) = (choice.why for choice in quiz_of(name).questions[0].choices if choice.text == HEALTHY_CHOICE)
    assert ("has the seed of the first healthy run" in why) == (hidden.seed == SEED)


@pytest.mark.parametrize("name", HUNTED)
def test_a_wrong_choice_speaks_of_this_run_alone(name):
    """What a fault looks like would tell the answer of the run that has it."""
    of_others = {evidence.why for fault, evidence in EVIDENCE.items() if fault != HUNTED[name].fault}
    for question in quiz_of(name).questions:
        assert len({choice.text for choice in question.choices}) == len(question.choices)
        for choice in question.choices:
            assert choice.why.endswith(".") and not [why for why in of_others if why in choice.why]


def test_the_explanations_of_all_wrong_faults_are_one_sentence_that_names_no_figure(tmp_path):
    """A sentence for each fault would show in run 1 which figure reveals it, in the kernel and on the site's page."""
    titles = {fault.title for fault in FAULTS.values()}
    wrong = [choice for name in HUNTED for choice in quiz_of(name).questions[0].choices[1:]]
    (why,) = {choice.why for choice in wrong if choice.text in titles}
    first_question = write_quiz("hunt-01", tmp_path / "quiz.html").read_text().partition("hunt-01-figure")[0]
    for text in (why, first_question):
        assert not [evidence.metric for evidence in EVIDENCE.values() if f"`{evidence.metric}`" in text]


def test_the_first_difference_of_two_runs_is_reported(healthy):
    assert first_difference(healthy, healthy) == ""
    turned = next(name for name in FAULTY if HUNTED[name] == type(HUNTED[name])("kl_sign"))
    assert first_difference(whole(turned), healthy).startswith("at step 2 train_rollouts/")
