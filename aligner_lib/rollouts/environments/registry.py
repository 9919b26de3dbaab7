"""Environments by name: what `use` and `args` of the settings mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments import tracebacks
from aligner_lib.rollouts.environments.base import Environment
from aligner_lib.rollouts.environments.user_file import UserFile

BUILT_IN = {
    "sums": "sums:Sums",
    "form_rules": "form_rules:FormRules",
    "instructions": "instructions:Instructions",
    "calculator": "calculator:Calculator",
    "guess_the_number": "guess_the_number:GuessTheNumber",
    "answers": "answers:Answers",
    "reasoning_gym": "reasoning_gym:ReasoningGym",
    "verifiers": "verifiers:Verifiers",
    "reward_model": "reward_model:RewardModelPrompts",
}


def find(use: str) -> str | UserFile:
    """What `use` names: a built-in environment, or a user's file, read but not run.

    Raises UserError for an unknown name, and for a file that does not exist or is no Python.
    """
    if use in BUILT_IN:
        return use
    if ".py" in use:
        return UserFile.read(use)
    raise UserError(
        f"use={use!r}: there is {', '.join(BUILT_IN)}, or write the path of a file of yours, file.py"
    )


def build(found: str | UserFile, split: str, args: dict[str, Any]) -> Environment:
    """The environment of a split. A user's file is run here. Raises UserError for wrong arguments."""
    if isinstance(found, UserFile):
        constructor = found.load()
    else:
        module, _, name = BUILT_IN[found].partition(":")
        constructor = getattr(import_module(f"aligner_lib.rollouts.environments.{module}"), name)
    _check_names(constructor, args)
    try:
        return constructor(split, **args)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"it can't be built with args={args}:\n{tracebacks.of_error(error)}") from error


def make(use: str, split: str = "train", **args: Any) -> Environment:
    """An environment in this process, to try it: `make("sums", digits=2).reset(0)`."""
    return build(find(use), split, args)


def _check_names(constructor: Callable[..., Environment], args: dict[str, Any]) -> None:
    """Raise UserError for an argument that it does not take, and for one that it needs."""
    parameters = [one for one in inspect.signature(constructor).parameters.values() if one.name != "split"]
    names = [one.name for one in parameters]
    unknown = [name for name in args if name not in names]
    missing = [one.name for one in parameters if one.default is one.empty and one.name not in args]
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return
    if unknown:
        raise UserError(f"there is no args.{unknown[0]}; args takes {', '.join(names) or 'nothing'}")
    if missing:
        raise UserError(f"args.{missing[0]} is needed")
