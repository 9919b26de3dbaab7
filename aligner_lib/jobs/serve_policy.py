"""`aligner serve`: a policy behind an OpenAI-compatible endpoint, on loopback and with a token."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import re
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import Callable

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from aligner_lib.errors import UserError
from aligner_lib.jobs.generation_thread import GenerationThread
from aligner_lib.jobs.inference import load_engine, resolve_with_head, tokenizer_of
from aligner_lib.jobs.openai_http import Served, application
from aligner_lib.jobs.request_answer import ServedModel
from aligner_lib.jobs.runtime import configure_logging

LONGEST_BODY_S = 120.0  # limit for receiving a request's body of any size
PORTS = range(1 << 16)
END_S = 5.0  # for the last messages to clients whose answers are truncated


def serve(
    policy: str, *, host: str, port: int, token: str | None, rows: int, say: Callable[[str], None]
) -> None:
    """Serve a policy (run, checkpoint, model folder or name) until Ctrl-C or SIGTERM.

    port: 0 chooses a free port. token: None creates a token. rows: responses that are generated at the same time. say: prints a
    message for the user. Raises UserError for a port in use, for a reward model, and for a token that no header can hold.
    """
    configure_logging()
    token = None if token is None else _checked(token.strip())
    sockets = _listening(host, port)  # raises an error for a wrong port before anything is loaded
    folder = resolve_with_head(policy, "lm")
    tokenizer, engine = tokenizer_of(folder), load_engine(folder)
    model = ServedModel(policy, tokenizer, engine.module)
    asyncio.run(_serve(model, sockets, _url(host, sockets[0]), token or secrets.token_hex(24), rows, say))


async def _serve(
    model: ServedModel,
    sockets: list[socket.socket],
    url: str,
    token: str,
    rows: int,
    say: Callable[[str], None],
) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    thread = GenerationThread(model.module, rows, model.tokenizer.stop_ids)
    served = Served(model, thread, token)
    # Bodies that are too large are read to the end and discarded, because a client does not read an answer while sending.
    server = HTTPServer(application(served), max_body_size=sys.maxsize, body_timeout=LONGEST_BODY_S)
    thread.start()
    server.add_sockets(sockets)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    say(_greeting(model.name, url, token))
    await ended.wait()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)  # a second signal ends the process at once
    say("ending: answers in progress are cut off")
    server.stop()
    thread.close()
    await loop.run_in_executor(None, thread.join)
    served.readers.shutdown(wait=False, cancel_futures=True)
    if served.answering:
        await asyncio.wait(set(served.answering), timeout=END_S)
    await server.close_all_connections()


def _checked(token: str) -> str:
    """The token. Raises UserError for an empty token, and for a token that clients can't send in a header."""
    if not token:
        raise UserError(
            "the token is empty, so everyone on the machine could use the server: leave --token out for a random token"
        )
    if not re.fullmatch("[!-~]+", token):
        raise UserError(
            f"the token {token!r} has other characters than printable ASCII without spaces, so clients can't send the token: "
            "give another --token (or ALIGNER_SERVE_TOKEN), or leave --token out for a random token"
        )
    return token


def _listening(host: str, port: int) -> list[socket.socket]:
    if port not in PORTS:  # the system would use the lowest 16 bits
        raise UserError(f"there is no port {port}: give --port from 1 to {PORTS[-1]}, or 0 for any free port")
    try:
        return bind_sockets(port, host)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            cure = "this machine has no such address: give another with --host (127.0.0.1: for this machine alone)"
        else:
            cure = "give another port with --port (0: any free port)"
        raise UserError(f"port {port} of {host} can't be used ({error.strerror}): {cure}") from None


def _url(host: str, listening: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/v1"


def _greeting(name: str, url: str, token: str) -> str:
    """The address of the server, and examples of requests."""
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello."}]})
    lines = [
        f"{name} is served at {url} with the token {token} (Ctrl-C ends it). Ask it from a terminal:",
        "",
        f"curl {url}/chat/completions -H {shlex.quote(f'Authorization: Bearer {token}')} -H 'Content-Type: application/json' "
        f"-d {shlex.quote(body)}",
        "",
        "or from Python:",
        "",
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{url}", api_key={json.dumps(token)})',
        f'print(client.chat.completions.create(model="{name}", '
        'messages=[{"role": "user", "content": "Hello."}]).choices[0].message.content)',
        "",
    ]
    if not _is_loopback(url):
        lines.append(
            "note: this address is open to other machines, and neither texts nor the token are encrypted on the way"
        )
    return "\n".join(lines)


def _is_loopback(url: str) -> bool:
    host = url.removeprefix("http://").rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
