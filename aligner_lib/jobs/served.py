"""A model on a server, used like a model in the notebook's own process, for `widgets.Chat`.

    answer = answering_at("http://127.0.0.1:8000", token)     # answer("How are you?") returns the served policy's text

This module imports neither torch nor a client library.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable

from aligner_lib.datasets.chat_template import turns_of
from aligner_lib.errors import UserError
from aligner_lib.jobs.drawn_answer import DrawnAnswer
from cluster.rendezvous import open_url

TIMEOUT_S = 600.0
LONGEST_QUOTE = 200  # characters of an unexpected reply in a message


def answering_at(
    url: str, token: str, max_length: int = 64, seed: int = 0, model: str | None = None, **sampling
) -> Callable[[str], str]:
    """Return a function that requests a served model's answer to a question or a conversation.

    The answer is a DrawnAnswer and records whether the server truncated the text. The server is `aligner serve` or any other
    OpenAI-compatible server. url: such as http://127.0.0.1:8000, with or without /v1. max_length: the answer's maximal length
    in tokens. model: the model's name on the server; None: the server's first model. sampling: further fields of the request,
    such as temperature. Raises UserError if the server does not answer, or rejects the request; the error has the server's
    message. Also raises UserError for n other than 1.
    """
    if sampling.get("n", 1) != 1:
        raise UserError(f"n={sampling['n']} asks for several answers, but only one is shown: leave n out")
    root = f"{url.rstrip('/').removesuffix('/v1')}/v1"

    def ask(path: str, **body: object) -> dict:
        data = json.dumps(body).encode() if body else None
        headers = {"Authorization": f"Bearer {token.strip()}", "Content-Type": "application/json"}
        try:
            with open_url(urllib.request.Request(f"{root}/{path}", data, headers), TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise UserError(f"{root}/{path}: {_message_of(error)}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise UserError(
                f"no server answers at {root} ({getattr(error, 'reason', error)}): start a server with `aligner serve POLICY`, or give "
                "the server's address"
            ) from None

    def first_model() -> str:
        try:
            return ask("models")["data"][0]["id"]
        except (KeyError, IndexError, TypeError):
            raise UserError(f"{root}/models: the server lists no models; give model=…") from None

    settings = {"model": model or first_model(), "max_tokens": max_length, "seed": seed} | sampling

    def answer(text: str) -> str:
        reply = ask("chat/completions", messages=turns_of(text), **settings)
        try:
            choice = reply["choices"][0]
            content = choice["message"]["content"] or ""  # null: the server gives a model's thoughts apart
        except (KeyError, IndexError, TypeError):
            raise UserError(
                f"{root}/chat/completions has sent no answer, but {json.dumps(reply)[:LONGEST_QUOTE]}: see the server's log, or "
                "give the address of an OpenAI-compatible server"
            ) from None
        return DrawnAnswer(content.strip(), choice.get("finish_reason") != "length")

    return answer


def _message_of(error: urllib.error.HTTPError) -> str:
    try:
        return json.load(error)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
