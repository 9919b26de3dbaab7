"""The table of notebook 00: recorded answers before and after, and those of a model at hand."""

import pytest
from run_folders import write_run

from widgets.completions.before_after import BeforeAfter


def test_the_first_held_out_prompts_are_shown_with_both_answers_and_whether_they_are_good():
    """16 of 64 answers are good before, 15 after, and more obey: see tests/data/test_good_answers.py."""
    answers = BeforeAfter("ppo-forms", live=lambda text: f"live <{text[:7]}>")
    prompts, before, after, *_ = zip(*answers.shown)
    assert prompts[0].startswith("Can you tell me how to s") and prompts[1].startswith("For a quiz, I need")
    assert {answer["step"] for answer in before} == {0}
    assert {answer["step"] for answer in after} == {answers.last_step}
    assert len(answers.pairs) == 64 and [sum(side) for side in answers.good] == [16, 15]
    page = answers._repr_html_()
    assert "live &lt;Can you&gt;" in page and "✗ To sow carrots" in page and "✓ &quot;Sow carrots" in page
    assert "live <Can you>" in repr(answers)


def test_a_recording_without_two_validations_is_refused():
    with pytest.raises(ValueError, match="before and after need two"):
        BeforeAfter("sft-forms-answers")


@pytest.mark.parametrize(
    ("validations", "fault"),
    [
        ({5: "p", 9: "p"}, "is of step 5; the answers before training are of step 0"),
        ({0: "p", 9: "q"}, "no prompt in both"),
    ],
)
def test_a_recording_with_nothing_to_compare_is_refused(tmp_path, validations, fault):
    rollouts = [
        {"step": step, "split": "validation", "prompt": prompt, "response": "r", "finished": True}
        for step, prompt in validations.items()
    ]
    with pytest.raises(ValueError, match=fault):
        BeforeAfter(write_run(tmp_path, rollouts=rollouts))
