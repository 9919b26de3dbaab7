"""Environments by name: the meaning of `use` and `args` in the settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from numbers import Integral, Real
from typing import Any

from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments import tracebacks
from aligner_lib.rollouts.environments.base import Environment, require
from aligner_lib.rollouts.environments.user_file import UserFile

BUILT_IN = {
    "sums": "sums:Sums",
    "form_rules": "form_rules:FormRules",
    "instructions": "instructions:Instructions",
    "calculator": "calculator:Calculator",
    "tool_calculator": "tool_calculator:ToolCalculator",
    "search": "search:Search",
    "guess_the_number": "guess_the_number:GuessTheNumber",
    "answers": "answers:Answers",
    "reasoning_gym": "reasoning_gym:ReasoningGym",
    "verifiers": "verifiers:Verifiers",
    "reward_model": "reward_model:RewardModelPrompts",
    "judge": "judge:JudgedPrompts",
}
BOOLEAN = {"bool": (bool, "true or false")}
SCALARS = BOOLEAN | {"int": (Integral, "a whole number"), "float": (Real, "a number"), "str": (str, "a text")}


def find(use: str) -> str | UserFile:
    """The source of the environment named `use`: a built-in name, or a user's file. The file is read but not run.

    Raises UserError for an unknown name, for a missing file, and for a file that is not Python.
    """
    if use in BUILT_IN:
        return use
    if ".py" in use:
        return UserFile.read(use)
    raise UserError(
        f"use={use!r} is unknown: choose from {', '.join(BUILT_IN)}, or the path of your own file, file.py"
    )


def build(source: str | UserFile, split: str, args: dict[str, Any]) -> Environment:
    """Build an environment for a split. A user's file is run here. Raises UserError for wrong arguments and a wrong size."""
    if isinstance(source, UserFile):
        constructor = source.load()
    else:
        module, _, name = BUILT_IN[source].partition(":")
        constructor = getattr(import_module(f"aligner_lib.rollouts.environments.{module}"), name)
    _check_names(constructor, args)
    # a user's class may take more than its annotations say; but `no` as a text would be true
    _check_values(constructor, args, BOOLEAN if isinstance(source, UserFile) else SCALARS)
    try:
        environment = constructor(split=split, **args)
        size = environment.size
        require(
            size is None or (isinstance(size, Integral) and size >= 1),
            f"{type(environment).__name__}.size is {size!r}: give the number of different episodes, at least 1, or None for no end",
        )
        return environment
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the environment can't be built with args={args}:\n{tracebacks.of_error(error)}"
        ) from error


def make(use: str, split: str = "train", **args: Any) -> Environment:
    """Build an environment in this process, to test the environment: `make("sums", digits=2).reset(0)`."""
    return build(find(use), split, args)


def _check_names(constructor: Callable[..., Environment], args: dict[str, Any]) -> None:
    """Check the arguments of a constructor. Raises UserError for an unknown or missing argument, and for a missing `split`."""
    signature = inspect.signature(constructor)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "split"]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    parameters = [
        parameter
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    names = [parameter.name for parameter in parameters]
    unknown = [name for name in args if name not in names]
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.name not in args
    ]
    if "split" not in signature.parameters and (missing or not takes_any):
        name = constructor.__name__
        raise UserError(f'{name}{signature} takes no split: write def __init__(self, split="train", *, …)')
    if unknown and not takes_any:
        raise UserError(
            f"there is no args.{unknown[0]}; the environment takes {', '.join(names) or 'no arguments'}"
        )
    if missing:
        form = ", a JSON Lines file with a `prompt` in each line" if missing[0] == "prompts" else ""
        raise UserError(f"args.{missing[0]} is needed{form}")


def _check_values(
    constructor: Callable[..., Environment], args: dict[str, Any], forms: dict[str, tuple[type, str]]
) -> None:
    """Check the arguments of a constructor against its annotations, or its defaults that are true or false.

    forms: the name of a type → the type of its values, and the words for it. Raises UserError for a value of another type.
    """
    for name, parameter in inspect.signature(constructor).parameters.items():
        is_bare = parameter.annotation is parameter.empty
        kind = type(parameter.default) if is_bare else parameter.annotation
        kind = getattr(kind, "__name__", kind)
        if name not in args or kind not in (BOOLEAN if is_bare else forms):
            continue
        value, (values, words) = args[name], forms[kind]
        fits = isinstance(value, values) and (kind == "bool" or not isinstance(value, bool))
        require(fits or value is parameter.default, f"{name}={value!r}: write {words}")
