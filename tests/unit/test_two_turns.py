"""Questions of two turns, and a judge behind a real HTTP server whose habits are known."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from aligner_lib.errors import UserError
from aligner_lib.jobs.served import answering_at
from aligner_lib.tutorial.comparison.two_turns import (
    Dialogue,
    Judge,
    TwoTurns,
    ask_in_turns,
    two_turn_questions,
    verdict,
)

QUESTION = TwoTurns("math", ("What is 6 times 7?", "And half of it?"))


def dialogue(last: str) -> Dialogue:
    return Dialogue(QUESTION, ("42", last))


@pytest.fixture
def judge():
    """judge(verdict): a Judge whose server says verdict(text); `judge.servers[0].asked` are the requests it got."""
    servers = []

    def start(verdict, status: int = 200, reason: str = "stop") -> Judge:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append((self.path, self.headers.get("Authorization"), body))
                said = verdict(body["messages"][0]["content"])
                reply = json.dumps(
                    {"choices": [{"message": {"content": said}, "finish_reason": reason}]}
                ).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        server.asked = []
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        url = f"http://127.0.0.1:{server.server_port}/v1"
        return Judge(answering_at(url, "secret", model="a-judge", temperature=0))

    start.servers = servers
    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def prefers_21(text: str) -> str:
    """It reads: the dialogue that ends with 21 is the better one."""
    first, second = text.split("[The second assistant]")
    right = "21" in first, "21" in second
    return {(True, False): "Right.\nFIRST", (False, True): "SECOND", (True, True): "Tie"}.get(right, "TIE")


def test_questions_are_of_two_turns_and_eight_categories():
    questions = two_turn_questions()
    assert len(questions) == 24 and all(len(one.turns) == 2 for one in questions)
    assert set(Counter(one.category for one in questions).values()) == {3}
    assert len({one.turns[0] for one in questions}) == 24
    assert len({one.category for one in two_turn_questions(8)}) == 8


def test_the_second_turn_has_the_first_answer_in_it():
    asked = []

    def answer(text: str) -> str:
        asked.append(text)
        return "42" if "half" not in text else "21"

    (said,) = ask_in_turns(answer, [QUESTION])
    assert asked[0] == "User: What is 6 times 7?\n\nAssistant:"
    assert asked[1] == "User: What is 6 times 7?\n\nAssistant: 42\n\nUser: And half of it?\n\nAssistant:"
    assert said.answers == ("42", "21") and str(said) == f"{asked[1]} 21"


def judged(judge: Judge, own: str, other: str) -> list[float]:
    return judge.compare([dialogue(own)], [dialogue(other)]).wins


def test_a_judge_that_reads_prefers_the_right_answer_wherever_it_stands(judge):
    reads = judge(prefers_21)
    assert judged(reads, "21", "20") == [1.0]
    assert judged(reads, "20", "21") == [0.0]
    assert judged(reads, "21", "It is 21") == [0.5]
    path, authorization, body = judge.servers[0].asked[0]
    assert (path, authorization) == ("/v1/chat/completions", "Bearer secret")
    assert body["model"] == "a-judge" and body["temperature"] == 0


def test_a_judge_that_takes_what_stands_first_decides_nothing(judge):
    assert judged(judge(lambda text: "FIRST"), "21", "20") == [0.5]


def test_a_judge_that_explains_after_its_verdict_is_understood(judge):
    """Its explanation names both assistants; the last of the words says nothing."""

    def explains(text: str) -> str:
        place = "First" if "21" in text.split("[The second assistant]")[0] else "Second"
        return f"**{place}**\n\nThe first answer is compared with the second: 21 is half of 42."

    assert judged(judge(explains), "21", "20") == [1.0]
    assert judged(judge(explains), "20", "21") == [0.0]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("FIRST", 1.0),
        ("Both add up.\n\nVerdict: **SECOND**.", 0.0),
        ("TIE\nNeither the FIRST nor the SECOND is wrong.", 0.5),
        ("The FIRST is better than the SECOND.", None),  # within a sentence
        ("FIRST\nOn second thought:\nSECOND", None),
        ("FIRST, SECOND or TIE", None),
        ("", None),
    ],
)
def test_a_verdict_is_a_line_of_its_own(answer, expected):
    assert verdict(answer) == expected


def test_verdicts_that_are_not_understood_are_counted_and_their_pairs_left_out(judge):
    """Of four pairs the judge hedges on the second one, in one of the two orders."""

    def hedges(text: str) -> str:
        return "Both are nice." if text.index("nice 20") < text.index("nice 21") else "TIE"

    pairs = [[dialogue("20"), dialogue("nice 21"), dialogue("20"), dialogue("20")]]
    pairs += [[dialogue("21"), dialogue("nice 20"), dialogue("21"), dialogue("21")]]
    told = judge(lambda text: hedges(text) if "nice" in text else prefers_21(text)).compare(*pairs)
    assert (told.wins, told.pairs) == ([0.0, 0.0, 0.0], [0, 2, 3])
    assert (told.not_understood, told.verdicts) == (1, 8)
    assert "1 of 8 verdicts were not understood" in str(told) and "'Both are nice.'" in str(told)
    nothing = judge(lambda text: "Both are nice.").compare([dialogue("21")], [dialogue("20")])
    assert nothing.wins == [] and str(nothing).startswith("no pair was decided; 2 of 2 verdicts")


def test_a_judge_that_fails_is_told(judge):
    with pytest.raises(UserError, match="500"):
        judged(judge(lambda text: "FIRST", status=500), "21", "20")
    with pytest.raises(UserError, match="no server answers"):
        judged(Judge(answering_at("http://127.0.0.1:9/v1", "", model="nobody")), "21", "20")


@pytest.mark.parametrize(("reason", "finished"), [("stop", True), ("length", False)])
def test_a_served_answer_says_whether_it_was_cut(judge, reason, finished):
    served = judge(lambda text: "21", reason=reason).answer
    assert served("Half of 42?") == "21" and served("Half of 42?").finished is finished
