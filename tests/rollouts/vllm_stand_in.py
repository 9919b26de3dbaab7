"""What stands in for a vLLM server where there is none: the part of its HTTP that the generator uses, on our own generation.

It is not vLLM: it shows that the client speaks the protocol, and that weights arrive. test_vllm.py meets the real one.
"""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import torch

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron.checkpoint import own_blocks
from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.generate import Response, Sampling, generate
from aligner_lib.megatron.model import Numerics
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.names import to_megatron, weights
from aligner_lib.rollouts.generators.vllm_worker import PolicyWeights

BOUND_S = 120.0


class Worker(PolicyWeights):
    """The server's one worker: the extension on a model of ours. rounded: its weights are those that bfloat16 has."""

    def __init__(self, architecture: Architecture, rounded: bool):
        self.parallel_config = SimpleNamespace(world_size=1)
        self.module = Engine(architecture, Numerics()).module
        self.rounded, self.refreshed = rounded, 0

    def reload_weights(self, weights_iterator) -> None:
        named, arch = dict(weights_iterator), self.module.architecture
        wholes = {
            weight.megatron: to_megatron(weight, [named.pop(name) for name in weight.hf], arch)
            for weight in weights(arch)
        }
        assert not named, f"left over: {list(named)}"
        for block, values in own_blocks(self.module):
            ranges = zip(block.offset, block.shape)
            part = wholes[block.name][tuple(slice(start, start + size) for start, size in ranges)]
            values.copy_(part.bfloat16().float() if self.rounded else part)
        self.refreshed += 1


class VllmStandIn:
    """`with VllmStandIn(folder) as server:`. folder: a model folder, for its architecture and tokenizer alone.

    api_key: what a request has to have. until: after so many completions it closes every connection without an answer, as
    a process that died would; hangs: it answers no completion.
    """

    def __init__(
        self,
        folder,
        *,
        rounded: bool = False,
        api_key: str = "",
        until: int | None = None,
        hangs: bool = False,
    ):
        self.tokenizer = Tokenizer(folder)
        self.worker = Worker(Architecture.load(folder), rounded)
        self.api_key, self.until, self.hangs = api_key, until, hangs
        self.completions: list[dict] = []  # their requests
        self.caches_reset = 0
        self._one_at_a_time, self._closed = threading.Lock(), threading.Event()
        self._http = _Server(("127.0.0.1", 0), partial(_Handler, self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> VllmStandIn:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._closed.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(BOUND_S)

    def answer(self, path: str, body: dict) -> dict | None:
        """None: there is no answer, and the connection ends."""
        if path == "/v1/completions":
            self.completions.append(body)
            if self.until is not None and len(self.completions) > self.until:
                return None
            if self.hangs:
                self._closed.wait(BOUND_S)
                return None
            with self._one_at_a_time:
                response = self._generate(body)
            choice = {
                "token_ids": response.tokens,
                "logprobs": {"token_logprobs": response.logprobs},
                "finish_reason": "stop" if response.finished else "length",
            }
            return {"choices": [choice]}
        if path == "/collective_rpc":
            getattr(self.worker, body["method"])(*body["args"])
            return {"results": [None]}
        assert path == "/reset_prefix_cache", path
        self.caches_reset += 1
        return {}

    def _generate(self, body: dict) -> Response:
        special_tokens = not body["skip_special_tokens"]
        decode = partial(self.tokenizer.decode, special_tokens=special_tokens, continues=True)
        (response,) = generate(
            self.worker.module,
            [body["prompt"]],
            [body["seed"]],
            _sampling(body),
            stop_ids=body["stop_token_ids"],
            decode=decode,
        )
        return response


def _sampling(body: dict) -> Sampling:
    greedy = body["temperature"] == 0
    return Sampling(
        max_length=body["max_tokens"],
        min_length=body["min_tokens"] + 1,
        temperature=1.0 if greedy else body["temperature"],
        top_k=body["top_k"],
        top_p=body["top_p"],
        greedy=greedy,
        end_strings=tuple(body["stop"]),
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # connections that come at once


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, server: VllmStandIn, *arguments):
        self.stand_in = server
        super().__init__(*arguments)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.startswith("/v1") and self.headers["Authorization"] != f"Bearer {self.stand_in.api_key}":
            return self._say(401, {"error": "Unauthorized"})
        torch.set_num_threads(1)
        try:
            answered = self.stand_in.answer(self.path, body)
        except AttributeError as error:  # a worker without the extension
            return self._say(500, {"error": {"message": str(error)}})
        if answered is not None:
            self._say(200, answered)

    def _say(self, code: int, answer: dict) -> None:
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_) -> None:
        pass
