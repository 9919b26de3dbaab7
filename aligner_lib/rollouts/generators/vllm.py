"""Generation with a vLLM server: requests use the server's OpenAI-compatible HTTP API, and the policy's weights use TCP.

The module uses these parts of vLLM: `/v1/completions` with token ids in requests and answers, `/collective_rpc`
(VLLM_SERVER_DEV_MODE=1) for the worker extension in `vllm_worker.py`, and `/reset_prefix_cache`. docs/generation.md describes
how to start a server.
"""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from torch import Tensor

from aligner_lib.errors import UserError
from aligner_lib.megatron import parallel
from aligner_lib.megatron.generate import Response, Sampling
from aligner_lib.rollouts.generators import weight_stream
from aligner_lib.rollouts.server_key import server_key
from cluster.rendezvous import open_url

API_KEY = "VLLM_API_KEY"  # vLLM's own variable: the key of a server in a job of its own
AT_ONCE = 256  # concurrent requests of a rank; the server batches them
EXTENSION = "aligner_lib.rollouts.generators.vllm_worker.PolicyWeights"


@dataclass
class VllmGenerator:
    """A `Generator` that uses a server with its own copy of the weights."""

    url: str
    """With or without /v1."""
    stop_ids: Sequence[int]
    timeout: float
    """Seconds for an answer, and for the server to receive a block of weights."""
    api_key: str = field(default_factory=lambda: server_key(API_KEY), repr=False)
    last_output: Callable[[], str] = lambda: ""
    """The last lines of the server's log, when this run started the server."""

    def batch(self, rows: int) -> VllmBatch:
        """See Generator. The server chooses its own batch sizes."""
        return VllmBatch(self)

    def respond(self, requests: list[tuple[list[int], int, Sampling]]) -> list[Response]:
        """A complete response to each request: prompt, seed and sampling. Raises UserError on every rank of the replica when
        the server dies, hangs or refuses."""
        outcome: list[Response] | UserError | None = None
        if parallel.leads_replica():
            try:
                with ThreadPoolExecutor(min(len(requests), AT_ONCE) or 1) as threads:
                    futures = [threads.submit(self._complete, *request) for request in requests]
                    outcome = [future.result() for future in futures]
            except UserError as error:
                outcome = error
        outcome = parallel.from_replica_leader(outcome)
        if isinstance(outcome, UserError):
            raise outcome
        return outcome

    def refresh(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """See Generator. Raises UserError when the server dies, hangs or can't receive the weights."""
        if parallel.is_first_rank():
            self._send(weights)
            self._post("/reset_prefix_cache")  # the cache holds keys and values of the old weights
        else:
            for _ in weights:
                pass
        parallel.barrier()

    def _complete(self, prompt: list[int], seed: int, sampling: Sampling) -> Response:
        request = {
            "prompt": prompt,
            "seed": seed,
            "max_tokens": sampling.max_length,
            "min_tokens": max(sampling.min_length - 1, 0),  # vLLM does not count the stop token
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "stop": list(sampling.end_strings),
            "stop_token_ids": list(self.stop_ids),
            "ignore_eos": True,  # stop_token_ids has all stop tokens
            "skip_special_tokens": False,  # an end string may be a special token
            "logprobs": 0,  # only the log-probability of the sampled token
            "return_token_ids": True,
        }
        (choice,) = self._post("/v1/completions", request)["choices"]
        tokens, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        if not tokens or not logprobs or len(tokens) != len(logprobs) or None in logprobs:
            raise UserError(
                f"{self._name} answered without token ids and their log-probabilities: the server is not vLLM, or is "
                "older than vLLM 0.11: update vLLM"
            )
        if sampling.greedy:
            # as in Megatron's generation: greedy decoding chooses a token with probability 1
            logprobs = [0.0] * len(tokens)
        return Response(tokens, logprobs, finished=choice["finish_reason"] == "stop")

    def _send(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Send the weights to the server's workers, which connect to this process."""
        token = secrets.token_hex(16)
        host = self._own_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with (
            socket.create_server((host, 0), family=family) as listener,
            ThreadPoolExecutor(1) as threads,
        ):
            call = {"method": "receive_policy", "args": [host, str(listener.getsockname()[1]), token]}
            answer = threads.submit(self._post, "/collective_rpc", call)
            try:
                weight_stream.send(weights, listener, token, self.timeout, lambda: _check_in_progress(answer))
                answer.result()
            except weight_stream.StreamError as error:
                # the server's own error message is more informative, if the server sent one
                answer.result()
                raise UserError(f"{self._name} did not take the policy's weights: {error}") from error

    def _own_address(self) -> str:
        """The address of this machine in the network that leads to the server."""
        server = urlsplit(self.url)
        try:
            address = socket.getaddrinfo(server.hostname, server.port or 80, type=socket.SOCK_DGRAM)[0]
            with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
                probe.connect(address[4])  # sends nothing
                return probe.getsockname()[0]
        except OSError as error:
            raise UserError(self._gone(f"can't be found ({error})")) from error

    def _post(self, path: str, body: dict | None = None) -> dict:
        """The server's answer. Raises UserError when the server does not answer, or refuses."""
        request = urllib.request.Request(
            self.url.rstrip("/").removesuffix("/v1") + path,
            data=json.dumps(body or {}).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.api_key}"},
        )
        try:
            # a cluster's proxy does not reach the cluster's own nodes
            with open_url(request, self.timeout, without_proxy=True) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise UserError(self._refusal(path, error.code, error.read().decode(errors="replace"))) from error
        except TimeoutError as error:
            raise UserError(
                f"{self._name} has not answered for {self.timeout:g} s: the server hangs, or "
                "trainer.distributed_timeout_minutes is too short for a micro batch of responses"
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise UserError(self._gone("does not accept connections")) from error
            raise UserError(self._gone(f"went away ({error})")) from error

    def _refusal(self, path: str, code: int, text: str) -> str:
        if code == 401:
            return f"{self._name} requires its key: set {API_KEY} to the key that the server was started with"
        if (path != "/v1/completions" and code in (404, 405)) or "receive_policy" in text:
            return (
                f"{self._name} can't receive weights: start it with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls "
                f"{EXTENSION}, with this project on its PYTHONPATH"
            )
        return f"{self._name} refused {path} ({code}): {text.strip()[-600:]}"

    def _gone(self, problem: str) -> str:
        output = self.last_output()
        return (
            f"{self._name} {problem}: start it again, then run the same command again; it continues from the run's last "
            "checkpoint"
            if not output
            else f"{self._name} {problem}. Its last output:\n{output}"
        )

    @property
    def _name(self) -> str:
        return f"the vLLM server at {self.url}"


class VllmBatch:
    """A `GenerationBatch` that sends all added prompts to the server in one go when the batch runs."""

    def __init__(self, generator: VllmGenerator):
        self._generator = generator
        self._waiting: list[tuple[Response, tuple[list[int], int, Sampling]]] = []

    def add(self, prompt: list[int], seed: int, sampling: Sampling) -> Response:
        """See GenerationBatch."""
        response = Response()
        self._waiting.append((response, (prompt, seed, sampling)))
        return response

    def run(self, enough: Callable[[], bool] = lambda: False) -> None:
        """See GenerationBatch. Raises the errors of VllmGenerator.respond."""
        waiting, self._waiting = self._waiting, []
        answers = self._generator.respond([request for _, request in waiting])
        for (response, _), answer in zip(waiting, answers):
            response.tokens, response.logprobs = answer.tokens, answer.logprobs
            response.finished, response.is_over = answer.finished, True


def _check_in_progress(answer: Future) -> None:
    """Check that the server is still receiving the weights. When the server has already answered the call, raises the server's
    error or a StreamError."""
    if answer.done():
        answer.result()
        raise weight_stream.StreamError("the server answered the call without fetching the weights")
