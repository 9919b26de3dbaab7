"""A user's file as an environment: the file has a reward function, or a subclass of Environment."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import PurePath
from types import ModuleType
from typing import Any

from aligner_lib.config.functions import place_in
from aligner_lib.config.user_module import run_file
from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments import tracebacks
from aligner_lib.rollouts.environments.base import Environment, Message, NoVerdict, Step, require
from aligner_lib.rollouts.environments.prompt_files import PromptFiles, PromptRecord
from aligner_lib.rollouts.environments.tools import ToolEnvironment

TOOLS = "TOOLS"  # a file's list of functions that the policy may call
TEXTS = (
    'The completions are texts. For a function that reads messages, as in completion[0]["content"], give '
    "args.conversational=true."
)
REWARD = "reward"  # the function to use in a file with several functions
EXAMPLE = "def reward(prompt, response, **fields): return float(len(response) < 40)"


@dataclass(frozen=True)
class UserFile:
    """A user's file with its text at the start of the run. Processes that start later run the same text."""

    path: str
    """Absolute."""
    text: str
    name: str
    """The function or class to use; empty: the only function or class in the file."""

    @classmethod
    def read(cls, use: str) -> UserFile:
        """Read `file.py` or `file.py:name`. Raises UserError for a missing file and for a file without valid Python."""
        path, name = place_in(use)
        try:
            text = path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        except OSError as error:
            raise UserError(f"use={use!r}: {path} can't be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise UserError(f"use={use!r}: {path} is not UTF-8 text") from None
        try:
            compile(text, str(path), "exec")
        except (SyntaxError, ValueError) as error:
            raise UserError(
                f"{path} is not Python:\n{''.join(traceback.format_exception_only(error)).rstrip()}"
            ) from None
        return cls(str(path), text, name)

    def load(self) -> Callable[..., Environment]:
        """Run the file. Returns a callable that takes the split and the arguments, and makes the environment.

        Raises UserError as `run_file` does, and when the file has no suitable function or class, or several.
        """
        module = run_file(
            self.path,
            self.text,
            "environment",
            lambda error: f"{self.path} raises an error when run:\n{tracebacks.of_error(error)}",
        )
        tools = getattr(module, TOOLS, ())
        is_list = isinstance(tools, list | tuple) and all(map(callable, tools))
        require(is_list, f"{self.path}: {TOOLS} is {tools!r}, but must be a list of functions")
        chosen = self._chosen(module, tools)
        if inspect.isclass(chosen):
            return chosen
        is_async = any(map(inspect.iscoroutinefunction, (chosen, chosen.__call__)))
        together = is_async or "completions" in inspect.signature(chosen).parameters
        if tools:
            require(
                not together,
                f"{self.path}: with {TOOLS}, the reward judges one episode at a time: write a plain function "
                "reward(prompt, response, **fields), without async and without lists",
            )
            return partial(RewardAfterTools, chosen, tools)
        return partial(RewardsTogether if together else RewardFunction, chosen)

    def _chosen(self, module: ModuleType, tools: Sequence[Callable]) -> Any:
        own = {
            name: value
            for name, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__
            and not name.startswith("_")
            and value not in tools
            and (inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, Environment)))
        }
        # a reward may also be imported, a partial, a function with a cache, or an instance with __call__
        name = self.name or REWARD
        value = getattr(module, name, None)
        is_other_class = inspect.isclass(value) and not issubclass(value, Environment)
        if callable(value) and not is_other_class and value not in tools:
            own[name] = value
        if self.name:
            if self.name not in own:
                raise UserError(
                    f"{self.path} has no {self.name}; known functions: {', '.join(own) or 'none'}"
                )
            return own[self.name]
        # a file may have helpers beside its class, or beside a function named reward
        classes = [name for name, value in own.items() if inspect.isclass(value)]
        names = classes or [name for name in own if name == REWARD] or list(own)
        if not names:
            raise UserError(f"{self.path} has no function: write a function, for example\n    {EXAMPLE}")
        if len(names) > 1:
            raise UserError(
                f"{self.path} has {len(names)} functions or classes: {', '.join(names)}. Name a function `reward`, "
                f"or choose a function: use={PurePath(self.path).name}:{names[0]}"
            )
        return own[names[0]]


class RewardFunction(PromptFiles):
    """A user's `reward(prompt, response, **fields)`, called on the prompts of a data file.

    prompt: the text, or the last message's content; fields: the record's other keys. The function returns a number, or a dict
    with "reward" and metrics, or None: the response is left out. The dict needs no "reward" if the settings name several rewards
    among its metrics.
    """

    def __init__(
        self,
        function: Callable[..., float | Mapping[str, float]],
        split: str = "train",
        *,
        prompts: Any,
        held_out: float = 0.2,
    ):
        super().__init__(split, prompts=prompts, held_out=held_out)
        self.function = function
        parameters = inspect.signature(function).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        fields = sorted(self._all_fields(self.records[0]))
        used = next((name for record in self.records for name in self._names() if name in record.fields), "")
        require(
            not used,
            f"a record has the key {used!r}, which is the name of an argument of {_name_of(function)}: rename the key",
        )
        # None: all fields are passed; otherwise only the fields that are parameters of the function
        self._passed = None if takes_all else parameters.keys()
        try:
            inspect.signature(function).bind(**self._arguments(self.records[0], ""))
        except TypeError as error:
            arguments = ", ".join([*self._names(), *fields])
            raise UserError(
                f"{_name_of(function)}{inspect.signature(function)} can't be called with {arguments} ({error}); "
                f"write {EXAMPLE.partition(':')[0]}"
            ) from None

    def step(self, response: str) -> Step | NoVerdict:
        return as_step(self.function(**self._arguments(self.record, response)))

    def _names(self) -> tuple[str, str]:
        """The names of the arguments for a prompt and for its response."""
        return "prompt", "response"

    def _arguments(self, record: PromptRecord, response: str) -> dict[str, Any]:
        prompt, own = self._names()
        wants_prompt = self._passed is None or prompt in self._passed or own == "response"
        return ({prompt: record.question} if wants_prompt else {}) | {own: response, **self._fields(record)}

    def _fields(self, record: PromptRecord) -> dict[str, Any]:
        """The record's fields for a call. The function may change them, so each call gets its own copy."""
        return {
            name: deepcopy(value)
            for name, value in self._all_fields(record).items()
            if self._passed is None or name in self._passed
        }

    def _all_fields(self, record: PromptRecord) -> dict[str, Any]:
        return record.fields


class RewardsTogether(RewardFunction):
    """A user's reward function that judges all responses of a micro batch at the same time.

    The function has one of two forms. In `reward(prompts, completions, **fields)`, the form of TRL, every argument is a list,
    and the result is a list of numbers or of dicts with "reward" and metrics; this form may be async. The calls of `async def
    reward(prompt, response, **fields)` run concurrently, and an error of a call costs no other response its reward. A response
    whose reward is None is left out.

    conversational: each prompt and each completion is a list of messages, as TRL passes for prompts of messages. Otherwise both
    are texts, and the prompt is the last message's content.
    """

    judges_together = True
    _conversational = False

    def __init__(
        self,
        function: Callable[..., Any],
        split: str = "train",
        *,
        prompts: Any,
        held_out: float = 0.2,
        conversational: bool = False,
    ):
        super().__init__(function, split, prompts=prompts, held_out=held_out)
        require(
            not conversational or self._is_of_lists(),
            f"conversational=True: write {_name_of(function)}(prompts, completions, **columns), because the other forms get texts",
        )
        require(
            not conversational or not any(isinstance(record.prompt, str) for record in self.records),
            "conversational=True needs `prompt` or `messages` in place of `text`",
        )
        self._conversational = conversational

    def step(self, response: str) -> Step | NoVerdict:
        (answer,) = self._judge([self.record], [response])
        return as_step(answer)

    def step_all(
        self, seeds: Sequence[int], responses: Sequence[str], groups: Sequence[int] | None = None
    ) -> list[Step | NoVerdict]:
        answers = self._judge([self.records[seed % self.size] for seed in seeds], responses)
        return [as_step(answer) for answer in answers]

    def _judge(self, records: Sequence[PromptRecord], responses: Sequence[str]) -> list[Any]:
        if self._is_of_lists():
            arguments = [self._arguments(record, response) for record, response in zip(records, responses)]
            try:
                answers = self.function(
                    **{name: [given[name] for given in arguments] for name in arguments[0]}
                )
                answers = asyncio.run(_awaited(answers)) if inspect.isawaitable(answers) else answers
                if not isinstance(answers, Iterable) or isinstance(answers, str | Mapping):
                    call = f"{_name_of(self.function)}({', '.join(arguments[0])})"
                    raise TypeError(
                        f"{call} returned {answers!r:.60}: return a list with one reward for each completion"
                    )
                return list(answers)
            except TypeError as error:
                if str(error).startswith("string indices must be integers") and not self._conversational:
                    error.add_note(TEXTS)
                raise

        async def answer_to(record: PromptRecord, response: str) -> Any:
            try:
                return await self.function(**self._arguments(record, response))
            except Exception as error:  # costs only this response its reward
                return NoVerdict("raised", tracebacks.of_error(error))

        async def all_at_once() -> list[Any]:
            return await asyncio.gather(*map(answer_to, records, responses))

        return asyncio.run(all_at_once())

    @cached_property
    def _columns(self) -> dict[str, None]:
        """The keys of all records. A column has a value for every response: None for a record without the key."""
        return dict.fromkeys(name for record in self.records for name in record.fields)

    def _all_fields(self, record: PromptRecord) -> dict[str, Any]:
        return self._columns | record.fields if self._is_of_lists() else record.fields

    def _names(self) -> tuple[str, str]:
        return ("prompts", "completions") if self._is_of_lists() else super()._names()

    def _arguments(self, record: PromptRecord, response: str) -> dict[str, Any]:
        arguments = super()._arguments(record, response)
        if self._conversational:
            arguments["completions"] = [{"role": "assistant", "content": response}]
            if "prompts" in arguments:
                arguments["prompts"] = deepcopy(record.prompt)
        return arguments

    def _is_of_lists(self) -> bool:
        return "completions" in inspect.signature(self.function).parameters


class RewardAfterTools(ToolEnvironment, RewardFunction):
    """A user's reward function on the policy's last response, after calls of the file's TOOLS. turns: the most responses of an
    episode."""

    def __init__(
        self,
        function: Callable[..., float | Mapping[str, float]],
        tools: Sequence[Callable[..., object]],
        split: str = "train",
        *,
        prompts: Any,
        held_out: float = 0.2,
        turns: int = ToolEnvironment.max_turns,
    ):
        super().__init__(function, split, prompts=prompts, held_out=held_out)
        require(turns >= 1, f"turns={turns}: the value must be at least 1")
        require(
            not any(isinstance(record.prompt, str) for record in self.records),
            "tools need `prompt` or `messages` in place of `text`",
        )
        self.tools, self.max_turns = tuple(tools), turns

    def prompt(self, seed: int) -> list[Message]:
        return RewardFunction.reset(self, seed)

    def judge(self, answer: str) -> Step | NoVerdict:
        return RewardFunction.step(self, answer)


def as_step(answer: Any) -> Step | NoVerdict:
    """A reward function's answer, a number or a dict with "reward" and metrics, as a step that ends the episode. None: no reward."""
    if isinstance(answer, NoVerdict):
        return answer
    if answer is None:
        return NoVerdict("no_reward", "the reward function returned None")
    if not isinstance(answer, Mapping):
        return Step(answer)
    metrics = {name: value for name, value in answer.items() if name != "reward"}
    return Step(answer.get("reward"), metrics=metrics)


def _name_of(function: Callable[..., Any]) -> str:
    """The name of a reward function in messages. Partials and instances have no name of their own."""
    return getattr(function, "__name__", REWARD)


async def _awaited(answers: Awaitable[Any]) -> Any:
    return await answers
