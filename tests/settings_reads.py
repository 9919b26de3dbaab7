"""Which settings a job reads: a job that runs inside `recorded()` notes each one, with the modules that read it.

What composes, checks, tells of or saves settings as a whole uses none of them, and is not counted.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from aligner_lib.config import compose as composition
from aligner_lib.config import schema, validation
from aligner_lib.config.compose import written
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import ConfigError
from aligner_lib.run_folder.exporters.services import options, requested

Reads = dict[str, list[str]]  # setting → modules
WHOLE = {(composition.__name__, name) for name in ("compose", "overridden", "notices", "save", "load")} | {
    (validation.__name__, name) for name in ("check", "notices")
}
WHOLE.add(("aligner_lib.jobs.runtime", "log_notices"))
WORDS = "other selective full uniform constant".split()
VALUES = (True, False, 1, 2, 3, 64, 0.5, *WORDS)
VALUES += ([0.5, 0.5], ["other"], {"other": {"use": "sums"}}, {"other": "x"}, {"train": ["other"]})


@contextmanager
def recorded() -> Iterator[dict[str, set[str]]]:
    """The settings that are read from now on by attribute, index, `get` or as plain values."""
    reads: dict[str, set[str]] = defaultdict(set)

    def noted(name: str):
        read = getattr(DictConfig, name)

        def note(config, key, *default):
            if not str(key).startswith("__") and (reader := _reader()):
                reads[config._get_full_key(key)].add(reader)
            return read(config, key, *default)

        return note

    to_container = OmegaConf.to_container

    def note_all(config, **options):
        if reader := _reader():
            at = config._get_full_key("")
            for key, _ in composition._leaves("", to_container(config), config):
                reads[f"{at}.{key}" if at else key].add(reader)
        return to_container(config, **options)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("__getattr__", "__getitem__", "get"):
            patch.setattr(DictConfig, name, noted(name))
        patch.setattr(OmegaConf, "to_container", staticmethod(note_all))
        yield reads


def _reader() -> str | None:
    """The module that reads; None where settings are handled as a whole."""
    frame, reader = sys._getframe(2), None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if (module, frame.f_code.co_name) in WHOLE:
            return None
        if reader is None and not module.startswith("omegaconf") and module != __name__:
            reader = module
        frame = frame.f_back
    return reader


def record_reads(work, kind: str, settings: list[str], out: Path, *more: object) -> None:
    """Run work(kind, settings, *more), and write what it read to `out`."""
    with recorded() as reads:
        work(kind, settings, *more)
    out.write_text(json.dumps({key: sorted(modules) for key, modules in reads.items()}))


def is_read(key: str, reads: Reads) -> bool:
    """Also when only a part of it was: a free-form dict's key."""
    return any(name == key or name.startswith(f"{key}.") for name in reads)


def is_exported(config: DictConfig, key: str) -> bool:
    """Whether an exporter that these settings ask for finds it in run.json, in a process of its own."""
    stored = composition.save(config)
    return any(
        key == f"exp_manager.{name}_logger_kwargs.{option}"
        for name in requested(stored["exp_manager"])
        for option in options(stored, name)
    )


def silent(kind: str, settings: list[str], reads: Reads) -> list[str]:
    """The settings that nobody read and that tell nothing when they have another value than usual.

    Of a setting with few values each is tried, and such a setting is written with the values that tell nothing.
    """
    usual, defaults = composition.compose(kind, settings, "smoke"), composition._defaults(kind, "smoke")
    bounds, silent_keys, changed = bounds_of(kind), [], copy.deepcopy(usual)
    for key in composition.keys(kind):
        if is_read(key, reads):
            continue
        bound = bounds.get(key)
        choices = bound.choices if bound else ()
        for values in [(value,) for value in choices] or [VALUES]:
            is_changed = take_another_value(kind, changed, key, bound, values)
            if is_changed and not names(validation.notices(kind_of(kind), changed, defaults), key):
                silent_keys.append(key if values is VALUES else f"{key}={values[0]}")
            # a copy of all settings for each of them would take longer
            OmegaConf.update(changed, key, OmegaConf.select(usual, key), merge=False)
    assert changed == usual
    return silent_keys


def names(lines: list[str], key: str) -> bool:
    """Whether a notice names a setting, or a key of a free-form dict."""
    return any(re.search(rf"{re.escape(key)}(\.\w+)*=", line) for line in lines)


def bounds_of(kind: str) -> dict:
    """The bound of each setting that has one."""
    entries = schema.settings(kind_of(kind).schema)
    return {key: entry.metadata["bound"] for key, entry in entries if entry.metadata.get("bound")}


def take_another_value(kind: str, config: DictConfig, key: str, bound, values: tuple) -> bool:
    """Give this setting an unusual one of the values. False where all that are unusual are refused, with words on what
    to write."""
    now, explained = copy.deepcopy(OmegaConf.select(config, key)), False
    for value in sorted(values, key=lambda value: type(value) is not type(now)):  # likelier to be taken
        is_same_type = type(value) is type(now)
        if is_same_type and value == now:
            continue
        if is_same_type and bound and not bound.holds(value):
            explained = True  # a check of all settings would say so, and take longer
            continue
        try:
            composition.overridden(config, kind, [f"{key}={written(value)}"])
        except ConfigError as error:
            OmegaConf.update(config, key, now, merge=False)
            explained = explained or (f"{key}=" in str(error) and "must be" in str(error))
            continue
        if OmegaConf.select(config, key) != now:
            return True
    assert explained or values is not VALUES, f"{key}: no value to try"
    return False


def assert_read_or_told(kind: str, overrides: list[str], reads: Reads) -> None:
    """Each of a command's settings, unless it says what holds anyway. reads: of a job of this kind and layout."""
    given, usual = (composition.compose(kind, settings) for settings in (overrides, []))
    lines = composition.notices(kind, given)
    for override in overrides:
        key, _ = composition.parse_override(override)
        unusual = OmegaConf.select(given, key) != OmegaConf.select(usual, key)
        read = is_read(key, reads) or is_exported(given, key)
        assert not unusual or read or names(lines, key), override
