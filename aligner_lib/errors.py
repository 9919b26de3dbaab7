"""What a user can put right: told in one message, without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in what was asked for. Its text names the value, the place and the cure."""


class ConfigError(UserError, ValueError):
    """A setting that does not exist, has the wrong type or makes no sense."""


class FunctionError(UserError):
    """A function of the user's own, in place of one of the library's, that raises or returns what it may not."""


class UnmatchedCheckpoint(UserError):
    """A checkpoint whose other half, in another job's run folder, is gone."""


class Interruption(Exception):
    """Another job that the work needs has gone away; its text says how. Loading a checkpoint waits for that job."""
