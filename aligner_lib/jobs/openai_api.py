"""OpenAI's completions and chat completions: the fields of a request, and the format of errors.

This module depends neither on HTTP nor on models. Source: OpenAI's API reference, /v1/completions and /v1/chat/completions.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    field_validator,
    model_validator,
)

from aligner_lib.datasets.tool_calls import Tool, ToolCall, calling_message
from data.tools import checked_tools

COMPLETION_TOKENS = 16  # the default length of a completion
CHAT_TOKENS = 512  # the default length of an answer in a chat, if the context has room
MOST_CHOICES, MOST_STOPS, MOST_ALTERNATIVES = 128, 16, 20
MOST_STOP_CHARACTERS = 1000  # in a stop string
# Unsupported fields. A request may contain such a field only with its neutral value.
NOT_DONE: dict[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "suffix": "",
    "parallel_tool_calls": True,
    "functions": [],
    "response_format": {"type": "text"},
    "modalities": ["text"],
}
# These fields do not change the answer.
WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier")


class ApiError(Exception):
    """An error in the format of OpenAI's clients. param: the request's field; code: an identifier for programs."""

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict:
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


# ---- requests -------------------------------------------------------------------------------------------------------


def _explained_by(sentence: str) -> WrapValidator:
    """Let a sentence explain a wrong value of several types, for which pydantic has an error for each type."""

    def check(value: object, handler: Callable[[object], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(sentence) from None

    return WrapValidator(check)


class _Stream(BaseModel):
    model_config = ConfigDict(extra="ignore")
    include_usage: bool = False


_Stop = Annotated[str, Field(min_length=1, max_length=MOST_STOP_CHARACTERS)]


class _ApiRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """0: always the likeliest token."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """An extension of OpenAI's fields. 0: off."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63 - MOST_CHOICES)] | None = None
    stop: Annotated[list[_Stop], Field(max_length=MOST_STOPS, fail_fast=True)] = []
    stream: bool = False
    stream_options: _Stream = _Stream()

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @property
    def prompts(self) -> list:
        """The prompts: each is a text, a list of token ids or a list of messages."""
        raise NotImplementedError

    @property
    def alternatives(self) -> int | None:
        """The number of likeliest tokens to report at each position; None: report no log-probabilities."""
        raise NotImplementedError

    @property
    def echoes(self) -> bool:
        """Whether the answer begins with its prompt."""
        return False

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn; else the answer is its prompt alone, to be scored."""
        return self.max_tokens != 0

    def seeds(self) -> list[int]:
        """The seeds of the choices. The first choice has the request's own seed."""
        first = secrets.randbits(48) if self.seed is None else self.seed
        return [first + choice for choice in range(self.n)]


Ids = Annotated[list[int], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
SeveralIds = Annotated[list[Ids], Field(min_length=1, fail_fast=True)]


class CompletionRequest(_ApiRequest):
    """A request to /v1/completions."""

    prompt: Annotated[
        str | Ids | Texts | SeveralIds,
        _explained_by("the prompt must be a text, a list of token ids, or a list of several of either"),
    ]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None
    echo: bool = False
    best_of: int | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        several = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        return self.prompt if several else [self.prompt]

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return self.echo

    def tokens_for(self, room: int) -> int:
        """The largest number of tokens in an answer. room: tokens that the context leaves for the answer."""
        return min(COMPLETION_TOKENS, room) if self.max_tokens is None else self.max_tokens


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class _Function(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    arguments: str
    """JSON text of an object."""

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.name, json.loads(self.arguments or "{}"))

    @model_validator(mode="after")
    def _arguments_are_an_object(self):
        try:
            is_object = isinstance(self.call.arguments, dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise ValueError("the arguments must be the JSON text of an object")
        return self


class _Call(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: str
    type: Literal["function"] = "function"
    function: _Function


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | Annotated[list[_Part], Field(fail_fast=True)] | None,
        _explained_by('only a text, or parts {"type": "text", "text": …}, are read here'),
    ] = None
    tool_calls: Annotated[list[_Call], Field(fail_fast=True)] = []
    tool_call_id: str | None = None
    name: str | None = None
    """Of a result: the function, which the call's id already says."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty_fields(cls, value: object) -> object:
        """Remove empty fields. A message that a client sends back has a field for each kind of content, and most fields are
        empty."""
        if not isinstance(value, dict):
            return value
        return {name: part for name, part in value.items() if part not in (None, [], {})}

    @model_validator(mode="after")
    def _fields_fit_the_role(self):
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant's message has tool_calls")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("a message of the role tool, and no other, needs tool_call_id")
        if self.name is not None and self.role != "tool":
            raise ValueError("only a message of the role tool has a name here")
        if self.content is None and not self.tool_calls:
            raise ValueError("the content is missing")
        return self

    def plain(self, names: dict[str, str]) -> dict[str, Any]:
        """The message in the form that templates read. `developer` is OpenAI's newer name for the system role. names: the
        functions of the earlier calls by the calls' ids."""
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        if self.tool_calls:
            return calling_message([call.function.call for call in self.tool_calls], text)
        if self.role == "tool":
            return {"role": "tool", "name": names[self.tool_call_id], "content": text}
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class _JsonSchema(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    definition: Annotated[dict[str, Any], Field(alias="schema")] = {}
    description: str | None = None
    strict: bool | None = None
    """Without effect: every answer satisfies the schema."""


class _Format(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None

    @model_validator(mode="after")
    def _has_a_schema(self):
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("the type json_schema, and no other, needs json_schema")
        return self


class ChatRequest(_ApiRequest):
    """A request to /v1/chat/completions."""

    messages: Annotated[list[_Message], Field(min_length=1, fail_fast=True)]
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["none", "auto"] = "auto"
    response_format: _Format = _Format(type="text")
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None

    @property
    def prompts(self) -> list[list[dict[str, Any]]]:
        names: dict[str, str] = {}
        messages = []
        for message in self.messages:
            messages.append(message.plain(names))
            names |= {call.id: call.function.name for call in message.tool_calls}
        return [messages]

    @property
    def offered_tools(self) -> Sequence[Tool]:
        """The functions that the model may call."""
        return self.tools if self.tool_choice == "auto" else ()

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """The JSON schema that the answer must satisfy; None for a text."""
        if self.response_format.type == "text":
            return None
        given = self.response_format.json_schema
        return {"type": "object"} if given is None else given.definition

    @field_validator("tools", mode="before")
    @classmethod
    def _have_the_form(cls, value: object) -> list[Tool]:
        tools = checked_tools(value)
        if any(tool["function"].get("strict") for tool in tools):
            raise ValueError("strict is not supported here: leave strict out")
        return tools

    @model_validator(mode="after")
    def _results_belong_to_calls(self):
        ids: set[str] = set()
        for number, message in enumerate(self.messages):
            if message.role == "tool" and message.tool_call_id not in ids:
                raise ValueError(f"the tool_call_id of message {number} is the id of no call before it")
            ids |= {call.id for call in message.tool_calls}
        return self

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def tokens_for(self, room: int) -> int:
        """The largest number of tokens in an answer. room: tokens that the context leaves for the answer."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return min(CHAT_TOKENS, room) if limit is None else limit


def read(kind: type[_ApiRequest], body: object) -> Any:
    """Read a request from a JSON body. Raises ApiError, which names the field, for an invalid or unsupported request."""
    if not isinstance(body, dict):
        raise ApiError(f"the body is {type(body).__name__}, but must be a JSON object")
    given = {name: value for name, value in body.items() if value is not None and name not in WITHOUT_EFFECT}
    for name in (NOT_DONE.keys() - kind.model_fields.keys()) & given.keys():
        if given.pop(name) != NOT_DONE[name]:
            raise ApiError(f"{name} is not supported here: leave {name} out", param=name, code="unsupported")
    try:
        request = kind.model_validate(given)
    except ValidationError as error:
        raise _explained(kind, error) from None
    best_of = getattr(request, "best_of", None)
    if best_of not in (None, request.n):
        raise ApiError(
            f"best_of={best_of} is not supported here: leave best_of out, or ask for n={best_of}",
            param="best_of",
        )
    if not request.draws and not request.echoes:
        raise ApiError(
            "max_tokens=0 only scores the prompt: give echo=true, too, or ask for at least 1 token",
            param="max_tokens",
        )
    if request.echoes and request.stream:
        raise ApiError("echo with stream is not supported here: leave either out", param="echo")
    is_json = isinstance(request, ChatRequest) and request.json_schema is not None
    if is_json and request.stop:
        raise ApiError(
            "response_format with stop is not supported here, because a stop string cuts the JSON text: leave either out",
            param="response_format",
            code="unsupported",
        )
    if is_json and request.offered_tools:
        raise ApiError(
            "response_format with tools is not supported here: leave either out, or give tool_choice=none",
            param="response_format",
            code="unsupported",
        )
    if isinstance(request, ChatRequest) and request.top_logprobs and not request.logprobs:
        raise ApiError("top_logprobs requires logprobs=true", param="top_logprobs")
    return request


def _explained(kind: type[_ApiRequest], error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    if not first["loc"]:  # the check of results, the only check of a whole request
        return ApiError(first["msg"].removeprefix("Value error, "), param="messages")
    name = str(first["loc"][0])
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden" and name == "messages":
        return ApiError(
            f"{place} is not supported here: a message has only role, content (text), tool_calls, tool_call_id and name",
            param=name,
            code="unsupported",
        )
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(kind.model_fields))
        return ApiError(
            f"there is no field {place!r}; the fields are {known}", param=name, code="unknown_field"
        )
    value = "" if first["type"] == "missing" else f" (it is {_short(first['input'])})"
    reason = first["msg"].removeprefix("Value error, ")
    return ApiError(f"{place}: {reason[0].lower()}{reason[1:]}{value}", param=name)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
