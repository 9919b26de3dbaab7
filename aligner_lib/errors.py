"""What a user can put right: told in one message, without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in what was asked for. Its text names the value, the place and the cure."""


class ConfigError(UserError, ValueError):
    """A setting that does not exist, has the wrong type or makes no sense."""


class Interruption(Exception):
    """Work that was cut short and has changed nothing. It can be done again once `overcome` has returned."""

    def overcome(self) -> None:
        """Wait until the work can be done again. Raises UserError when that takes too long."""
        raise NotImplementedError
