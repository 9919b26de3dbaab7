"""Requests to a judge behind an OpenAI-compatible endpoint: concurrent, retried when the endpoint is busy, and cached on disk.

The module imports neither torch nor a client library, so the environments' processes start quickly.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import random
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from aligner_lib.rollouts.environments.base import Message, NoVerdict, require
from aligner_lib.rollouts.server_key import server_key
from cluster.rendezvous import open_url

BUSY = (408, 409, 425, 429, 500, 502, 503, 504)  # a later request may succeed
NO_KEY = 401
LONGEST_PAUSE_S = 60.0


@dataclass
class JudgeEndpoint:
    """A model at an OpenAI-compatible endpoint."""

    url: str
    """With or without /v1."""
    model: str
    key_variable: str = ""
    """The environment variable that holds the key; empty: no key is sent. The key itself is stored nowhere."""
    max_tokens: int = 256
    temperature: float = 0.0
    concurrency: int = 32
    """Requests at the same time."""
    retries: int = 4
    timeout: float = 60.0
    """Seconds for a request."""
    max_calls: int | None = None
    """Requests of this process; answers from the cache and repeated requests do not count. None: no limit; 0: the
    cache alone answers."""
    likeliest: int = 0
    """0: the judge writes a text. Above 0: the answer is a JSON object of this many likeliest first tokens and their
    log-probabilities in nats. OpenAI-compatible servers give at most 20."""
    cache: Path | None = None
    """A file for answers; None: nothing is remembered."""
    on_answer: Callable[[int, int], None] | None = field(default=None, repr=False)
    """Called after each request of `ask`, with an answer or without, with the number of requests so far and of all."""
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    _calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        """Raises UserError for settings with which no request can succeed."""
        require(
            self.url.startswith(("http://", "https://")),
            f"url={self.url!r}: the value must begin with http:// or https://, as in http://127.0.0.1:8000",
        )
        counts = {"max_tokens": 1, "concurrency": 1, "retries": 0}
        counts |= {} if self.max_calls is None else {"max_calls": 0}
        for name, least in (counts | {"temperature": 0, "timeout": 0.001}).items():
            value = getattr(self, name)
            kind, words = (int, "a whole number") if name in counts else (int | float, "a number")
            require(
                isinstance(value, kind) and value >= least,
                f"{name}={value!r}: the value must be {words} of at least {least}",
            )
        if self.key_variable:
            server_key(self.key_variable)  # raises an error for a key that no header can hold
        if self.cache is not None:
            try:
                self.cache.parent.mkdir(parents=True, exist_ok=True)
                self._table().close()
            except (OSError, sqlite3.Error) as error:
                require(
                    False,
                    f"cache={str(self.cache)!r}: the file cannot hold answers ({error}); give another file, or cache: false",
                )

    @property
    def longest_wait(self) -> float:
        """The most seconds of a request with its retries and the pauses before them."""
        return (self.retries + 1) * self.timeout + self.retries * LONGEST_PAUSE_S

    def ask(self, conversations: Sequence[list[Message]]) -> list[str | NoVerdict]:
        """The judge's text for each conversation, in the order of the conversations. Equal conversations are sent once."""
        different = {self.identity(messages): messages for messages in conversations}
        answers = self._remembered(list(different))
        missing = {identity: messages for identity, messages in different.items() if identity not in answers}
        threads = ThreadPoolExecutor(max(1, min(self.concurrency, len(missing))))
        try:
            requests = {
                threads.submit(self._asked, messages): identity for identity, messages in missing.items()
            }
            for number, request in enumerate(as_completed(requests), start=1):
                identity, answer = requests[request], request.result()
                answers[identity] = answer
                if isinstance(answer, str):  # at once, so that a killed run keeps its answers
                    self.remember({identity: answer})
                if self.on_answer:
                    self.on_answer(number, len(missing))
        finally:  # an interrupt waits for no request
            threads.shutdown(wait=False, cancel_futures=True)
        return [answers[self.identity(messages)] for messages in conversations]

    def _asked(self, messages: list[Message]) -> str | NoVerdict:
        with self._lock:
            if self.max_calls is not None and self._calls >= self.max_calls:
                return NoVerdict("budget", f"the judge was asked max_calls={self.max_calls} times already")
            self._calls += 1
        for attempt in range(self.retries + 1):
            try:
                return self._request(messages)
            except urllib.error.HTTPError as error:
                problem, again = self._refusal(error), error.code in BUSY
                pause = _pause(error.headers.get("Retry-After"))
            except (
                OSError,
                http.client.HTTPException,
            ) as error:  # no connection, a timeout, or half an answer
                problem = str(getattr(error, "reason", error)) or type(error).__name__
                again, pause = True, None
            except (ValueError, KeyError, IndexError, TypeError) as error:
                problem, again, pause = f"its answer can't be used ({error})", False, None
            if not again or attempt == self.retries:
                return NoVerdict("judge", f"the judge at {self.url} gave no answer: {problem}")
            # random, so that the threads do not all retry at the same moment
            doubled = 2.0**attempt * (0.5 + random.random())
            self.sleep(min(LONGEST_PAUSE_S, doubled if pause is None else pause))
        raise AssertionError("the last attempt returns")

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        """The server's reason, and for a missing or wrong key the cure."""
        reason = f"{error.code} {_message_of(error)}"
        if error.code != NO_KEY:
            return reason
        if self.key_variable:
            return f"{reason}; check the key in the environment variable {self.key_variable}"
        return (
            f"{reason}; give key_variable, the environment variable with the server's key, such as JUDGE_KEY"
        )

    def _request(self, messages: list[Message]) -> str:
        headers = {"Content-Type": "application/json"}
        if self.key_variable:
            headers["Authorization"] = f"Bearer {server_key(self.key_variable)}"
        root = f"{self.url.rstrip('/').removesuffix('/v1')}/v1"
        data = json.dumps(self._body(messages)).encode()
        request = urllib.request.Request(f"{root}/chat/completions", data, headers)
        with open_url(request, self.timeout) as answer:
            choice = _choice(answer.read())
        if self.likeliest:
            return _first_tokens(choice)
        if choice.get("finish_reason") == "length":  # of "C1: 10", the cut answer may hold "C1: 1"
            raise ValueError(f"the answer was cut at max_tokens={self.max_tokens}; raise max_tokens")
        text = choice["message"]["content"]
        if not isinstance(text, str):
            raise ValueError(f"the content is {text!r}")
        return text

    def _body(self, messages: list[Message]) -> dict[str, object]:
        settings = {"model": self.model, "max_tokens": self.max_tokens, "temperature": self.temperature}
        if self.likeliest:
            settings |= {"max_tokens": 1, "logprobs": True, "top_logprobs": self.likeliest}
        return settings | {"messages": messages}

    # -- the cache ------------------------------------------------------------------------------------------------

    def identity(self, messages: list[Message]) -> str:
        """A hash of everything on which an answer depends."""
        return hashlib.sha256(
            json.dumps([self.url, self._body(messages)], sort_keys=True).encode()
        ).hexdigest()

    def _remembered(self, identities: list[str]) -> dict[str, str | NoVerdict]:
        if self.cache is None:
            return {}
        with closing(self._table()) as table:
            rows = (
                table.execute("SELECT text FROM answers WHERE identity = ?", [name]).fetchone()
                for name in identities
            )
            return {name: row[0] for name, row in zip(identities, rows) if row is not None}

    def remember(self, answers: dict[str, str]) -> None:
        """Add answers to the cache, by the identities of their requests."""
        if self.cache is None or not answers:
            return
        with closing(self._table()) as table, table:
            table.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", answers.items())

    def _table(self) -> sqlite3.Connection:
        table = sqlite3.connect(self.cache, timeout=60)
        table.execute("CREATE TABLE IF NOT EXISTS answers (identity TEXT PRIMARY KEY, text TEXT)")
        return table


def _choice(body: bytes) -> dict:
    """The choice of a chat completion. Raises ValueError for another body, such as the page of a web server."""
    try:
        (choice, *_) = json.loads(body)["choices"]
        return dict(choice)
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace")
        raise ValueError(f"it sent {text[:100]!r} in place of a chat completion") from None


def _first_tokens(choice: dict) -> str:
    """The likeliest first tokens of an answer and their log-probabilities, as JSON. Raises ValueError if they are missing."""
    tokens = (choice.get("logprobs") or {}).get("content")
    if tokens == []:
        raise ValueError(
            f"the judge ended without an answer (finish_reason={choice.get('finish_reason')!r}); use verdict=text or "
            "another judge"
        )
    if not tokens:
        raise ValueError("the log-probabilities are missing; use verdict=text for a server without logprobs")
    logprobs: dict[str, float] = {}
    for entry in tokens[0]["top_logprobs"]:  # several tokens may have the same text
        token, logprob = entry["token"], float(entry["logprob"])
        logprobs[token] = _of_either(logprobs[token], logprob) if token in logprobs else logprob
    return json.dumps(logprobs)


def _of_either(logprob: float, other: float) -> float:
    """The log of the sum of two probabilities."""
    low, high = sorted((logprob, other))
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def _pause(seconds: str | None) -> float | None:
    """The seconds to wait for which a server asks. None for a header that is missing, a date, negative or NaN."""
    try:
        pause = float(seconds)
    except (TypeError, ValueError):
        return None
    return pause if pause >= 0 else None


def _message_of(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return str(error.reason)
