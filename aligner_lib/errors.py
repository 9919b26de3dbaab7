"""Errors with a solution for the user. The command line shows only the message, without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in the user's request. The message names the value, the place and the fix."""


class ConfigError(UserError, ValueError):
    """A setting with an unknown name, a wrong type or an invalid value."""


class FunctionError(UserError):
    """A user's function in place of a library function raises an exception or returns an invalid value."""


class UnmatchedCheckpoint(UserError):
    """A checkpoint without its counterpart: the checkpoint in another job's run folder no longer exists."""


class Interruption(Exception):
    """A job required by the current job has stopped; the message says how. Loading a checkpoint waits for the other job."""
