"""`aligner serve`: a policy behind an OpenAI-compatible endpoint, on loopback and with a token."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import secrets
import shlex
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from aligner_lib.errors import UserError
from aligner_lib.jobs import openai_api
from aligner_lib.jobs.generation_thread import Generation, GenerationThread
from aligner_lib.jobs.inference import load_engine, resolve_with_head, tokenizer_of
from aligner_lib.jobs.openai_api import ApiError, ChatRequest, CompletionRequest
from aligner_lib.jobs.request_answer import Abandoned, Answer, Model
from aligner_lib.jobs.runtime import configure_logging

logger = logging.getLogger(__name__)
MOST_OPEN = 1024  # responses that are written or wait
MOST_BYTES = 8 << 20  # of a request
END_S = 5.0  # for the last words to those whose answers are broken off


@dataclass(frozen=True)
class Served:
    """What the handlers share."""

    model: Model
    thread: GenerationThread
    token: str
    created: int = field(default_factory=lambda: int(time.time()))
    answering: set[asyncio.Task] = field(default_factory=set)


def serve(
    policy: str, *, host: str, port: int, token: str | None, rows: int, say: Callable[[str], None]
) -> None:
    """Serve a policy (run, checkpoint, model folder or name) until Ctrl-C or SIGTERM.

    port: 0 takes a free one. token: None makes one. rows: responses that are generated at the same time. say: is given
    what the user has to know. Raises UserError for a port that is taken, and for a model that writes no text.
    """
    configure_logging()
    if token == "":
        raise UserError(
            "the token is empty, so everybody on this machine could ask: leave --token out for a random one"
        )
    sockets = _listening(host, port)  # said before anything is loaded
    folder = resolve_with_head(policy, "lm")
    tokenizer, engine = tokenizer_of(folder), load_engine(folder)
    model = Model(policy, tokenizer, engine.module)
    asyncio.run(_serve(model, sockets, _url(host, sockets[0]), token or secrets.token_hex(24), rows, say))


async def _serve(
    model: Model,
    sockets: list[socket.socket],
    url: str,
    token: str,
    rows: int,
    say: Callable[[str], None],
) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    thread = GenerationThread(model.module, rows, model.tokenizer.eos_id)
    served = Served(model, thread, token)
    server = HTTPServer(_application(served), max_buffer_size=MOST_BYTES)
    thread.start()
    server.add_sockets(sockets)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    say(_greeting(model.name, url, token))
    await ended.wait()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)  # who asks twice does not want to wait
    say("ending: answers under way are broken off")
    server.stop()
    thread.close()
    await loop.run_in_executor(None, thread.join)
    if served.answering:
        await asyncio.wait(set(served.answering), timeout=END_S)
    await server.close_all_connections()


def _listening(host: str, port: int) -> list[socket.socket]:
    try:
        return bind_sockets(port, host)
    except OSError as error:
        raise UserError(
            f"port {port} of {host} can't be used ({error.strerror}): another server has it, or the address is not this "
            "machine's; give another with --port (0: any that is free)"
        ) from None


def _url(host: str, listening: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/v1"


def _greeting(name: str, url: str, token: str) -> str:
    """Where it is, and what to do next."""
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello."}]})
    lines = [
        f"{name} is served at {url} with the token {token} (Ctrl-C ends it). Ask it from a terminal:",
        "",
        f"curl {url}/chat/completions -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' "
        f"-d {shlex.quote(body)}",
        "",
        "or from Python:",
        "",
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{url}", api_key="{token}")',
        f'print(client.chat.completions.create(model="{name}", '
        'messages=[{"role": "user", "content": "Hello."}]).choices[0].message.content)',
        "",
    ]
    if not _is_loopback(url):
        lines.append(
            "note: this address is open to other machines, and neither texts nor token are encrypted on the way"
        )
    return "\n".join(lines)


def _is_loopback(url: str) -> bool:
    host = url.removeprefix("http://").rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _application(served: Served) -> Application:
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


# ---- handlers -------------------------------------------------------------------------------------------------------


class _Handler(RequestHandler):
    """Asks for the token, and writes errors as OpenAI's clients expect them."""

    needs_token = True

    @property
    def served(self) -> Served:
        return self.application.settings["served"]

    def set_default_headers(self) -> None:
        self.clear_header("Server")

    def prepare(self) -> None:
        if not self.needs_token:
            return
        given = self.request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode(), self.served.token.encode()):
            raise ApiError(
                "the token is missing or wrong: send the one that `aligner serve` printed, as `Authorization: Bearer "
                "TOKEN` (api_key of OpenAI's clients)",
                401,
                code="invalid_api_key",
            )

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
    def prepare(self) -> None:
        raise ApiError(
            f"there is no {self.request.path}; there are /v1/chat/completions, /v1/completions and /v1/models",
            404,
        )


class _Health(_Handler):
    needs_token = False

    def get(self) -> None:
        self.finish({"status": "ok", "open": len(self.served.thread.open)})


class _Models(_Handler):
    def get(self, name: str | None = None) -> None:
        if name is None:
            self.finish(openai_api.models(self.served.model.name, self.served.created))
            return
        _check_model(self.served, name)
        self.finish(openai_api.model(name, self.served.created))


class _Completions(_Handler):
    """Answers a request, whole or streamed. A client that goes away frees its rows of the batch."""

    def initialize(self, kind: type) -> None:
        self._kind = kind
        self._generations: list[Generation] = []

    async def post(self) -> None:
        request = openai_api.read(self._kind, _json(self.request.body))
        _check_model(self.served, request.model)
        answer = Answer(self.served.model, self.served.thread, request)
        self._generations = answer.generations
        would_be = len(self.served.thread.open) + len(self._generations)
        if would_be > MOST_OPEN:
            raise ApiError(
                f"with this request {would_be} responses would be open, and {MOST_OPEN} may be: ask later, or for fewer",
                429,
                code="overloaded",
            )
        task = asyncio.current_task()
        self.served.answering.add(task)
        task.add_done_callback(self.served.answering.discard)
        for generation in self._generations:
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

    async def _stream(self, answer: Answer) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-cache")
        try:
            async for part in answer.parts():
                self.write(f"data: {json.dumps(part)}\n\n")
                await self.flush()
        except ApiError as error:  # too late for a status
            self.write(f"data: {json.dumps(error.body())}\n\n")
        self.finish("data: [DONE]\n\n")

    def on_connection_close(self) -> None:
        self._cancel()
        for generation in self._generations:  # the handler may wait for them
            generation.events.put_nowait(Abandoned())

    def _cancel(self) -> None:
        for generation in self._generations:
            self.served.thread.cancel(generation)


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ApiError(f"the body is no JSON: {error}") from None


def _check_model(served: Served, name: str) -> None:
    if name != served.model.name:
        raise ApiError(
            f"there is no model {name!r} here, only {served.model.name!r}",
            404,
            param="model",
            code="model_not_found",
        )
