"""Static tables: what a model writes is text."""

import pytest

from widgets import compare_completions, show_completions


def test_markup_is_text(healthy):
    html = show_completions(healthy, n=10)._repr_html_()
    assert "<script" not in html and "<img" not in html
    assert "&lt;script&gt;window.stolen" in html


def test_sorted_by_reward(healthy):
    rewards = [row[2] for row in show_completions(healthy, sort="reward").rows]
    assert rewards == sorted(rewards, reverse=True) and len(rewards) == 4


def test_the_same_prompts_side_by_side(healthy, gaming):
    table = compare_completions(healthy, gaming, sort="gain")
    assert table.columns == ["prompt", "healthy", "reward", "gaming", "reward"]
    gains = [row[4] - row[2] for row in table.rows]
    assert gains == sorted(gains, reverse=True) and len(gains) == 4


def test_a_step_without_completions(healthy):
    with pytest.raises(ValueError, match="no completions of step 99; it has those of"):
        show_completions(healthy, step=99)


def test_an_unknown_order(healthy):
    with pytest.raises(ValueError, match="completions sort by reward, worst, kl, length"):
        show_completions(healthy, sort="size")
