"""The settings of a Hugging Face `config.json`. Reading a setting checks its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aligner_lib.models.architecture import MOST_VALUES

REQUIRED: Any = object()


class Settings:
    """Reads settings by name.

    A setting without a default is required. A setting with the default None may also be null. Raises ValueError with the file,
    the setting and its value for a missing setting and for a value of the wrong type.
    """

    def __init__(self, values: dict, where: str = "config.json"):
        self._values, self._where = values, where

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def __len__(self) -> int:
        return len(self._values)

    def with_defaults(self, **values: Any) -> Settings:
        """The same settings, with these values for missing settings."""
        return Settings({**values, **self._values}, self._where)

    def count(self, name: str, default: Any = REQUIRED, most: int = MOST_VALUES) -> Any:
        """An integer from 1 to `most`."""
        kind = f"an integer from 1 to {most}"
        return self._get(name, default, kind, lambda value: type(value) is int and 0 < value <= most)

    def number(self, name: str, default: Any = REQUIRED) -> Any:
        """A number, as a float."""
        value = self._get(name, default, "a number", lambda value: type(value) in (int, float))
        return value if value is None else float(value)

    def flag(self, name: str) -> bool:
        """A truth value; False when the setting is missing or null."""
        return bool(self._get(name, None, "a truth value", lambda value: type(value) is bool))

    def word(self, name: str, default: Any = REQUIRED) -> Any:
        """A text."""
        return self._get(name, default, "a text", lambda value: isinstance(value, str))

    def listed(self, name: str, length: int | None = None) -> list | None:
        """A list, or None. length: the least number of entries."""
        kind = "a list" if length is None else f"a list of {length}"
        return self._get(
            name, None, kind, lambda value: isinstance(value, list) and len(value) >= (length or 0)
        )

    def section(self, name: str) -> Settings:
        """The settings of a section; empty when the section is missing."""
        value = self._get(name, None, "an object", lambda value: isinstance(value, dict))
        return Settings(value or {}, f"{self._where}: {name}")

    def refuse(self, reason: str) -> ValueError:
        """An error to raise, with the file and the reason."""
        return ValueError(f"{self._where}: {reason}")

    def refuse_flags(self, *names: str) -> None:
        """Raises ValueError when one of the flags is set, because the flag's feature is not supported."""
        for name in names:
            if self.flag(name):
                raise self.refuse(f"{name} is true, which the importer does not support")

    def _get(self, name: str, default: Any, kind: str, fits: Callable[[Any], bool]) -> Any:
        if name not in self._values:
            if default is REQUIRED:
                raise ValueError(f"{self._where} has no {name!r}, which the model needs")
            return default
        value = self._values[name]
        if (value is None and default is None) or fits(value):
            return value
        null = ", or null" if default is None else ""
        raise self.refuse(f"{name} is {repr(value)[:100]}, but must be {kind}{null}")
