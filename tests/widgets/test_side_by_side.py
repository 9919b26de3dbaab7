"""Some prompts with all policies' answers: drawn by a seed, judged by a program, text as text."""

from types import SimpleNamespace

import pytest

from aligner_lib.tutorial.comparison.drawn_prompts import draw_prompts
from widgets import SideBySide

QUESTIONS = ("How do I sow carrots?", "How do cats sleep?", "Why is bread <soft>?")
TURNS = [f'{question} Use the word "damp".' for question in QUESTIONS]


def evaluation(*answers: str, template: str = "User: {}\n\nAssistant:") -> SimpleNamespace:
    common = {
        "step": 0,
        "split": "evaluation",
        "environment": "conversations",
        "finished": True,
        "reward": 0.5,
    }
    records = [
        common | {"group": group, "prompt": template.format(turn), "response": answer}
        for group, (turn, answer) in enumerate(zip(TURNS, answers))
    ]
    of_sums = records[0] | {"environment": "sums"}
    return SimpleNamespace(metrics_reader=None, rollouts=lambda: [*records, of_sums])


CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
OF_SFT = ("Sow carrots when the soil is damp.", "Cats sleep.", "<b>Soft bread</b> is damp inside.")
OF_PPO = ('Use the word "damp".', "Cats sleep in damp beds.", "")
RUNS = {"SFT": evaluation(*OF_SFT), "PPO": evaluation(*OF_PPO, template=CHATML)}


def test_the_draw_is_the_seed_s_and_every_policy_answers_the_same_prompts():
    reversed_runs = dict(reversed(RUNS.items()))
    drawn, again = (draw_prompts(runs, "conversations", seed=0, n=2) for runs in (RUNS, reversed_runs))
    assert [prompt.turn for prompt in drawn] == [prompt.turn for prompt in again]
    assert len(drawn) == 2 and all(list(prompt.answers) == ["SFT", "PPO"] for prompt in drawn)


def test_a_prompt_that_an_evaluation_repeats_is_drawn_once():
    records = RUNS["SFT"].rollouts()
    repeated = [record | {"group": record["group"] + 3, "response": "Again."} for record in records]
    run = SimpleNamespace(metrics_reader=None, rollouts=lambda: records + repeated)
    drawn = draw_prompts({"SFT": run}, "conversations", seed=0, n=6)
    assert sorted(prompt.answers["SFT"].text for prompt in drawn) == sorted(OF_SFT)


def test_every_part_of_the_judgement_is_marked_and_an_answer_is_text_and_never_markup():
    text = repr(SideBySide(draw_prompts(RUNS, "conversations", seed=0)))
    assert "good · reward +0.50\n            ✓ obeys ✓ ended ✓ own words" in text
    assert "not good · reward +0.50\n            ✗ obeys ✗" in text and "✗ own words" in text
    html = SideBySide(draw_prompts(RUNS, "conversations", seed=0))._repr_html_()
    assert "<b>" not in html and "&lt;b&gt;" in html and "(empty)" in html


def test_policies_without_a_common_prompt_are_refused():
    with pytest.raises(ValueError, match="SFT, PPO answered no prompt of chat in common"):
        draw_prompts(RUNS, "chat", seed=0)
