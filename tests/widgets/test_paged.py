"""Completions, pairs and chat without a browser: what is found for what is asked."""

import json

import pytest

from widgets import Chat, Completions, JobPanel, Pairs

PAIRS = [{"prompt": f"p{i}", "chosen": "c" * (i + 1), "rejected": "r"} for i in range(7)]


@pytest.fixture
def completions(healthy):
    widget = Completions(healthy)
    yield widget
    widget.close()


def test_the_latest_step_is_shown_first(completions):
    assert completions.page["step"] == 60 and completions.page["latest"]
    assert [row["step"] for row in completions.page["rows"]] == [60] * 4
    assert "tokens" not in completions.page["rows"][0], "tokens travel only when they are coloured"


def test_every_query_is_answered_and_a_bad_one_does_no_harm(completions):
    completions.query = {"step": 7, "sort": "best reward", "colour": "KL", "beside": True}
    rows = completions.page["rows"]
    assert [row["reward"] for row in rows] == sorted((row["reward"] for row in rows), reverse=True)
    assert all(len(row["tokens"]) == len(row["weights"]) for row in rows)
    assert all(row["beside"]["step"] == 1 for row in rows)
    completions.query = {"step": 999, "sort": "size", "start": 10_000, "split": "nowhere"}
    assert completions.page["step"] == 60 and len(completions.page["rows"]) == 4


def test_of_validation_the_steps_that_have_it_are_offered(tmp_path):
    rollouts = [{"step": s, "split": "train", "prompt": "p", "response": "r"} for s in (1, 2, 3)]
    rollouts.insert(2, {**rollouts[1], "split": "validation"})
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rollouts))
    widget = Completions(tmp_path)
    assert widget.page["steps"] == [1, 2, 3] and widget.page["step"] == 3
    widget.query = {"split": "validation"}
    assert widget.page["steps"] == [2] and [row["split"] for row in widget.page["rows"]] == ["validation"]
    widget.close()


def test_the_whole_history_can_be_searched(completions):
    completions.query = {"every": True, "text": "RIVERS", "start": 8}
    assert completions.page["total"] == 60 and completions.page["start"] == 8
    assert all("rivers" in row["prompt"] for row in completions.page["rows"])


def test_another_run_as_reference(healthy, gaming):
    widget = Completions(gaming, reference=healthy)
    widget.query = {"beside": True}
    assert widget.page["beside"] == "healthy"
    assert all(row["beside"]["response"] != row["response"] for row in widget.page["rows"])
    widget.close()


def test_pairs_by_margin_and_disagreement():
    widget = Pairs(PAIRS, scores=[(i, 3) for i in range(7)])
    widget.query = {"sort": "smallest margin"}
    assert [row["margin"] for row in widget.page["rows"]] == [-3, -2, -1, 0, 1]
    widget.query = {"wrong": True}
    assert widget.page["total"] == 4


def test_pairs_from_a_comparisons_file(tmp_path):
    file = tmp_path / "train_comparisons.jsonl"
    texts = ["User: hi\n\nAssistant: hello", "User: hi\n\nAssistant: no"]
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (pair,) = Pairs(file).pairs
    assert (pair["prompt"], pair["chosen"], pair["rejected"]) == ("User: hi\n\nAssistant:", "hello", "no")
    file.write_text(json.dumps({"text": texts[0]}))
    with pytest.raises(ValueError, match="1 lines; pairs need an even number"):
        Pairs(file)


def test_pairs_and_scores_must_match():
    with pytest.raises(ValueError, match="2 scores for 7 pairs"):
        Pairs(PAIRS, scores=[(1, 0), (1, 0)])


def test_a_model_that_fails_does_not_silence_the_others():
    chat = Chat(
        {"good": str.upper, "bad": lambda prompt: 1 / 0}, score=lambda prompt, response: len(response)
    )
    good, bad = chat.ask("hello")
    assert good == {"text": "HELLO", "reward": 5.0, "error": ""}
    assert bad["error"] == "ZeroDivisionError: division by zero"
    assert len(chat.turns) == 1 and not chat.busy
    chat.ask("again")
    assert [turn["prompt"] for turn in chat.turns] == ["hello", "again"]


def test_a_panel_tells_of_a_scheduler_that_does_not_answer(healthy):
    class Job:
        @property
        def state(self):
            raise ConnectionError("squeue: timed out")

    panel = JobPanel(healthy, Job())
    assert "squeue: timed out" in panel.view["job"]["reason"]
    panel._on_message(None, {"kind": "set", "name": "kl_coef", "value": "nan"}, [])
    assert "takes a number that is not negative" in panel.view["said"]
    panel.close()
