"""Environments whose policy may call tools: plain Python functions with type hints and a docstring."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any
from unittest import mock

from aligner_lib.datasets.tool_calls import Tool, ToolCall, UnreadableCall, read_calls
from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments.base import Environment, Message, NoVerdict, Prompt, Step, with_escapes

EXAMPLE = '''\
def temperature(city: str) -> float:
    """
    The temperature of a city.

    Args:
        city: The city's name.
    """
    return 21.5'''


class ToolEnvironment(Environment):
    """An environment that runs the calls in a response and returns their results to the policy. `judge` answers a response without a
    call, and may end the episode or ask another question.

    A subclass has `tools`, `prompt` and `judge`. A tool's name, hints and docstring make the description that the policy reads,
    and the policy's template writes calls and results. A response may call several tools; each result is a message of the role
    `tool`, in the order of the calls. The result of a call that fails is the error's text. A call in the last of `max_turns`
    responses is not run. Metrics: `calls` and `failed_calls` of the episode.

    A tool has to return the same result for the same calls since the episode began, because a request replays the episode.
    """

    max_turns = 4
    tools: Sequence[Callable[..., object]] = ()
    """The functions that the policy may call, with hints and a docstring as in Google's style."""

    @abstractmethod
    def prompt(self, seed: int) -> list[Message]:
        """Begin the episode of a seed. Returns its prompt, without the tools."""

    @abstractmethod
    def judge(self, answer: str) -> Step | NoVerdict:
        """Judge the text of a response without calls, or of the episode's last response outside its calls."""

    @cached_property
    def described_tools(self) -> dict[str, DescribedTool]:
        """The tools by name. Raises UserError for two tools with the same name."""
        described = {tool.schema["function"]["name"]: tool for tool in map(DescribedTool, self.tools)}
        if len(described) < len(self.tools):
            names = [tool.__name__ for tool in self.tools]
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"two tools are named {twice}: rename one of them")
        return described

    @property
    def tool_schemas(self) -> tuple[Tool, ...]:
        return tuple(tool.schema for tool in self.described_tools.values())

    def reset(self, seed: int) -> Prompt:
        self.turns = self.calls = self.failed_calls = 0
        return self.prompt(seed)

    def step(self, response: str) -> Step | NoVerdict:
        self.turns += 1
        answer, calls = read_calls(response)
        self.calls += len(calls)
        if calls and self.turns < self.max_turns:
            return Step(done=False, observation=[self._result(call) for call in calls])
        step = self.judge(answer)
        if isinstance(step, NoVerdict):
            return step
        counts = {"calls": self.calls, "failed_calls": self.failed_calls}
        if taken := [name for name in step.metrics if name in counts]:
            raise ValueError(f"a metric is named {taken[0]}, as a count of tool calls: rename the metric")
        return replace(step, metrics={**step.metrics, **counts})

    def _result(self, call: ToolCall | UnreadableCall) -> Message:
        """The message with the result of a call, or with the reason why there is none."""
        try:
            if isinstance(call, UnreadableCall):
                raise ValueError(call.problem)
            content = result_of(call, self.described_tools)
        except Exception as error:  # an error of a tool is a result, from which the policy learns
            self.failed_calls += 1
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            content = f"error: {kind}{error}"
        name = {} if isinstance(call, UnreadableCall) else {"name": with_escapes(call.name)}
        return {"role": "tool", **name, "content": with_escapes(content)}


class DescribedTool:
    """A function that the policy may call, with its description. Raises the errors of `schema_of`."""

    def __init__(self, function: Callable[..., object]):
        from jsonschema import Draft202012Validator

        self.function, self.schema = function, schema_of(function)
        parameters = _with_nulls(self.schema["function"]["parameters"]) | {"additionalProperties": False}
        self.arguments = Draft202012Validator(parameters)


def _with_nulls(schema: Any) -> Any:
    """A schema whose values with `nullable` may be null. transformers writes OpenAPI's word for `| None`, which JSON Schema, the
    language of the check, does not know.
    """
    if isinstance(schema, list):
        return [_with_nulls(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: _with_nulls(value) for name, value in schema.items() if name != "nullable"}
    return {"anyOf": [inner, {"type": "null"}]} if schema.get("nullable") is True else inner


def result_of(call: ToolCall, tools: Mapping[str, DescribedTool]) -> str:
    """Run a call, and wait for an async tool. Returns the tool's result: a text unchanged, any other value as JSON.

    Raises ValueError, in words for the policy, for an unknown tool and for arguments that do not fit the schema, and any
    exception of the tool.
    """
    from jsonschema.exceptions import best_match

    if call.name not in tools:
        raise ValueError(f"there is no function {call.name}; the functions are {', '.join(tools)}")
    tool = tools[call.name]
    if problem := best_match(tool.arguments.iter_errors(call.arguments)):
        place = "".join(f"{name}: " for name in problem.absolute_path)
        raise ValueError(f"the arguments of {call.name} do not fit: {place}{problem.message}")
    result = tool.function(**call.arguments)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)


def schema_of(tool: Callable[..., object]) -> Tool:
    """The description of a function for a template, in OpenAI's form.

    Raises UserError for a function without hints or a docstring with the arguments.
    """
    from transformers.utils import chat_template_utils

    # transformers imports torch, which takes a second, only to compare hints with its Tensor: a hint can be a Tensor only if torch is
    # imported already
    known = mock.patch.object(chat_template_utils, "is_torch_available", lambda: "torch" in sys.modules)
    try:
        with known:
            schema: Mapping[str, Any] = chat_template_utils.get_json_schema(tool)
    except Exception as error:  # transformers has errors of its own for hints and for docstrings
        name = getattr(tool, "__name__", repr(tool))
        raise UserError(f"the tool {name} can't be described: {error} Write it as in\n{EXAMPLE}") from None
    function = {name: schema["function"][name] for name in ("name", "description", "parameters")}
    return {"type": "function", "function": function}
