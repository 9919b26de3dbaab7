"""Questions of two turns, and a judge behind a real HTTP server whose habits are known."""

import io
import json

import pytest
from chat_server import serving

from aligner_lib.errors import UserError
from aligner_lib.jobs import served
from aligner_lib.jobs.served import answering_at
from aligner_lib.tutorial.comparison import two_turns
from aligner_lib.tutorial.comparison.two_turns import Dialogue, Judge, TwoTurns, verdict

QUESTION = TwoTurns("math", ("What is 6 times 7?", "And half of it?"))


def dialogue(last: str) -> Dialogue:
    return Dialogue(QUESTION, ("42", last))


def judge_at(url: str) -> Judge:
    return Judge(answering_at(url, "secret", model="a-judge", temperature=0))


def compare(answer, own: list[str], other: list[str]):
    """The comparison of answers by a judge that says answer(text of the request); with the requests."""
    with serving(lambda messages: answer(messages[0]["content"])) as server:
        return judge_at(server.url).compare([*map(dialogue, own)], [*map(dialogue, other)]), server


def prefers_21(text: str) -> str:
    """A judge that reads: the dialogue that ends with 21 is better."""
    first, second = text.split("[The second assistant]")
    right = "21" in first, "21" in second
    return {(True, False): "Right.\nFIRST", (False, True): "SECOND", (True, True): "Tie"}.get(right, "TIE")


def test_questions_have_two_turns_and_are_taken_from_the_categories_in_turn():
    assert all(len(question.turns) == 2 for question in two_turns.two_turn_questions())
    assert len({question.category for question in two_turns.two_turn_questions(8)}) == 8


def test_the_second_turn_contains_the_first_answer(capsys):
    prompts = []

    def answer(text: str) -> str:
        prompts.append(text)
        return "42" if "half" not in text else "21"

    (answered,) = two_turns.ask_in_turns(answer, [QUESTION])
    first = "User: What is 6 times 7?\n\nAssistant:"
    assert prompts == [first, f"{first} 42\n\nUser: And half of it?\n\nAssistant:"]
    assert answered.answers == ("42", "21") and str(answered) == f"{prompts[1]} 21"
    assert "the second turns are answered" in capsys.readouterr().out


def test_a_judge_that_reads_prefers_the_right_answer_and_one_that_prefers_a_place_decides_nothing():
    judged, server = compare(prefers_21, ["21", "20", "21"], ["20", "21", "It is 21"])
    assert judged.wins == [1.0, 0.0, 0.5]
    assert (server.paths[0], server.headers[0]["Authorization"]) == ("/v1/chat/completions", "Bearer secret")
    assert server.bodies[0]["model"] == "a-judge" and server.bodies[0]["temperature"] == 0
    assert compare(lambda text: "FIRST", ["21"], ["20"])[0].wins == [0.5]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("FIRST", 1.0),
        ("Both add up.\n\nVerdict: **SECOND**.", 0.0),
        ("TIE\nNeither the FIRST nor the SECOND is wrong.", 0.5),  # an explanation decides nothing
        ("**First**\n\nThe first answer is compared with the second.", 1.0),
        ("The FIRST is better than the SECOND.", None),  # within a sentence
        ("FIRST\nOn second thought:\nSECOND", None),
        ("FIRST, SECOND or TIE", None),
        ("", None),
    ],
)
def test_a_verdict_is_a_line_of_its_own(answer, expected):
    assert verdict(answer) == expected


def test_verdicts_that_are_not_understood_are_counted_and_their_pairs_left_out():
    """The judge hedges on the second of four pairs, in one of the two orders."""

    def hedges(text: str) -> str:
        if "nice" not in text:
            return prefers_21(text)
        return "Both are nice." if text.index("nice 20") < text.index("nice 21") else "TIE"

    judged, _ = compare(hedges, ["20", "nice 21", "20", "20"], ["21", "nice 20", "21", "21"])
    assert (judged.wins, judged.pairs) == ([0.0, 0.0, 0.0], [0, 2, 3])
    assert (judged.not_understood, judged.verdicts) == (1, 8)
    assert "1 of 8 verdicts were not understood" in str(judged) and "'Both are nice.'" in str(judged)
    undecided, _ = compare(lambda text: "Both are nice.", ["21"], ["20"])
    assert undecided.wins == [] and str(undecided).startswith("no pair was decided; 2 of 2 verdicts")


def test_a_judge_that_fails_is_reported():
    with pytest.raises(UserError, match="500"):
        compare(lambda text: (500, ""), ["21"], ["20"])


@pytest.mark.parametrize(("reason", "finished"), [("stop", True), ("length", False)])
def test_a_served_answer_says_whether_it_was_cut(reason, finished):
    with serving(lambda messages: "21", finish_reason=reason) as server:
        answer = judge_at(server.url).answer("Half of 42?")
    assert answer == "21" and answer.finished is finished


def test_a_server_that_lists_no_models_needs_the_model_s_name(monkeypatch):
    monkeypatch.setattr(served, "open_url", lambda request, timeout: io.BytesIO(b'{"data": []}'))
    with pytest.raises(UserError, match="http://a/v1/models: the server lists no models; give model=…"):
        answering_at("http://a", "secret")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (
            {"error": {"message": "quota"}},
            r"http://a/v1/chat/completions has sent no answer, but .*quota.*: see",
        ),
        ({"choices": []}, "has sent no answer"),
    ],
)
def test_a_reply_without_an_answer_is_told(monkeypatch, reply, words):
    monkeypatch.setattr(served, "open_url", lambda request, timeout: io.BytesIO(json.dumps(reply).encode()))
    with pytest.raises(UserError, match=words):
        answering_at("http://a", "secret", model="m")("Hello.")


def test_an_answer_that_is_cut_in_its_thoughts_is_empty_and_several_answers_are_refused():
    with serving(lambda messages: None, finish_reason="length") as server:
        answer = judge_at(server.url).answer("Half of 42?")
    assert (answer, answer.finished) == ("", False)
    with pytest.raises(UserError, match="n=2 asks for several answers"):
        answering_at("http://a", "secret", model="m", n=2)
