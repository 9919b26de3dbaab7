"""Compose a job's settings from typed defaults, a profile and the user's overrides.

    config = compose("ppo", ["trainer.ppo.initial_policy_kl_penalty=0.02"], profile="laptop")

The schema of the kind (`aligner_lib.config.kinds`) gives the typed defaults. A profile is a YAML file of further defaults in
`profiles/` beside this module. Overrides use Hydra's grammar. This module does not import torch.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, UnsupportedInterpolationType

from aligner_lib.config import validation
from aligner_lib.config.kinds import kind_of
from aligner_lib.config.other_names import OTHER_NAMES, SAME_PURPOSE, is_name_only, not_here
from aligner_lib.config.schema import settings
from aligner_lib.errors import ConfigError
from aligner_lib.run_folder.reader import flatten

PROFILES = Path(__file__).parent / "profiles"
# Strings of this form need no quotes in Hydra's grammar, except the values below.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
# The least likeness of a suggested key to an unknown key, and of a key beyond doubt. A synonym may be spelled differently.
LIKE, ALIKE = 0.6, 0.8
_OTHER_VALUES = {"null", "true", "false", "inf", "nan"}


def compose(kind: str, overrides: Iterable[str] = (), profile: str | None = None) -> DictConfig:
    """Compose a job's settings. kind: a name in `aligner_lib.config.kinds`.

    Raises ConfigError for an unknown key (with the most similar known keys), a wrong type and an invalid value.
    """
    return overridden(_defaults(kind, profile), kind, overrides)


def overridden(config: DictConfig, kind: str, overrides: Iterable[str]) -> DictConfig:
    """Apply overrides to the settings in place, and return the settings. Raises ConfigError as `compose` does."""
    for text in overrides:
        key, value = parse_override(text)
        for leaf, leaf_value in _leaves(key, value, config):
            if not _is_name_only(config, leaf, leaf_value):
                _assign(config, kind, leaf, leaf_value, written=text)
    _check_values(config)
    validation.check(kind_of(kind), config)
    return config


def _check_values(config: DictConfig) -> None:
    """Raise ConfigError for a setting without a value: ???, or a reference to a value that does not exist."""
    try:
        OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        reason = str(error).partition("\n")[0]
        cure = "Give a value, or refer to another setting as in ${model.seed}"
        if isinstance(error, UnsupportedInterpolationType):
            cure = (
                "Give the result as a value, because functions of NeMo-Aligner's files are not computed here"
            )
        raise ConfigError(f"{error.full_key} has no value: {reason}. {cure}") from None


def notices(kind: str, config: DictConfig, profile: str | None = None) -> list[str]:
    """Return notices on settings without effect that differ from the profile, a sentence for each reason, and on a profile
    without effect."""
    lines = validation.notices(kind_of(kind), config, _defaults(kind, profile))
    if profile is not None and not _section(kind, profile):
        lines.append(
            f"profile {profile} has no section for {kind}, so the settings keep the kind's own defaults."
        )
    return lines


def settings_of(kind: str, plain: dict, profile: str | None = None) -> dict[str, Any]:
    """Return the settings that differ from the profile, by their full names. plain: the result of `save`."""
    usual = flatten(save(_defaults(kind, profile)))
    return {key: value for key, value in flatten(plain).items() if key not in usual or usual[key] != value}


def save(config: DictConfig) -> dict:
    """Convert settings to plain dicts and lists, for run.json."""
    return OmegaConf.to_container(config, resolve=True)


def load(kind: str, plain: dict) -> DictConfig:
    """Rebuild settings from the result of `save`. Raises ConfigError as `compose` does, also for a key that this version
    lacks."""
    config = _typed(kind)
    for key, value in _leaves("", plain, config):
        _assign(config, kind, key, literal(value), written=f"{key}={value}")
    return config


def recorded(info: dict) -> dict:
    """The settings in a run's run.json, without a max_epochs that did not end the run: earlier versions recorded an unset
    max_epochs as 1, and ignored max_epochs beside max_steps."""
    plain = copy.deepcopy(info["config"])
    for loop in (plain.get("trainer") or {}).values():
        if isinstance(loop, dict) and "max_epochs" in loop and loop.get("max_steps") == info.get("max_steps"):
            loop["max_epochs"] = None
    return plain


def literal(value: Any) -> Any:
    """Write `${` in all texts of a value so that settings keep it as text, in place of another setting's value."""
    if isinstance(value, dict):
        return {key: literal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [literal(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", value)
    return value


def read_overrides(kind: str, file: Path) -> list[str]:
    """Read the settings in a YAML file, in the format of `save` and `--print-config`, as overrides.

    NeMo-Aligner's names without a meaning here are left out. Raises ConfigError for a file without a readable YAML mapping, and
    for unknown keys, all in one message.
    """
    try:
        plain = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file} can't be read as settings: {error}") from None
    if not isinstance(plain, dict):
        raise ConfigError(f"{file} can't be read as settings: the file must map names to values")
    config = _typed(kind)
    _check_defaults(plain.pop("defaults", None) or [], file)
    plain.pop("hydra", None)  # Hydra's own folders and logs
    leaves = [leaf for leaf in _leaves("", plain, config) if not _is_name_only(config, *leaf)]
    unknown = [_unknown(key, kind, config) for key, _ in leaves if not _is_known(config, key)]
    if unknown:
        raise ConfigError(
            "\n  ".join([f"{file} has settings that `aligner {kind_of(kind).command}` lacks:", *unknown])
        )
    return [f"{key}={written(value)}" for key, value in leaves]


def _check_defaults(entries: Any, file: Path) -> None:
    """Raise ConfigError for another file in Hydra's list `defaults`, unless the file is optional or Hydra's own, and for a value
    that is no such list."""
    for entry in entries if isinstance(entries, list) else [entries]:
        names = list(entry) if isinstance(entry, dict) and isinstance(entries, list) else [entry]
        if len(names) != 1 or not isinstance(name := names[0], str):
            raise ConfigError(
                f"{file} has {entry!r} under `defaults`, which Hydra's list of names of files can't have: leave `defaults` out"
            )
        if name != "_self_" and not re.match(r"optional |(?:override )?/?hydra/", name):
            raise ConfigError(
                f"{file} takes settings from another file, {name} under `defaults`, which is not read: write these settings into "
                "the file"
            )


def keys(kind: str) -> list[str]:
    """Return every setting's full name, such as `trainer.ppo.initial_policy_kl_penalty`."""
    return [key for key, _ in _leaves("", save(_typed(kind)), _typed(kind))]


# ---- profiles -------------------------------------------------------------------------------------------------------


def profiles() -> list[str]:
    """The names of all profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def profile_section(profile: str, section: str) -> dict[str, Any]:
    """A profile's defaults for a kind of job or for the `tutorial`; empty when the profile has none."""
    return _read_profile(profile).get(section) or {}


def _read_profile(profile: str) -> dict[str, Any]:
    path = PROFILES / f"{profile}.yaml"
    if not path.is_file():
        raise ConfigError(f"there is no profile {profile!r}; the profiles are {', '.join(profiles())}")
    return _parsed(path, path.stat().st_mtime_ns)


@cache
def _parsed(path: Path, changed: int) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.load(path)) or {}


def _profile_settings(kind: str, profile: str | None) -> Iterator[tuple[str, Any]]:
    if profile is not None:
        yield from _leaves("", _section(kind, profile), _empty(kind))


def _section(kind: str, profile: str) -> dict[str, Any]:
    """A profile's defaults for a kind of job; empty when the profile has none."""
    group, *inner = (kind_of(kind).defaults or kind).split(".")
    section = profile_section(profile, group)
    for name in inner:
        section = section.get(name, {})
    return section


# ---- overrides ------------------------------------------------------------------------------------------------------


def parse_override(text: str) -> tuple[str, Any]:
    """Split `key=value`, `+key=value` or `++key=value` into (key, value). All three forms set a key of the schema.

    Raises ConfigError for text that is not an assignment of one value.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if text.startswith("~"):
        raise ConfigError(
            f"{text!r} would delete a setting, but every setting has a value here: write key=value instead"
        )
    if "=" not in text.lstrip("+= "):
        raise ConfigError(f"{text!r} is not a setting: write key=value, such as trainer.sft.max_steps=100")
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        of_keys = (
            ". A key of a dict can't contain a quote: "
            'write a rubric as a list, rubric: [["The answer\'s tone is kind.", 2]]'
        )
        raise ConfigError(
            f"can't read {text!r}; a value with = , : or brackets goes in quotes: key='value'"
            + (of_keys if "{" in text else "")
        ) from None
    if override.is_sweep_override():
        raise ConfigError(
            f"{text!r} gives several values, but a run takes a single value: write a list as [a, b]"
        )
    if override.package is not None:
        raise ConfigError(
            f"{text!r}: {override.package!r} after @ is a package, which the settings don't have: leave the package out"
        )
    return override.key_or_group.replace("/", "."), override.value()


def written(value: object) -> str:
    """Write a value in the grammar of overrides. A quote in a key of a dict has no form in the grammar."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_written_key(key)}: {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(written(item) for item in value) + "]"
    if isinstance(value, Path | str):
        if _PLAIN.fullmatch(str(value)) and str(value).lower() not in _OTHER_VALUES:
            return str(value)
        # Hydra reads a backslash literally, except before a quote. There the backslash is doubled, and the quote gets a
        # backslash, too.
        text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), str(value))
        return f"'{text}'"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _written_key(key: object) -> str:
    return re.sub(r"([\\()\[\]{}:=,])", r"\\\1", str(key))


def _leaves(key: str, value: Any, config: DictConfig) -> Iterator[tuple[str, Any]]:
    """Iterate over the values of a nested dict with their full keys. Settings and free-form dicts are not split further."""
    if not isinstance(value, dict) or (key and not _is_group(config, key)):
        yield key, value
        return
    for name, inner in value.items():
        yield from _leaves(f"{key}.{name}" if key else str(name), inner, config)


def _assign(config: DictConfig, kind: str, key: str, value: Any, written: str) -> None:
    _make_named_groups(config, key)
    if isinstance(value, dict) and (_named_schema(config, key) or _is_group(config, key)):
        if _named_schema(config, key):
            OmegaConf.update(config, key, {}, merge=False)  # the new groups replace all earlier groups
        for name, inner in value.items():
            _assign(config, kind, f"{key}.{name}", inner, written)
        return
    if not _is_known(config, key):
        raise ConfigError(_unknown(key, kind, config))
    if _is_group(config, key):
        names = ", ".join(OmegaConf.select(config, key))
        raise ConfigError(f"{written}: {key} is a group of settings ({names}), not a value")
    is_unset = value is None and OmegaConf.get_type(_node(config, key)) is dict
    if is_unset:
        value = OmegaConf.to_container(_node(_empty(kind), key))
    expected = _expected(config, key)
    if expected.startswith("int") and isinstance(value, float) and value.is_integer():
        value = int(value)  # allows 1e3 steps
    try:
        OmegaConf.update(config, key, value, merge=not is_unset)
    except OmegaConfBaseException:
        expected = _by_name(kind, key, value) or expected
        raise ConfigError(
            f"{written}: {value!r} is a {type(value).__name__}, but {key} takes {expected}"
        ) from None


def _make_named_groups(config: DictConfig, key: str) -> None:
    """Create the settings of a user-named group, such as `model.environments.NAME`, when `key` is the group's first key."""
    parts = key.split(".")
    for end in range(1, len(parts)):
        schema, name = _named_schema(config, ".".join(parts[:end])), ".".join(parts[: end + 1])
        if schema and _node(config, name) is None:
            OmegaConf.update(config, name, schema())


# ---- the schema -----------------------------------------------------------------------------------------------------


def _defaults(kind: str, profile: str | None) -> DictConfig:
    """The settings before the user's overrides: the schema's defaults, replaced by the profile's."""
    config, of_another_kind = _typed(kind), bool(kind_of(kind).defaults)
    for key, value in _profile_settings(kind, profile):
        if _is_known(config, key) or not of_another_kind:
            _assign(config, kind, key, value, written=f"{key}={value} in profile {profile}")
    return config


@cache
def _empty(kind: str) -> DictConfig:
    return OmegaConf.structured(kind_of(kind).schema)


def _typed(kind: str) -> DictConfig:
    return copy.deepcopy(_empty(kind))


def _node(config: DictConfig, key: str) -> Any:
    """The node at a key; None for a key without a node."""
    parent, _, name = key.rpartition(".")
    group = _node(config, parent) if parent else config
    # `name in group` is False for a setting without a value, such as ???
    return group._get_node(name, validate_access=False) if isinstance(group, DictConfig) else None


def _is_group(config: DictConfig, key: str) -> bool:
    node = _node(config, key)
    return isinstance(node, DictConfig) and OmegaConf.get_type(node) is not dict


def _named_schema(config: DictConfig, key: str) -> type | None:
    """The schema of the user-named groups at a key; None for a key without such groups."""
    node = _node(config, key)
    element = node._metadata.element_type if isinstance(node, DictConfig) else None
    return element if is_dataclass(element) else None


def _is_known(config: DictConfig, key: str) -> bool:
    if _node(config, key) is not None:
        return True
    # `data_prefix`, `reward_standardization` and `args` are free-form dicts. The schema may list their keys.
    parent = key.rpartition(".")[0]
    while parent and _node(config, parent) is None:
        parent = parent.rpartition(".")[0]
    return bool(parent) and isinstance(_node(config, parent), DictConfig) and not _is_group(config, parent)


def _is_name_only(config: DictConfig, key: str, value: Any) -> bool:
    """Whether an unknown setting, or all settings of an unknown group, are names of NeMo-Aligner's that change nothing."""
    if _is_known(config, key):
        return False
    parts = flatten({key: value})
    return bool(parts) and all(is_name_only(*part) for part in parts.items())


def _expected(config: DictConfig, key: str) -> str:
    """Name the type of a key's values as the schema does: `int`, `list[float]`, `str or None`."""
    node = _node(config, key)
    if node is None:
        return "any value"
    reference = node._metadata.ref_type
    name = reference.__name__ if isinstance(reference, type) else re.sub(r"\w+\.", "", str(reference))
    name = name.replace("List[", "list[").replace("Dict[", "dict[")
    return f"{name} or None" if node._metadata.optional and name != "Any" else name


def _by_name(kind: str, key: str, value: Any) -> str:
    """A dict with the value under the first of the names that a setting takes; empty for a setting without names."""
    entry = dict(settings(kind_of(kind).schema)).get(key)
    names = entry.metadata.get("names") if entry else None
    if not names:
        return ""
    others = ", ".join(f"{name}: …" for name in names[1:])
    return f"{{{names[0]}: {written(value)}, {others}}}"


def _unknown(key: str, kind: str, config: DictConfig) -> str:
    if key in OTHER_NAMES:
        return f"there is no setting {key!r}, which is {OTHER_NAMES[key]}"
    idle = kind_of(kind).without_effect(_typed(kind))
    for purpose, names in SAME_PURPOSE.items():
        here = next((name for name in names if _is_known(config, name)), None)
        if key in names and here:
            return f"there is no setting {key!r}: {idle.get(here, f'this kind of job {purpose} {here}')}"
    if cure := not_here(key, keys(kind)):
        return f"there is no setting {key!r}: {cure}"
    group = key.rpartition(".")[0]
    while group and not _is_group(config, group):
        group = group.rpartition(".")[0]
    names = [*(_node(config, group) if group else config)]
    known = [leaf for leaf, _ in _leaves("", save(config), config)] + [f"{group}.{name}" for name in names]
    near = nearest(key, known)
    likeness, message = _likeness(key, near[0]), f"there is no setting {key!r};"
    if likeness >= LIKE:
        message += f" did you mean {' or '.join(near)}?"
    if likeness < ALIKE:
        message += f" {group or 'the top level'} has {', '.join(names)}"
    return message


def nearest(key: str, known: Iterable[str], at_most: int = 3) -> list[str]:
    """Return the known keys with the greatest similarity to a misspelt key, best first.

    The last part of the key counts most, because users confuse the groups above more often.
    """
    scores = {candidate: _likeness(key, candidate) for candidate in known}
    ranked = sorted(scores, key=scores.get, reverse=True)
    return [candidate for candidate in ranked[:at_most] if scores[candidate] > scores[ranked[0]] - 0.03]


def _likeness(a: str, b: str) -> float:
    def ratio(x: str, y: str) -> float:
        return difflib.SequenceMatcher(None, x, y).ratio()

    return 0.65 * ratio(a.rpartition(".")[2], b.rpartition(".")[2]) + 0.35 * ratio(a, b)
