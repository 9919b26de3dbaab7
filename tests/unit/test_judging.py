"""Notebook 13's judge: a learner's labels and rubric, answers without a verdict, and a run read by the gold program."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from aligner_lib.config.compose import compose, load, save, written
from aligner_lib.rollouts.environments.base import NoVerdict, Step
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.judging import served
from aligner_lib.tutorial.judging.judged_run import before_and_after, right_within_prompts
from aligner_lib.tutorial.judging.labelled import LabelledAnswer, labels_of
from aligner_lib.tutorial.judging.rubric import RUBRIC, rubric_environment, write_drawn_turns
from aligner_lib.tutorial.judging.verdicts import require_verdicts, right_by
from data.forms import instruction_in

ANSWERS = [LabelledAnswer("Why?", "So.", True, is_good) for is_good in (True, False, True)]
ASKS = 'User: Please tell me why honey is sweet. Use the word "bees".\n\nAssistant:'
GOOD, OTHER = "Honey is sweet because bees collect sugar from flowers.", 'Use the word "bees".'


def run_of(folder, *answers: tuple[str, int, int, str, float | None]) -> RunFolder:
    """A run with these (split, step, group, response, reward)."""
    names = ("split", "step", "group", "response", "reward")
    records = [
        dict(zip(names, answer)) | {"prompt": ASKS, "length": 9, "finished": True} for answer in answers
    ]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return RunFolder(folder)


@pytest.mark.parametrize(
    ("good_numbers", "labels"),
    [
        ("", [True, False, True]),  # the reader's
        ("2; 3,", [False, True, True]),
        ("none", [False, False, False]),
    ],
)
def test_labels_are_the_numbers_of_the_good_answers(good_numbers, labels):
    assert labels_of(ANSWERS, good_numbers) == labels


def test_labels_without_a_number_are_refused():
    for good_numbers in (" , ", "2 and 3"):
        with pytest.raises(
            ValueError, match="write the numbers of the good answers, such as 1, 4, 9, or none"
        ):
            labels_of(ANSWERS, good_numbers)


def test_the_policy_trains_on_the_given_rubric():
    rubric = RUBRIC | {"It's short; für #1 & <ä>!": 1, "True": 2, r"It names \\${PATH} or ${5}.": 1}
    settings = rubric_environment({"train": "prompts.jsonl"}, {"model": "m"}, rubric)
    composed = compose("grpo", [f"{key}={written(value)}" for key, value in settings.items()], "smoke")
    for config in (composed, load("grpo", save(composed))):  # of a new run, and of a run folder
        of_judge = save(config)["model"]["environments"]["judged"]["args"]["rubric"]
        assert of_judge == [[criterion, weight] for criterion, weight in rubric.items()]


def test_the_policy_trains_on_prompts_whose_forms_a_program_can_check(tmp_path):
    files = write_drawn_turns(tmp_path)
    assert list(files) == ["train", "validation"]
    for file in files.values():
        records = map(json.loads, Path(file).read_text().splitlines())
        assert all(instruction_in(record["messages"][0]["content"]) for record in records)


def test_a_second_server_and_an_interrupt_of_its_wait_leave_no_server_in_memory(monkeypatch):
    """The address of a judge is the address at which its own server says that it serves."""
    servers = []

    class Server(SimpleNamespace):
        def __init__(self, command, *, stdout, **_):
            super().__init__(runs=True, poll=lambda: None, wait=lambda *_: None)
            self.terminate = lambda: setattr(self, "runs", False)
            servers.append(self)
            if len(servers) < 3:
                address = f"http://127.0.0.1:{8000 + len(servers)}/v1"
                print(f"m is served at {address} with the token t", file=stdout, flush=True)

    def interrupt(_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Server)
    monkeypatch.setattr(served.time, "sleep", interrupt)
    monkeypatch.setenv(served.KEY_VARIABLE, "")
    for living in ([True], [False, True]):
        assert served.serve_judge("m").url == f"http://127.0.0.1:{8000 + len(living)}"
        assert [server.runs for server in servers] == living
    with pytest.raises(KeyboardInterrupt):
        served.serve_judge("m")
    assert not any(server.runs for server in servers)


def test_an_answer_without_a_verdict_shows_the_judge_s_reason():
    assert require_verdicts([Step(1.0), Step(0.5)]) == [Step(1.0), Step(0.5)]
    with pytest.raises(RuntimeError, match=r"^1 of 2 have no verdict: no connection$"):
        require_verdicts([Step(1.0), NoVerdict("judge", "no connection")])


def test_a_tie_counts_half_in_spite_of_rounding():
    assert right_by([0.9, 0.49999997, 0.1]) == [1, 0.5, 0]


def test_fewer_prompts_than_requested_are_all_drawn(tmp_path):
    answers = [("validation", step, group, GOOD, 1.0) for step in (0, 12) for group in (0, 1)]
    held_out = before_and_after(run_of(tmp_path, *answers))
    assert sorted(held_out.drawn(10)) == sorted(held_out.pairs) and len(held_out.pairs) == 2


def test_validations_without_rewards_are_refused_with_both_steps_and_a_cure(tmp_path):
    run = run_of(tmp_path, ("validation", 0, 0, GOOD, 1.0), ("validation", 12, 0, GOOD, None))
    with pytest.raises(ValueError, match="at step 0 and at step 12: read the judge's reasons"):
        before_and_after(run)


def test_only_prompts_with_a_good_and_another_response_count(tmp_path):
    """The good response wins in one prompt and ties in another: 0.75. The third prompt has no good response."""
    rewards = {0: (1.0, 0.0), 1: (0.5, 0.5)}
    answers = [("train", 1, group, GOOD, of_good) for group, (of_good, _) in rewards.items()]
    answers += [("train", 1, group, OTHER, of_other) for group, (_, of_other) in rewards.items()]
    run = run_of(tmp_path, *answers, ("train", 1, 2, OTHER, 0.9))
    assert right_within_prompts(run, 1, 1).value == 0.75
