"""What a user can put right: told in one message, without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in what was asked for. Its text names the value, the place and the cure."""


class ConfigError(UserError, ValueError):
    """A setting that does not exist, has the wrong type or makes no sense."""
