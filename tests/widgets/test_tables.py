"""Static tables: what a model writes is text."""

import pytest
from run_folders import write_run

from widgets import Chat, Pairs, compare_completions, show_completions
from widgets.frontend.table import Table


def test_a_table_is_sorted_and_markup_is_text(healthy):
    html = show_completions(healthy, n=10)._repr_html_()
    assert "<script" not in html and "<img" not in html
    assert "&lt;script&gt;window.stolen" in html
    rewards = [row[2] for row in show_completions(healthy, sort="reward").rows]
    assert rewards == sorted(rewards, reverse=True) and len(rewards) == 4


def test_held_out_prompts_are_shown_where_the_run_has_any(tmp_path):
    record = {"step": 1, "prompt": "p", "response": "r", "reward": 0.5, "length": 3, "finished": True}
    lines = [record | {"split": "train", "kl": 0.1}, record | {"split": "validation", "response": "held out"}]
    table = show_completions(write_run(tmp_path, rollouts=lines))
    assert table.rows == [["p", "held out", 0.5, 3]]
    assert table.columns == ["prompt", "response", "reward", "tokens"], "no empty column for a KL"
    assert show_completions(tmp_path, split="train").columns[3] == "KL"
    write_run(tmp_path, rollouts=[*lines, record | {"step": 2, "split": "train", "response": "trained"}])
    assert [show_completions(tmp_path, step=step).rows[0][1] for step in (2, None)] == ["trained", "held out"]
    with pytest.raises(ValueError, match=r"no validation completions of step 2, only of \[1\]"):
        show_completions(tmp_path, step=2, split="validation")


def test_the_same_prompts_side_by_side(healthy, gaming):
    table = compare_completions(healthy, gaming, sort="gain")
    assert table.columns == ["prompt", "healthy", "reward", "gaming", "reward"]
    gains = [row[4] - row[2] for row in table.rows]
    assert gains == sorted(gains, reverse=True) and len(gains) == 4


def test_a_response_without_a_reward_is_last_and_says_why(tmp_path):
    """An environment failed in both runs, each time for another prompt."""
    for name, rewards in {"a": [0.5, None, 1.0], "b": [0.7, 0.2, None]}.items():
        records = [
            {"step": 1, "prompt": f"p{i}", "response": "r", "reward": reward}
            | ({"failure": "not_finite"} if reward is None else {})
            for i, reward in enumerate(rewards)
        ]
        write_run(tmp_path / name, rollouts=records)
    for sort, first in {"reward": 1.0, "worst": 0.5}.items():
        rewards = [row[2] for row in show_completions(tmp_path / "a", sort=sort).rows]
        assert (rewards[0], rewards[-1]) == (first, "failed: not finite")
    gains = [row[0] for row in compare_completions(tmp_path / "a", tmp_path / "b", sort="gain").rows]
    assert gains == ["p0", "p1", "p2"]


def test_a_random_order_is_the_same_each_time(healthy):
    for table in (show_completions, lambda run, sort: compare_completions(run, run, sort=sort)):
        in_file, drawn, again = (table(healthy, sort=sort).rows for sort in ("", "random", "random"))
        assert drawn == again != in_file and len(drawn) == len(in_file)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": 99}, "no completions of step 99, only of"),
        ({"sort": "size"}, "completions sort by reward, worst, kl, length"),
    ],
)
def test_a_step_or_an_order_that_is_not_there_is_refused(healthy, options, words):
    with pytest.raises(ValueError, match=words):
        show_completions(healthy, **options)


# ---- widgets where no widget shows ----------------------------------------------------------------------------------


def html_of(widget) -> str:
    return widget._repr_mimebundle_()[0]["text/html"]


def test_pairs_leave_a_table_of_their_page():
    pair = {"prompt": "Why <b>?", "chosen": "Since.", "rejected": "No."}
    plain, scored = html_of(Pairs([pair] * 7)), html_of(Pairs([pair], [(1.5, 0.25)]))
    assert "Pairs 1 to 5 of 7" in plain and plain.count("Why &lt;b&gt;?") == 5 and ">margin<" not in plain
    assert ">margin<" in scored and "1.250" in scored
    assert "Pairs none" in html_of(Pairs([]))


def test_a_small_number_keeps_its_digits():
    html = Table("", ["a"], [[5e-7], [-0.0123], [0.0], [1.25], [float("nan")]])._repr_html_()
    assert all(f">{text}<" in html for text in ("5e-07", "-0.0123", "0.000", "1.250", "nan"))


def test_a_chat_leaves_what_was_said_and_a_model_that_fails_does_not_silence_the_others():
    chat = Chat({"kind": lambda prompt: prompt + "!", "broken": lambda prompt: 1 / 0}, lambda *_: 0.5)
    kind, broken = chat.ask("Well")
    assert kind == {"text": "Well!", "reward": 0.5, "error": ""}
    assert broken["error"] == "ZeroDivisionError: division by zero" and not chat.busy
    assert chat.table().rows == [["Well", "Well!", 0.5, "ZeroDivisionError: division by zero", None]]
    assert "Well!" in html_of(chat)
    badly_scored = Chat({"kind": str.upper}, lambda *_: 1 / 0)
    badly_scored.ask("Well")
    assert badly_scored.table().rows == [
        ["Well", "WELL\n\nno reward: ZeroDivisionError: division by zero", None]
    ]
    unscored = Chat({"kind": str.upper})
    unscored.ask("Well")
    assert (unscored.table().columns, unscored.table().rows) == (["prompt", "kind"], [["Well", "WELL"]])


class AnswersTogether:
    """A model that answers all prompts in a single call, except prompts that it can't answer."""

    def __init__(self):
        self.calls: list[list[str]] = []

    def of_all(self, prompts: list[str]) -> list[str]:
        self.calls.append(list(prompts))
        if "too long" in prompts:
            raise ValueError("too long for the model")
        return [prompt.upper() for prompt in prompts]


def test_a_chat_asks_several_prompts_at_once_and_one_that_fails_fails_alone():
    model = AnswersTogether()
    chat = Chat({"together": model, "alone": str.lower}, score=lambda prompt, answer: len(prompt))
    answers = chat.ask_all(["Well", "Good"])
    assert [[answer["text"] for answer in turn] for turn in answers] == [["WELL", "well"], ["GOOD", "good"]]
    assert model.calls == [["Well", "Good"]]
    chat.ask_all(["Bad", "too long"])
    assert chat.table().rows == [
        ["Well", "WELL", 4.0, "well", 4.0],
        ["Good", "GOOD", 4.0, "good", 4.0],
        ["Bad", "BAD", 3.0, "bad", 3.0],
        ["too long", "ValueError: too long for the model", None, "too long", 8.0],
    ]
    assert not chat.busy
