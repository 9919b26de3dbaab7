"""Completions, pairs and chat without a browser: the pages that answer queries."""

import json
import threading
from dataclasses import replace

import pytest
from forks import until
from run_folders import write_run

from aligner_lib.config import kinds
from widgets import Chat, Completions, JobPanel, Pairs

PAIRS = [{"prompt": f"p{i}", "chosen": "c" * (i + 1), "rejected": "r"} for i in range(7)]


def completions_of(folder, *records) -> Completions:
    widget = Completions(write_run(folder, rollouts=records))
    widget.close()
    return widget


def test_the_latest_step_is_first_every_query_is_answered_and_a_bad_one_does_no_harm(healthy):
    completions = Completions(healthy)
    completions.close()
    assert completions.page["step"] == 60 and completions.page["latest"]
    assert [row["step"] for row in completions.page["rows"]] == [60] * 4
    assert "tokens" not in completions.page["rows"][0], "tokens travel only when they are coloured"
    completions.query = {"step": 7, "sort": "best reward", "colour": "KL", "beside": True}
    rows = completions.page["rows"]
    assert [row["reward"] for row in rows] == sorted((row["reward"] for row in rows), reverse=True)
    assert all(len(row["tokens"]) == len(row["weights"]) for row in rows)
    assert all(row["beside"]["step"] == 1 for row in rows)
    completions.query = {"step": "many", "sort": "size", "start": 10_000, "split": "nowhere"}
    assert completions.page["step"] == 60 and len(completions.page["rows"]) == 4
    completions.query = {"every": True, "text": "RIVERS", "start": 8}
    assert completions.page["total"] == 60 and completions.page["start"] == 8
    assert all("rivers" in row["prompt"] for row in completions.page["rows"])


def test_of_validation_the_steps_that_have_it_are_offered(tmp_path):
    rollouts = [{"step": step, "split": "train", "prompt": "p", "response": "r"} for step in (1, 2, 3)]
    widget = completions_of(tmp_path, *rollouts, rollouts[1] | {"split": "validation"})
    assert widget.page["asked"]["split"] == "validation", "held-out prompts come first"
    assert widget.page["steps"] == [2] and [row["split"] for row in widget.page["rows"]] == ["validation"]
    widget.query = {"split": ""}
    assert widget.page["steps"] == [1, 2, 3] and widget.page["step"] == 3


# ---- colours, and what is missing -----------------------------------------------------------------------------------


def coloured(prompt, kl, step=1, **changes) -> dict:
    """A finished response of a token a letter, with its end token."""
    tokens = [*"abcdefgh"[: len(kl) - 1], "<end>"]
    record = {"step": step, "split": "train", "prompt": prompt, "response": "".join(tokens[:-1])}
    record |= {"finished": True, "tokens": tokens, "token_kl": kl, "reward": 0.0, "length": len(kl)}
    return record | changes


def test_a_page_has_one_scale_which_neither_the_end_token_nor_an_outlier_takes(tmp_path):
    quiet = coloured("p", [0.1] * 99 + [9.0], tokens=["x"] * 99 + ["<end>"], response="x" * 99)
    widget = completions_of(tmp_path, quiet, coloured("q", [0.2, 7.0, 0.5]))
    widget.query = {"colour": "KL", "beside": False}
    # 99 tokens of 0.1, then 0.2 and 7: the 98th percentile of 101 is the 99th of them in order
    assert widget.page["scale"] == {"least": 0.0, "most": pytest.approx(0.1), "beyond": 2, "percentile": 98}
    assert [len(row["weights"]) for row in widget.page["rows"]] == [99, 2]
    widget.query = {"colour": "KL", "beside": False, "end": True}
    assert [row["weights"][-1] for row in widget.page["rows"]] == [9.0, 0.5]


def test_both_sides_are_coloured_on_one_scale(tmp_path):
    first, later = coloured("p", [-0.4, 0.2, 0.0]), coloured("p", [0.0, 0.1, 0.0], step=2)
    widget = completions_of(tmp_path, first, later)
    widget.query = {"colour": "KL"}
    (row,) = widget.page["rows"]
    assert (row["weights"], row["beside"]["weights"]) == ([0.0, 0.1], [-0.4, 0.2])
    assert 0.35 < widget.page["scale"]["most"] <= 0.4 and widget.page["scale"]["least"] < -0.35


def test_what_is_not_there_is_said(tmp_path):
    widget = completions_of(tmp_path, coloured("p", [0.1, 0.2], split="validation", tokens=[]))
    assert widget.page["note"] == "The run's first answer to this prompt: none came before it."
    widget.query = {"colour": "KL"}
    assert widget.page["scale"] is None and "have no KL of their tokens" in widget.page["note"]
    widget.query = {"step": 7}
    assert widget.page["note"].startswith("Step 7 has no validation completions; these are of step 1.")


@pytest.mark.parametrize(
    ("kind", "words"),
    [("sft", "has no completions: sft does not generate.")]
    + [
        (kind, "has not written any completions yet.")
        for kind in ("ppo", "evaluate", "own", "undeclared", "unknown")
    ],
)
def test_a_run_without_completions_says_whether_its_kind_generates(tmp_path, monkeypatch, kind, words):
    own = replace(kinds.kind_of("grpo"), name="own")
    known = kinds.kinds() | {"own": own, "undeclared": replace(own, metrics=())}
    monkeypatch.setattr(kinds, "_kinds", lambda further: known)
    widget = Completions(write_run(tmp_path, kind=kind))
    widget.close()
    assert widget.page["note"].endswith(words)


def test_another_run_as_reference_stands_beside_and_one_without_answers_says_so(tmp_path, healthy, gaming):
    widget = Completions(gaming, reference=healthy)
    widget.query = {"beside": True}
    assert widget.page["beside"] == "healthy"
    assert all(row["beside"]["response"] != row["response"] for row in widget.page["rows"])
    widget.close()
    completions_of(tmp_path, coloured("another prompt", [0.1, 0.2]))
    widget = Completions(healthy, reference=tmp_path)
    assert widget.page["note"] == f"{tmp_path.name} has no answers to these prompts."
    widget.close()


# ---- groups ---------------------------------------------------------------------------------------------------------


def member(group: int, reward: float | None, split="train", environment="sums") -> dict:
    """One of the responses to prompt number `group`; None: its environment failed."""
    record = {"step": 1, "split": split, "prompt": f"p{group}", "response": f"{reward}", "reward": reward}
    record |= {"length": 3, "finished": True, "group": group, "environment": environment, "metrics": {}}
    if split == "train":
        advantage = 0.0 if reward is None else reward - 0.5
        record |= {"tokens": [*"abc"], "token_kl": [0.0] * 3, "token_advantage": [advantage] * 3}
    return record | ({"failure": "timeout"} if reward is None else {})


GROUPS = [
    *(member(0, reward) for reward in (0.0, 1.0, None, 0.5)),
    *(member(1, 0.25, environment="form") for _ in range(4)),
    *(member(2, reward) for reward in (0.75, 0.0, 0.0, 0.0)),
]


def test_responses_to_one_prompt_are_together_the_best_first(tmp_path):
    page = completions_of(tmp_path, *GROUPS).page
    assert page["can_group"] and (page["all"], page["total"], page["size"]) == (12, 3, 3)
    first, alike, _ = page["rows"]
    assert [response["reward"] for response in first["members"]] == [1.0, 0.5, 0.0, None]
    assert [response["advantage"] for response in first["members"]] == [0.5, 0.0, -0.5, 0.0]
    assert (first["best"], first["worst"], first["mean"]) == (1.0, 0.0, 0.5)
    assert alike["best"] == alike["worst"] == 0.25
    for words in ("1 of these responses have no reward", "environment_failures.txt"):
        assert words in page["note"]


def test_orders_of_groups_and_of_responses_and_a_choice_of_environments_and_failures(tmp_path):
    """A group stands where its first response does. Responses without a reward are last."""
    widget = completions_of(tmp_path, *GROUPS)
    orders = {"best reward": "p0 p2 p1", "worst reward": "p0 p2 p1", "written": "p0 p1 p2"}
    for sort, prompts in orders.items():
        widget.query = {"sort": sort}
        assert [row["prompt"] for row in widget.page["rows"]] == prompts.split()
    single = completions_of(tmp_path / "one group", *GROUPS[:4])
    of_rewards = {"best reward": [1.0, 0.5, 0.0, None], "worst reward": [0.0, 0.5, 1.0, None]}
    for sort, rewards in of_rewards.items():
        single.query = {"together": False, "sort": sort}
        assert [row["reward"] for row in single.page["rows"]] == rewards
    assert widget.page["environments"] == ["sums", "form"] and widget.page["can_fail"]
    widget.query = {"environment": "form"}
    assert [row["prompt"] for row in widget.page["rows"]] == ["p1"]
    widget.query = {"failed": True}
    (row,) = widget.page["rows"]
    assert row["prompt"] == "p0" and len(row["members"]) == 4, "a group is shown whole"


def test_a_run_with_groups_begins_with_them_and_its_held_out_prompts_are_single(tmp_path):
    widget = completions_of(tmp_path, member(0, 1.0, "validation"), member(1, 0.0, "validation"), *GROUPS)
    assert widget.page["asked"]["split"] == "train"
    widget.query = {"split": "validation"}
    assert not widget.page["can_group"] and [row["reward"] for row in widget.page["rows"]] == [1.0, 0.0]


# ---- pairs, panel ---------------------------------------------------------------------------------------------------


def test_pairs_by_margin_and_disagreement():
    widget = Pairs(PAIRS, scores=[(i, 3) for i in range(7)])
    widget.query = {"sort": "smallest margin"}
    assert [row["margin"] for row in widget.page["rows"]] == [-3, -2, -1, 0, 1]
    widget.query = {"wrong": True}
    assert widget.page["total"] == 4
    with pytest.raises(ValueError, match="2 scores for 7 pairs"):
        Pairs(PAIRS, scores=[(1, 0), (1, 0)])


def test_pairs_from_a_comparisons_file(tmp_path):
    file = tmp_path / "train_comparisons.jsonl"
    texts = ["User: hi\n\nAssistant: hello", "User: hi\n\nAssistant: no"]
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (pair,) = Pairs(file).pairs
    assert (pair["prompt"], pair["chosen"], pair["rejected"]) == ("User: hi\n\nAssistant:", "hello", "no")
    file.write_text(json.dumps({"text": texts[0]}))
    with pytest.raises(ValueError, match="1 lines; pairs need an even number"):
        Pairs(file)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"prompt": "p", "chosen": "c"}', "line 2: no key 'rejected'"),
        ('{"prompt": "p", "cho', "line 2: not JSON"),
        ('{"prompt": "p", "response": "r", "label": true}', "line 2: no key 'chosen'"),
        (
            '{"prompt": "p", "chosen": ["a"], "rejected": "r"}',
            "line 2: a prompt or an answer is neither a text",
        ),
        ('{"prompt": "p", "chosen": [], "rejected": "r"}', "line 2: a prompt or an answer is neither a text"),
        ('{"prompt": 1, "chosen": "c", "rejected": "r"}', "line 2: a prompt or an answer is neither a text"),
    ],
)
def test_a_line_without_a_pair_is_named(tmp_path, line, fault):
    file = tmp_path / "train.jsonl"
    file.write_text("\ufeff" + json.dumps(PAIRS[0]) + "\n")
    assert [pair["chosen"] for pair in Pairs(file).pairs] == ["c"]
    file.write_text(file.read_text() + line)
    with pytest.raises(ValueError, match=f"train.jsonl, {fault}"):
        Pairs(file)
    file.write_text('{"prompt": "p", "response": "r", "label": true}')
    with pytest.raises(
        ValueError, match="line 1: no key 'text'; a pair has the keys 'prompt', 'chosen' and 'rej"
    ):
        Pairs(file)
    file.write_text('{"text": "User: hi"}\n{"text": 5}')
    with pytest.raises(ValueError, match="line 2: 'text' is not a text"):
        Pairs(file)


def test_a_panel_tells_of_a_scheduler_that_does_not_answer(healthy):
    class Job:
        @property
        def state(self):
            raise ConnectionError("squeue: timed out")

    panel = JobPanel(healthy, Job())
    assert "squeue: timed out" in panel.view["job"]["reason"]
    panel._on_message(None, {"kind": "set", "name": "kl_coef", "value": "nan"}, [])
    assert "set a number of at least 0" in panel.view["steering"]["said"]
    panel.close()


def test_questions_that_come_while_a_model_answers_are_answered_in_order():
    release = threading.Event()
    chat = Chat({"slow": lambda prompt: release.wait(60) and prompt.upper()})
    for prompt in ("first", "second", "third"):
        chat._on_message(None, {"kind": "ask", "prompt": prompt}, [])
    assert chat.busy
    release.set()
    until(lambda: len(chat.turns) == 3 and not chat.busy, "every answer")
    assert [turn["answers"][0]["text"] for turn in chat.turns] == ["FIRST", "SECOND", "THIRD"]
    chat.close()


def test_a_closed_chat_answers_no_more_questions():
    threads, release = [], threading.Event()

    def close_after_the_question(prompt: str) -> str:
        threads.append(threading.current_thread())
        release.wait(60)
        chat.close()
        return prompt

    chat = Chat({"closing": close_after_the_question})
    for prompt in ("first", "second", "third"):
        chat._on_message(None, {"kind": "ask", "prompt": prompt}, [])
    release.set()
    until(lambda: threads, "the first question")
    threads[0].join(60)
    assert len(threads) == 1 and not threads[0].is_alive()
