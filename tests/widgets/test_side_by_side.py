"""Some prompts with all policies' answers: drawn by a seed, judged by a program, text as text."""

from types import SimpleNamespace

import pytest

from widgets import SideBySide

TURNS = [
    f'{question} Use the word "damp".'
    for question in ("How do I sow carrots?", "How do cats sleep?", "Why is bread <soft>?")
]


def evaluation(*answers: str, template: str = "User: {}\n\nAssistant:") -> SimpleNamespace:
    records = [
        {
            "step": 0,
            "split": "evaluation",
            "environment": "conversations",
            "group": group,
            "prompt": template.format(turn),
            "response": answer,
            "finished": True,
            "reward": 0.5,
        }
        for group, (turn, answer) in enumerate(zip(TURNS, answers))
    ]
    of_sums = records[0] | {"environment": "sums"}
    return SimpleNamespace(metrics_reader=None, rollouts=lambda: [*records, of_sums])


RUNS = {
    "SFT": evaluation(
        "Sow carrots when the soil is damp.", "Cats sleep.", "<b>Soft bread</b> is damp inside."
    ),
    "PPO": evaluation(
        'Use the word "damp".',
        "Cats sleep in damp beds.",
        "",
        template="<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    ),
}


def test_the_draw_is_the_seed_s_and_every_policy_answers_the_same_prompts():
    shown = SideBySide(RUNS, "conversations", seed=0, n=2)
    assert shown.prompts == SideBySide(dict(reversed(RUNS.items())), "conversations", seed=0, n=2).prompts
    assert len(shown.prompts) == 2 and all(
        list(answers) == ["SFT", "PPO"] for answers in shown.shown.values()
    )


def test_a_good_answer_is_marked_and_the_parts_that_another_misses_are_named():
    text = repr(SideBySide(RUNS, "conversations", seed=0))
    assert "✓ good · reward +0.50" in text and "✗ obeys" in text and "own words" in text


def test_an_answer_is_text_and_never_markup():
    html = SideBySide(RUNS, "conversations", seed=0)._repr_html_()
    assert "<b>" not in html and "&lt;b&gt;" in html and "(empty)" in html


def test_policies_without_a_common_prompt_are_refused():
    with pytest.raises(ValueError, match="SFT, PPO answered no prompt of chat in common"):
        SideBySide(RUNS, "chat", seed=0)
