"""OpenAI's API over HTTP: checks the token and requests, and sends answers, complete or streamed."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tornado.iostream import StreamClosedError
from tornado.web import Application, RequestHandler, stream_request_body

from aligner_lib.jobs import openai_answers, openai_api, request_body
from aligner_lib.jobs.generation_thread import GenerationThread, PendingResponse
from aligner_lib.jobs.openai_api import ApiError, ChatRequest, CompletionRequest
from aligner_lib.jobs.request_answer import Abandoned, Answer, ServedModel

logger = logging.getLogger(__name__)
MOST_OPEN = 1024  # running and waiting responses
READERS = 4  # requests that are checked and tokenized at the same time


@dataclass(frozen=True)
class Served:
    """The objects that all handlers share."""

    model: ServedModel
    thread: GenerationThread
    token: str
    readers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(READERS, "reader"))
    created: int = field(default_factory=lambda: int(time.time()))
    answering: set[asyncio.Task] = field(default_factory=set)


def application(served: Served) -> Application:
    """Build the web application that answers requests."""
    routes = [
        ("/v1/chat/completions", _Completions, {"kind": ChatRequest}),
        ("/v1/completions", _Completions, {"kind": CompletionRequest}),
        ("/v1/models", _Models),
        ("/v1/models/(.+)", _Models),
        ("/health", _Health),
    ]
    return Application(
        routes, served=served, default_handler_class=_Unknown, log_function=_log, compress_response=False
    )


def _log(handler: RequestHandler) -> None:
    request = handler.request
    logger.info(f"{request.method} {request.path} {handler.get_status()} {request.request_time():.2f} s")


@stream_request_body
class _Handler(RequestHandler):
    """Checks the token, and writes errors in the format of OpenAI's clients.

    A rejected request is answered only after its whole body has arrived. A client that is still sending does not read an
    answer, and the connection would be reset.
    """

    needs_token = True

    @property
    def served(self) -> Served:
        return self.application.settings["served"]

    def set_default_headers(self) -> None:
        self.clear_header("Server")

    def prepare(self) -> None:
        self.body = bytearray()
        self.refusal = self.reason_to_refuse()

    def data_received(self, chunk: bytes) -> None:
        if self.refusal is None and len(self.body) + len(chunk) > request_body.MOST_BYTES:
            self.refusal = request_body.too_large()
        if self.refusal is None:
            self.body += chunk
        else:
            self.body.clear()

    def reason_to_refuse(self) -> ApiError | None:
        """The error for a request whose headers have arrived; None for a valid request."""
        header = self.request.headers.get("Authorization", "")
        given = re.sub("^bearer ", "", header, flags=re.IGNORECASE).strip()  # a scheme's case has no meaning
        if not self.needs_token or hmac.compare_digest(given.encode(), self.served.token.encode()):
            return None
        return ApiError(
            "the token is missing or wrong: send the token that `aligner serve` printed, as `Authorization: Bearer "
            "TOKEN` (api_key of OpenAI's clients)",
            401,
            code="invalid_api_key",
        )

    def check(self) -> None:
        """Raise ApiError for a rejected request. Every handler must call this method first."""
        if self.refusal is not None:
            raise self.refusal

    def write_error(self, status_code: int, **more) -> None:
        error = more.get("exc_info", (None, None, None))[1]
        if not isinstance(error, ApiError):
            error = ApiError(f"{self.request.method} {self.request.path}: {self._reason}", status_code)
        self.set_status(error.status)
        self.finish(error.body())

    def log_exception(self, kind, error, traceback) -> None:
        if not isinstance(error, ApiError):
            super().log_exception(kind, error, traceback)


class _Unknown(_Handler):
    def reason_to_refuse(self) -> ApiError:
        return ApiError(
            f"there is no {self.request.path}; the paths are /v1/chat/completions, /v1/completions and /v1/models",
            404,
        )

    def get(self) -> None:
        self.check()

    head = post = put = patch = delete = options = get


class _Health(_Handler):
    needs_token = False

    def get(self) -> None:
        self.check()
        self.finish({"status": "ok", "open": len(self.served.thread.open)})


class _Models(_Handler):
    def get(self, name: str | None = None) -> None:
        self.check()
        if name is None:
            self.finish(openai_answers.models(self.served.model.name, self.served.created))
            return
        _check_model(self.served, name)
        self.finish(openai_answers.model(name, self.served.created))


class _Completions(_Handler):
    """Answers a request, complete or streamed. When a client disconnects, its rows of the batch become free."""

    def initialize(self, kind: type) -> None:
        self._kind = kind
        self._generations: list[PendingResponse] = []
        self._is_gone = False  # whether the client has disconnected

    async def post(self) -> None:
        self.check()
        task = asyncio.current_task()
        self.served.answering.add(task)
        task.add_done_callback(self.served.answering.discard)
        # In other threads, because a megabyte takes seconds. Meanwhile the event loop must send tokens to other clients.
        request = await self._in_a_reader(lambda: openai_api.read(self._kind, request_body.parse(self.body)))
        _check_model(self.served, request.model)
        self._check_open(len(request.prompts) * request.n)
        answer = await self._in_a_reader(lambda: Answer(self.served.model, self.served.thread, request))
        self._check_open(len(answer.generations))
        if self._is_gone:
            return
        if not self.served.thread.is_alive():  # the thread has ended and would never answer
            raise ApiError("the server ends", 503)
        self._generations = answer.generations
        for generation in self._generations if request.draws else []:
            self.served.thread.begin(generation)
        try:
            if request.stream:
                await self._stream(answer)
            else:
                self.finish(await answer.whole())
        except (Abandoned, StreamClosedError):
            pass
        finally:
            self._cancel()

    async def _in_a_reader(self, compute: Callable):
        try:
            computed = asyncio.get_running_loop().run_in_executor(self.served.readers, compute)
        except RuntimeError:  # the readers accept no more work
            raise ApiError("the server ends", 503) from None
        try:
            return await computed
        except asyncio.CancelledError:  # the readers have dropped waiting work
            raise ApiError("the server ends", 503) from None

    def _check_open(self, count: int) -> None:
        """Raise ApiError if a request would open too many responses."""
        would_be = len(self.served.thread.open) + count
        if would_be > MOST_OPEN:
            raise ApiError(
                f"with your request, {would_be} responses would be open, but at most {MOST_OPEN} are allowed: ask "
                "later, or for fewer responses",
                429,
                code="overloaded",
            )

    async def _stream(self, answer: Answer) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-cache")
        try:
            async for part in answer.parts():
                self.write(f"data: {json.dumps(part)}\n\n")
                await self.flush()
        except ApiError as error:  # the status was already sent
            self.write(f"data: {json.dumps(error.body())}\n\n")
        self.finish("data: [DONE]\n\n")

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._is_gone = True
        self._cancel()
        for generation in self._generations:  # the handler may be waiting for their events
            generation.events.put_nowait(Abandoned())

    def _cancel(self) -> None:
        for generation in self._generations:
            self.served.thread.cancel(generation)


def _check_model(served: Served, name: str) -> None:
    if name != served.model.name:
        raise ApiError(
            f"there is no model {name!r} here, only {served.model.name!r}",
            404,
            param="model",
            code="model_not_found",
        )
