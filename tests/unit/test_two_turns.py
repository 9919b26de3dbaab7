"""Questions of two turns, and a judge behind a real HTTP server whose habits are known."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from aligner_lib.errors import UserError
from aligner_lib.jobs.served import answering_at
from aligner_lib.tutorial.two_turns import Dialogue, Judge, TwoTurns, ask_in_turns, two_turn_questions

QUESTION = TwoTurns("math", ("What is 6 times 7?", "And half of it?"))


def dialogue(last: str) -> Dialogue:
    return Dialogue(QUESTION, ("42", last))


@pytest.fixture
def judge():
    """judge(verdict): a Judge whose server says verdict(text); `judge.servers[0].asked` are the requests it got."""
    servers = []

    def start(verdict, status: int = 200) -> Judge:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append((self.path, self.headers.get("Authorization"), body))
                said = verdict(body["messages"][0]["content"])
                reply = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
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


def test_a_judge_that_reads_prefers_the_right_answer_wherever_it_stands(judge):
    reads = judge(prefers_21)
    assert reads.compare(dialogue("21"), dialogue("20")) == 1.0
    assert reads.compare(dialogue("20"), dialogue("21")) == 0.0
    assert reads.compare(dialogue("21"), dialogue("It is 21")) == 0.5
    path, authorization, body = judge.servers[0].asked[0]
    assert (path, authorization) == ("/v1/chat/completions", "Bearer secret")
    assert body["model"] == "a-judge" and body["temperature"] == 0


def test_a_judge_that_takes_what_stands_first_decides_nothing(judge):
    assert judge(lambda text: "FIRST").compare(dialogue("21"), dialogue("20")) == 0.5


def test_a_judge_without_a_verdict_and_one_that_fails_are_told(judge):
    with pytest.raises(UserError, match=r"the judge gave no verdict .*'Both are nice\.'"):
        judge(lambda text: "Both are nice.").compare(dialogue("21"), dialogue("20"))
    with pytest.raises(UserError, match="500"):
        judge(lambda text: "FIRST", status=500).compare(dialogue("21"), dialogue("20"))
    with pytest.raises(UserError, match="no server answers"):
        nobody = Judge(answering_at("http://127.0.0.1:9/v1", "", model="nobody"))
        nobody.compare(dialogue("21"), dialogue("20"))
