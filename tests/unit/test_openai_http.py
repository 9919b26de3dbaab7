"""The server's event loop stays free while a request is read. Tokeniser and model stand in for slow ones."""

import asyncio
import json
import threading
from types import SimpleNamespace

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


def test_others_are_answered_while_a_prompt_is_tokenised():
    tokenizer = SlowTokenizer()
    model = SimpleNamespace(name="m", tokenizer=tokenizer, positions=8, writes_plain=True)
    model.architecture = SimpleNamespace(max_position_embeddings=8, vocab_size=100)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello."}]})
    request = {"method": "POST", "body": body, "headers": {"Authorization": "bearer t"}}  # in any case

    async def ask() -> tuple[dict, dict]:
        listening, port = bind_unused_port()
        server = HTTPServer(application(Served(model, SimpleNamespace(open=set()), "t")))
        server.add_sockets([listening])
        fetch, root = AsyncHTTPClient().fetch, f"http://127.0.0.1:{port}"
        limits = {"raise_error": False, "request_timeout": 2 * BOUND_S}
        slow = asyncio.ensure_future(fetch(f"{root}/v1/chat/completions", **request, **limits))
        health = await fetch(f"{root}/health")
        assert not slow.done()
        tokenizer.may_read.set()
        answer = await slow
        server.stop()
        return json.loads(health.body), json.loads(answer.body)

    health, answer = asyncio.run(ask())
    assert health["status"] == "ok"
    assert answer["error"]["code"] == "context_length_exceeded"  # read to its end
