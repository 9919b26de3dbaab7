"""The server's event loop stays free while a request is read. Tokeniser and model stand in for slow ones."""

import asyncio
import json
import threading
from types import SimpleNamespace

import pytest
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

from aligner_lib.jobs.openai_http import Served, application

BOUND_S = 60


class SlowTokenizer:
    """Waits for permission to read a prompt."""

    template, config = "plain", {}

    def __init__(self):
        self.may_read = threading.Event()

    def encode(self, text: str) -> list[int]:
        assert self.may_read.wait(BOUND_S), "the loop was not free"
        return list(range(10))


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("completions", {"prompt": "Hello."}),
        ("chat/completions", {"messages": [{"role": "user", "content": "Hello."}]}),
    ],
)
def test_others_are_answered_while_a_prompt_is_tokenised(path, prompt):
    tokenizer, limits = SlowTokenizer(), {"max_position_embeddings": 8, "vocab_size": 100}
    model = SimpleNamespace(name="m", tokenizer=tokenizer, positions=8, writes_plain=True)
    model.architecture = SimpleNamespace(**limits)
    request = {"method": "POST", "body": json.dumps({"model": "m"} | prompt), "raise_error": False}
    request |= {"headers": {"Authorization": "Bearer t"}, "request_timeout": 2 * BOUND_S}

    async def ask() -> tuple[dict, dict]:
        listening, port = bind_unused_port()
        server = HTTPServer(application(Served(model, SimpleNamespace(open=set()), "t")))
        server.add_sockets([listening])
        client, root = AsyncHTTPClient(), f"http://127.0.0.1:{port}"
        slow = asyncio.ensure_future(client.fetch(f"{root}/v1/{path}", **request))
        health = await client.fetch(f"{root}/health")
        assert not slow.done()
        tokenizer.may_read.set()
        answer = await slow
        server.stop()
        return json.loads(health.body), json.loads(answer.body)

    health, answer = asyncio.run(ask())
    assert health["status"] == "ok"
    assert answer["error"]["code"] == "context_length_exceeded"  # read to its end
