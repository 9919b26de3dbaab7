"""OpenAI's completions and chat completions: the format of answers, complete or streamed.

This module depends neither on HTTP nor on models. Source: OpenAI's API reference, /v1/completions and /v1/chat/completions.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field

from aligner_lib.datasets.tool_calls import ToolCall


@dataclass(frozen=True)
class TokenLogprob:
    """A token's text, its log-probability in nats (None for the first token of a text), and the likeliest tokens at its
    position."""

    text: str
    logprob: float | None
    likeliest: tuple[tuple[str, float], ...] = ()
    offset: int = 0
    """The position of the token's text in the answer's text."""


@dataclass
class Choice:
    """An answer to a prompt, or the next part of an answer."""

    index: int
    text: str = ""
    finish_reason: str | None = None
    """stop, length or tool_calls; None: the answer is not complete."""
    tokens: list[TokenLogprob] | None = None
    """None if not requested."""
    calls: list[ToolCall] = field(default_factory=list)
    first_call: int = 0
    """The number of calls in earlier parts of the answer."""


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens in the prompt and in the answer."""

    prompt: int
    completion: int

    def body(self) -> dict:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }


@dataclass(frozen=True)
class Writer:
    """Writes the answers to a request. chat: True for chat completions, False for completions."""

    model: str
    chat: bool
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: list[Choice], usage: Usage) -> dict:
        """The complete answer to a request without streaming."""
        return self._head("") | {"choices": list(map(self._choice, choices)), "usage": usage.body()}

    def part(self, choice: Choice) -> dict:
        """The next part of a streamed choice."""
        return self._head(".chunk") | {
            "choices": [self._delta(choice) if self.chat else self._choice(choice)]
        }

    def begin(self, index: int) -> dict:
        """The beginning of a choice in a streamed chat."""
        delta = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._head(".chunk") | {"choices": [delta]}

    def usage(self, usage: Usage) -> dict:
        """The last part of a stream, if the request includes usage."""
        return self._head(".chunk") | {"choices": [], "usage": usage.body()}

    def _head(self, suffix: str) -> dict:
        kind = f"chat.completion{suffix}" if self.chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _choice(self, choice: Choice) -> dict:
        own = {
            "index": choice.index,
            "finish_reason": choice.finish_reason,
            "logprobs": self._logprobs(choice),
        }
        if self.chat:
            calls = {"tool_calls": list(map(_call, choice.calls))} if choice.calls else {}
            content = choice.text if choice.text or not calls else None
            return own | {"message": {"role": "assistant", "content": content, "refusal": None, **calls}}
        return own | {"text": choice.text}

    def _delta(self, choice: Choice) -> dict:
        delta: dict = {"content": choice.text} if choice.text else {}
        if choice.calls:
            numbered = enumerate(choice.calls, start=choice.first_call)
            delta["tool_calls"] = [{"index": number, **_call(call)} for number, call in numbered]
        return {
            "index": choice.index,
            "delta": delta,
            "finish_reason": choice.finish_reason,
            "logprobs": self._logprobs(choice),
        }

    def _logprobs(self, choice: Choice) -> dict | None:
        if choice.tokens is None:
            return None
        if self.chat:
            return {"content": [_chat_logprob(token) for token in choice.tokens], "refusal": None}
        return {
            "tokens": [token.text for token in choice.tokens],
            "token_logprobs": [token.logprob for token in choice.tokens],
            # several tokens may have the same text, such as parts of a character: the likeliest of them counts
            "top_logprobs": [dict(reversed(token.likeliest)) or None for token in choice.tokens],
            "text_offset": [token.offset for token in choice.tokens],
        }


def _call(call: ToolCall) -> dict:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _chat_logprob(token: TokenLogprob) -> dict:
    def entry(text: str, logprob: float | None) -> dict:
        complete = "\ufffd" not in text  # the bytes of an incomplete character can't be derived from its text
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if complete else None}

    return entry(token.text, token.logprob) | {"top_logprobs": [entry(*other) for other in token.likeliest]}


def models(name: str, created: int) -> dict:
    """The answer of /v1/models."""
    return {"object": "list", "data": [model(name, created)]}


def model(name: str, created: int) -> dict:
    """The answer of /v1/models/NAME."""
    return {"id": name, "object": "model", "created": created, "owned_by": "aligner"}
