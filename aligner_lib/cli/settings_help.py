"""`aligner KIND --help`: a kind's settings with type, default and sentence, in groups."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import Field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType, NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from omegaconf import DictConfig, OmegaConf

from aligner_lib.config.kind import JobKind
from aligner_lib.config.schema import settings, types_of
from aligner_lib.config.validation import without_effect
from aligner_lib.errors import UserError

WIDTH, COLUMN = 80, 40
NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text", list: "list", dict: "dict"}


class SettingLine(NamedTuple):
    """A setting as the help shows it."""

    group: str
    name: str
    values: str
    default: str
    sentence: str


def settings_help(kind: JobKind, config: DictConfig, words: Iterable[str] = ()) -> str:
    """Format the settings of a kind that have an effect, 80 columns wide.

    config: its values are shown as defaults. words: show only settings whose full name contains a word of the list. Raises
    UserError if no setting contains any of the words.
    """
    words, idle = list(words), without_effect(kind, config)
    lines = [line for line in _lines(kind.schema, config) if f"{line.group}.{line.name}" not in idle]
    if words:
        lines = [line for line in lines if any(word in f"{line.group}.{line.name}" for word in words)]
        if not lines:
            raise UserError(
                f"{' '.join(words)}: no setting of `aligner {kind.command}` has these words in its name"
            )
    parts, group = [], None
    for line in lines:
        if line.group != group:
            group = line.group
            parts.append(f"\n{group}")
        parts.append(_shown(line))
    return "\n".join(parts).strip()


def _lines(schema: type, config: DictConfig, prefix: str = "") -> Iterator[SettingLine]:
    """The settings of a schema. Settings of inner groups come after the schema's own settings."""
    types, sentences = types_of(schema), _sentences(schema)
    inner = []
    for entry in fields(schema):
        name, kind = f"{prefix}{entry.name}", types[entry.name]
        if is_dataclass(kind):
            inner.append((kind, f"{name}."))
            continue
        if entry.metadata.get("without_effect"):
            continue
        bound = entry.metadata.get("bound")
        words = bound.words if bound else ""
        values = " or ".join(_choices_in(entry)) if bound and bound.choices else _type_in_words(kind, words)
        default = _in_yaml(OmegaConf.select(config, name))
        yield SettingLine(prefix.rstrip("."), entry.name, values, default, sentences.get(entry.name, ""))
    for kind, name in inner:
        yield from _lines(kind, config, name)


def _shown(line: SettingLine) -> str:
    head = f"  {line.name} = {line.default}"
    first = f"{head:{COLUMN}}{line.values}" if len(head) < COLUMN else f"{head}   {line.values}"
    shown = textwrap.wrap(first, WIDTH, subsequent_indent=" " * COLUMN, break_on_hyphens=False)
    sentence = textwrap.wrap(line.sentence, WIDTH - 6, break_on_hyphens=False)
    return "\n".join([*shown, *(f"      {part}" for part in sentence)])


def _type_in_words(kind: Any, bound: str) -> str:
    """A type and its bound, as in "number, above 0"."""
    if get_origin(kind) in (UnionType, Union):
        kinds = [part for part in get_args(kind) if part is not NoneType]
        text = " or ".join(_type_in_words(part, "") for part in kinds)
        optional = len(kinds) < len(get_args(kind))
    else:
        text, optional = NAMES.get(get_origin(kind) or kind, ""), False
    return ", ".join(filter(None, [text, bound, "or null" if optional else ""]))


def _in_yaml(value: Any) -> str:
    text = OmegaConf.to_yaml(OmegaConf.create({"value": value}), resolve=True).partition(":")[2].strip()
    return (
        text
        if "\n" not in text
        else str(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)
    )


@cache
def _sentences(schema: type) -> dict[str, str]:
    """The text under each field of a dataclass and of its bases, or of the class that its `described_in` names. Empty for a class
    without source."""
    texts: dict[str, str] = {}
    for cls in reversed(getattr(schema, "described_in", schema).__mro__):
        node = _classes(sys.modules[cls.__module__]).get(cls.__name__)
        body = node.body if node else []
        for before, after in pairwise(body):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(before, ast.AnnAssign) and is_text:
                texts[before.target.id] = " ".join(str(after.value.value).split())
    return texts


@cache
def _classes(module: ModuleType) -> dict[str, ast.ClassDef]:
    """The classes of a module's file; empty for a module without a file."""
    try:
        nodes = ast.parse(inspect.getsource(module)).body
    except (OSError, TypeError):  # a built-in module
        return {}
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def completions(kind: JobKind, incomplete: str) -> list[str]:
    """Complete a word that a shell passes: with settings or, after an equals sign, with values."""
    key, equals, value = incomplete.lstrip("+").partition("=")
    plus = incomplete[: len(incomplete) - len(incomplete.lstrip("+"))]
    schema = dict(settings(kind.schema))
    if not equals:
        return [f"{plus}{name}=" for name in schema if name.startswith(key)]
    return [f"{plus}{key}={choice}" for choice in _choices(kind.schema, key) if choice.startswith(value)]


def _choices(schema: type, key: str) -> list[str]:
    """All values of a setting with a list of values; empty for other settings and unknown keys."""
    entry = dict(settings(schema)).get(key)
    return [] if entry is None else _choices_in(entry)


def _choices_in(entry: Field) -> list[str]:
    bound = entry.metadata.get("bound")
    if bound and bound.choices:
        return ["null" if choice is None else str(choice) for choice in bound.choices]
    return ["true", "false"] if isinstance(entry.default, bool) else []
