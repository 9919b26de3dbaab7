"""What a user can put right: told in one message, without a traceback."""

from __future__ import annotations

from collections.abc import Callable


class UserError(Exception):
    """A mistake in what was asked for. Its text names the value, the place and the cure."""


class ConfigError(UserError, ValueError):
    """A setting that does not exist, has the wrong type or makes no sense."""


class UnmatchedCheckpoint(UserError):
    """A checkpoint whose other half, in another job's run folder, is gone."""


class Interruption(Exception):
    """Work that was cut short and has changed nothing; its text says by what. It can be done again once `overcome`."""

    def overcome(self, stop: Callable[[], bool]) -> bool:
        """Wait until the work can be done again; False when `stop` says so first. Raises UserError when it is too long."""
        raise NotImplementedError
