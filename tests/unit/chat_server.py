"""A server on this machine that speaks OpenAI's chat completions, with answers that a test gives."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# the text that answers the messages of a request, or a status and an error's text; "": the body names no error
Answer = Callable[[list[dict[str, str]]], str | tuple[int, str]]


class ChatServer(ThreadingHTTPServer):
    def __init__(
        self, answer: Answer, at_once: int = 1, finish_reason: str = "stop", logprobs=None, cut: int = 0
    ):
        """at_once: requests that must be open before the first one is answered. logprobs: gives a choice's `logprobs`. cut: the
        number of first answers that end too early."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.at_once, self.finish_reason = answer, at_once, finish_reason
        self.cut = cut
        self.logprobs = logprobs or (lambda messages: None)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.paths, self.headers, self.bodies = [], [], []
        self.most_open, self.open, self.gate = 0, 0, threading.Condition()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.gate:
            server.paths.append(self.path)
            server.headers.append(self.headers)
            server.bodies.append(body)
            server.open += 1
            server.most_open = max(server.most_open, server.open)
            server.gate.notify_all()
            assert server.gate.wait_for(lambda: server.most_open >= server.at_once, timeout=60)
        answer = server.answer(body["messages"])
        with server.gate:
            server.open -= 1
        status, text = answer if isinstance(answer, tuple) else (200, answer)
        choice = {"message": {"content": text}, "finish_reason": server.finish_reason}
        choices = {"choices": [choice | {"logprobs": server.logprobs(body["messages"])}]}
        error = {"error": {"message": text}} if text else {}
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "3")
        content = json.dumps(choices if status == 200 else error).encode()
        if len(server.bodies) <= server.cut:
            self.send_header("Content-Length", str(len(content) + 1))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def serving(answer: Answer, **options) -> Iterator[ChatServer]:
    with ChatServer(answer, **options) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
