"""A vLLM server generates: asked over its OpenAI-compatible HTTP, and given the policy's weights over TCP.

What of vLLM this needs: `/v1/completions` with token ids both ways, `/collective_rpc` (VLLM_SERVER_DEV_MODE=1) for the worker's
extension in `vllm_worker.py`, and `/reset_prefix_cache`. docs/generation.md tells how a server is started.
"""

from __future__ import annotations

import http.client
import json
import os
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

API_KEY = "VLLM_API_KEY"  # vLLM's own name: what a server in a job of its own was started with
AT_ONCE = 256  # requests of a rank under way; the server batches them
EXTENSION = "aligner_lib.rollouts.generators.vllm_worker.PolicyWeights"
# a cluster's proxy does not lead to its own nodes
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class VllmGenerator:
    """A `Generator` in a server that has weights of its own."""

    url: str
    stop_ids: Sequence[int]
    timeout: float  # seconds for an answer, and for the server to take a block of weights
    api_key: str = field(default_factory=lambda: os.environ.get(API_KEY, ""), repr=False)
    why_gone: Callable[[], str] = lambda: ""  # what its process said last, where this run started it

    def batch(self, rows: int) -> VllmBatch:
        """See Generator. The server's batches are its own."""
        return VllmBatch(self)

    def respond(self, requests: list[tuple[list[int], int, Sampling]]) -> list[Response]:
        """A whole response to each prompt, seed and sampling. Raises UserError on every rank of the replica for a server
        that dies, hangs or refuses."""
        outcome: list[Response] | UserError | None = None
        if parallel.leads_replica():
            try:
                with ThreadPoolExecutor(min(len(requests), AT_ONCE) or 1) as threads:
                    asked = [threads.submit(self._complete, *one) for one in requests]
                    outcome = [one.result() for one in asked]
            except UserError as error:
                outcome = error
        outcome = parallel.from_replica_leader(outcome)
        if isinstance(outcome, UserError):
            raise outcome
        return outcome

    def refresh(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """See Generator. Raises UserError for a server that dies, hangs or can't take weights."""
        if parallel.is_first_rank():
            self._send(weights)
            self._post("/reset_prefix_cache")  # of the old weights' keys and values
        else:
            for _ in weights:
                pass
        parallel.barrier()

    def _complete(self, prompt: list[int], seed: int, sampling: Sampling) -> Response:
        asked = {
            "prompt": prompt,
            "seed": seed,
            "max_tokens": sampling.max_length,
            "min_tokens": max(sampling.min_length - 1, 0),  # vLLM's come before a stop token
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "stop": list(sampling.end_strings),
            "stop_token_ids": list(self.stop_ids),
            "ignore_eos": True,  # these are all that there are
            "skip_special_tokens": False,  # an end string may be one
            "logprobs": 0,  # of the token that was drawn alone
            "return_token_ids": True,
        }
        (choice,) = self._post("/v1/completions", asked)["choices"]
        tokens, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        if not tokens or not logprobs or len(tokens) != len(logprobs) or None in logprobs:
            raise UserError(
                f"{self._name} answered without token ids and their log-probabilities: it is not vLLM, or one older than "
                "0.11; update it"
            )
        if sampling.greedy:
            logprobs = [0.0] * len(tokens)  # as Megatron's generation: nothing else could have been drawn
        return Response(tokens, logprobs, finished=choice["finish_reason"] == "stop")

    def _send(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Let the server's workers come for the weights."""
        token = secrets.token_hex(16)
        host = self._own_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with (
            socket.create_server((host, 0), family=family) as listener,
            ThreadPoolExecutor(1) as threads,
        ):
            where = {"method": "receive_policy", "args": [host, str(listener.getsockname()[1]), token]}
            told = threads.submit(self._post, "/collective_rpc", where)
            try:
                weight_stream.send(weights, listener, token, self.timeout, lambda: _still_under_way(told))
                told.result()
            except weight_stream.StreamError as error:
                # the server's own words, where it had any, say more
                told.result()
                raise UserError(f"{self._name} did not take the policy's weights: {error}") from error

    def _own_address(self) -> str:
        """This machine's address as the server's machine reaches it."""
        there = urlsplit(self.url)
        try:
            address = socket.getaddrinfo(there.hostname, there.port or 80, type=socket.SOCK_DGRAM)[0]
            with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
                probe.connect(address[4])  # sends nothing
                return probe.getsockname()[0]
        except OSError as error:
            raise UserError(self._gone(f"is not to be found ({error})")) from error

    def _post(self, path: str, body: dict | None = None) -> dict:
        """Its answer. Raises UserError where there is none, or it is a refusal."""
        request = urllib.request.Request(
            self.url.rstrip("/") + path,
            data=json.dumps(body or {}).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.api_key}"},
        )
        try:
            with _OPENER.open(request, timeout=self.timeout) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise UserError(self._refusal(path, error.code, error.read().decode(errors="replace"))) from error
        except TimeoutError as error:
            raise UserError(
                f"{self._name} has not answered for {self.timeout:g} s: it hangs, or trainer.distributed_timeout_minutes "
                "is too short for a micro batch of responses"
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise UserError(self._gone("does not let anybody connect")) from error
            raise UserError(self._gone(f"went away ({error})")) from error

    def _refusal(self, path: str, code: int, text: str) -> str:
        if code == 401:
            return f"{self._name} wants its key: set {API_KEY} to the one that it was started with"
        if (path != "/v1/completions" and code in (404, 405)) or "receive_policy" in text:
            return (
                f"{self._name} takes no weights: start it with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls "
                f"{EXTENSION}, with this project on its PYTHONPATH"
            )
        return f"{self._name} refused {path} ({code}): {text.strip()[-600:]}"

    def _gone(self, how: str) -> str:
        said = self.why_gone()
        return (
            f"{self._name} {how}: start it again, and the same command, which goes on from the run's last checkpoint"
            if not said
            else f"{self._name} {how}. It said last:\n{said}"
        )

    @property
    def _name(self) -> str:
        return f"the vLLM server at {self.url}"


class VllmBatch:
    """A `GenerationBatch`: what was added is asked for at once, when it runs."""

    def __init__(self, generator: VllmGenerator):
        self._generator = generator
        self._waiting: list[tuple[Response, tuple[list[int], int, Sampling]]] = []

    def add(self, prompt: list[int], seed: int, sampling: Sampling) -> Response:
        """See GenerationBatch."""
        response = Response()
        self._waiting.append((response, (prompt, seed, sampling)))
        return response

    def run(self, enough: Callable[[], bool] = lambda: False) -> None:
        """See GenerationBatch. Raises what VllmGenerator.respond raises."""
        waiting, self._waiting = self._waiting, []
        said = self._generator.respond([request for _, request in waiting])
        for (response, _), whole in zip(waiting, said):
            response.tokens, response.logprobs = whole.tokens, whole.logprobs
            response.finished, response.is_over = whole.finished, True


def _still_under_way(told: Future) -> None:
    """Raises what the server answered to the call that it should take the weights, when it did so before it took them."""
    if told.done():
        told.result()
        raise weight_stream.StreamError("it answered without coming for them")
