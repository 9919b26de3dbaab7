"""A user's data files in the trainers' format. Files in another known form (`data.raw_forms`) and data sets of the hub are
converted once, into a cache.

The cache is keyed by the content of the files, the settings of the conversion and the converter's code. Therefore a resumed
run and all ranks of a job read the same converted files.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from omegaconf import DictConfig, ListConfig

import data as converter
from aligner_lib.config.compose import written
from aligner_lib.datasets.json_lines import first_record
from aligner_lib.datasets.own_format import all_are_own, are_own, first_records, may_be_own
from aligner_lib.datasets.record_keys import Samples
from aligner_lib.errors import UserError
from aligner_lib.models.disk import explain_full_disk, explain_read_only
from aligner_lib.models.fetch import cache_root, locked
from aligner_lib.models.hash import file_hash, files_hash, text_hash
from data.atomic_files import atomic_text_files
from data.fields import is_empty
from data.hub import HubError, is_hub_name
from data.report import DataError, FormError, SameMeaning, UnknownForm, UnreadColumns
from data.sources import own_files

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation")
TARGETS: dict[Samples, str] = {
    "sft": "sft",
    "pairs": "preferences",
    "labels": "preferences",
    "prompts": "prompts",
}
# The modules of `data` that decide about a converted line.
CONVERTER = "conversations convert fields raw_forms raw_samples readers sources tools".split()
RECORD = "conversion.json"
PLACE = "model.data"


class GivenFiles(NamedTuple):
    """The files of a split in the settings."""

    key: str
    """The setting's name."""
    value: Any
    """A file or a list of files; None if the setting is not set."""


class ExaminedSource(NamedTuple):
    """A file, a folder or a data set of the hub, after a look at the first records."""

    path: Path
    columns: set[str]
    """The columns of the first records of JSON Lines; empty for another form."""
    is_own: bool
    """Whether the source is JSON Lines in the trainers' format, as far as the first records tell."""
    has_texts: bool
    """Whether one of these records has a whole text."""


@dataclass(frozen=True)
class Rules:
    """The settings of a conversion."""

    to: str
    """sft, preferences or prompts."""
    columns: Mapping[str, str]
    ignore: tuple[str, ...]
    validation_fraction: float
    unchanged: bool = False
    """Whether the records are only split, because all are in the job's format."""
    limit: float | None = None
    """The limit of the split, if another source has decided it."""

    def names(self) -> set[str]:
        """The columns that the user names."""
        return {*self.columns, *self.ignore}


@dataclass(frozen=True)
class Converted:
    """A converted source: a folder of the cache with train.jsonl and validation.jsonl."""

    folder: Path
    report: str
    has_own_split: bool
    """Whether the source has files of both splits."""
    columns: tuple[str, ...]
    """The columns of all records."""
    limit: float | None
    """The limit of the split, as in `Conversion`."""

    def file(self, split: str) -> Path:
        """The file of a split."""
        return self.folder / f"{split}.jsonl"


def trainers_files(
    given: Mapping[str, GivenFiles], samples: Samples, settings: DictConfig
) -> dict[str, list[Path]]:
    """The files of each split in the trainers' format. settings: model.data.

    A JSON Lines file in the trainers' format stands for itself. Any other file or folder and a data set of the hub
    (owner/name) are converted, and the job's log has the report of `aligner data`. A source with files of both splits gives
    each split its own files. If the setting of the validation is not set, a share of the training prompts is held out, of all
    sources the same prompts; the records stay unchanged if all of a file are in the job's format.

    Raises UserError for a setting without a file, for columns without a known meaning, for records without the answers that the
    job learns from, and for a column of the settings that no file has; FileNotFoundError for a missing file, and for a data set
    that the hub does not give.
    """
    hold_out = "validation" in given and not given["validation"].value
    rules = Rules(
        TARGETS[samples],
        dict(settings.columns),
        tuple(settings.ignore_columns),
        settings.validation_fraction if hold_out else 0.0,
    )
    examined = [
        (split, _examined(path, samples, rules))
        for split, (key, value) in given.items()
        if not (split == "validation" and hold_out)
        for path in files_of(value, key)
    ]
    if hold_out:
        conversions = _split([source for _, source in examined], samples, rules, given["validation"].key)
        files = {split: [converted.file(split) for converted in conversions] for split in SPLITS}
    else:
        conversions, files = [], {split: [] for split in given}
        for split, source in examined:
            if source.is_own:
                files[split].append(source.path)
            else:
                conversions.append(converted := _converted(source.path, split, samples, rules))
                files[split].append(converted.file(split if converted.has_own_split else "train"))
    present = set().union(
        *(source.columns for _, source in examined), *(converted.columns for converted in conversions)
    )
    if unknown := rules.names() - present:
        raise UserError(
            f"{PLACE}.{'columns' if unknown & rules.columns.keys() else 'ignore_columns'} names the column {min(unknown)!r}, "
            f"which no data file has: they have {', '.join(sorted(present))}"
        )
    return files


def files_of(value: Any, key: str) -> list[Path]:
    """Convert a file or a list of files to paths. Raises UserError, which names the key, if no file is given, and for a value
    that is no path."""
    required(value, key)
    files = list(value) if isinstance(value, list | ListConfig) else [value]
    for file in files:
        if not isinstance(file, str | Path):
            raise UserError(
                f"{key}={value}: {file!r} is not a path: give a file, or a list of files as [a, b]"
            )
    return [Path(file).expanduser() for file in files]


def required(value: Any, key: str, form: str = "") -> Any:
    """Return the value. Raises UserError, which names the key and the value's form, if the value is not set."""
    if not value:
        raise UserError(f"{key} is not set: give it as {key}=…{form}")
    return value


def hash_of_source(source: Path) -> str:
    """32 hex digits of a file's whole content; for a folder or a data set of the hub, of all data files and their names."""
    return file_hash(source) if source.is_file() else files_hash(_named_files(source))


# ---- which files are converted --------------------------------------------------------------------------------------


def _examined(source: Path, samples: Samples, rules: Rules) -> ExaminedSource:
    """Look at the first records of a source, which is downloaded if it names a data set of the hub."""
    if not source.exists():
        _download(source, rules)
    heads = first_records(source) if may_be_own(source) else None
    columns = set().union(*heads or ())
    is_own = heads is not None and are_own(heads, samples, rules.names())
    has_texts = any(not is_empty(head.get("text")) for head in heads or ())
    return ExaminedSource(source, columns, is_own, has_texts)


def _named_files(source: Path) -> dict[str, Path]:
    """A source's data files by their names within the source."""
    files = own_files(str(source)).paths
    folder = source if source.is_dir() else _common_folder(files)
    return {file.relative_to(folder).as_posix(): file for file in files}


def _common_folder(files: Iterable[Path]) -> Path:
    return Path(os.path.commonpath([file.parent for file in files]))


# ---- conversion -----------------------------------------------------------------------------------------------------


def _split(sources: list[ExaminedSource], samples: Samples, rules: Rules, key: str) -> list[Converted]:
    """Convert the training sources, and hold out a share of the prompts, of all sources the same prompts. key: the setting of
    the validation. Raises UserError for whole texts, and if no prompt is held out."""
    rules_of_sources = []
    for path, _, is_own, has_texts in sources:
        if is_own and has_texts:
            raise UserError(
                f"{key} is not set: give it as {key}=…, because {path} has whole texts, of which the job holds none out"
            )
        unchanged = is_own and all_are_own(path, samples, rules.names())
        rules_of_sources.append((path, replace(rules, unchanged=unchanged)))
    alone = [_converted(path, "train", samples, own_rules) for path, own_rules in rules_of_sources]
    held_out = [converted for converted in alone if converted.file("validation").stat().st_size]
    first, fraction = sources[0].path, rules.validation_fraction
    if fraction and not held_out:
        raise UserError(
            f"{first} has so few prompts that none was held out: raise {PLACE}.validation_fraction ({fraction}), or give a "
            "validation file"
        )
    # few prompts may need a limit far from the share, which would hold out most of another source
    limits = [converted.limit for converted in held_out if converted.limit is not None]
    nearest = min(limits, key=lambda limit: abs(limit - fraction * 2**64), default=None)
    return [
        converted
        if nearest is None or converted.limit in (None, nearest)
        else _converted(path, "train", samples, replace(own_rules, limit=nearest))
        for (path, own_rules), converted in zip(rules_of_sources, alone)
    ]


def _converted(source: Path, split: str, samples: Samples, rules: Rules) -> Converted:
    """Convert a source, or find the conversion in the cache, and log the report."""
    files = _named_files(source)
    folder = cache_root() / "data" / _key(files, rules)
    known = _recorded(folder)
    if known is None:

        def refusal(reason: str) -> str:
            return (
                f"{source} has to be converted, but the cache {folder.parent} can't be written ({reason}): convert the "
                f"file with `aligner data {source} --to {rules.to} --out DIR`, or set ALIGNER_CACHE to a folder of your own, "
                "which then needs models of its own"
            )

        with explain_full_disk(folder, "ALIGNER_CACHE"), explain_read_only(refusal):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder.with_name(f".{folder.name}.lock"), logger.info, "converts the same data"):
                known = _recorded(folder)  # another process may have converted the data during the wait
                if known is None:
                    logger.info(f"{split}: converting {source} to {folder}")
                    known = _convert(source, folder, rules)
    done = "split" if rules.unchanged else "converted"
    logger.info("\n  ".join([f"{split}: {source} was {done}", *known.report.splitlines()]))
    if samples == "pairs" and "label" in first_record([known.file("train"), known.file("validation")]):
        raise UserError(
            f"{source} has labelled answers, and no pairs: only KTO learns from labels (aligner dpo "
            "model.dpo.preference_loss=kto)"
        )
    return known


def _key(files: Mapping[str, Path], rules: Rules) -> str:
    """A name for a conversion: 32 hex digits of all that decides about the converted lines."""
    return text_hash(json.dumps([asdict(rules), files_hash(dict(files)), _hash_of_converter()]))


@cache
def _hash_of_converter() -> str:
    folder = Path(converter.__file__).parent
    return files_hash({name: folder / f"{name}.py" for name in CONVERTER})


def _recorded(folder: Path) -> Converted | None:
    """The complete conversion in a folder of the cache; None if the folder has none."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="ascii"))
        sizes = {split: (folder / f"{split}.jsonl").stat().st_size for split in SPLITS}
        if sizes != record["sizes"]:
            return None
        columns = tuple(record["columns"])
        return Converted(folder, record["report"], record["has_own_split"], columns, record["limit"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _convert(source: Path, folder: Path, rules: Rules) -> Converted:
    """Convert a source into a folder of the cache. A failed conversion leaves no folder behind."""
    try:
        conversion = converter.convert(
            str(source),
            folder,
            rules.to,
            columns=rules.columns,
            ignore=rules.ignore,
            ignore_missing=True,  # another source of the job may have the column: `trainers_files` checks all
            validation_fraction=rules.validation_fraction,
            unchanged=rules.unchanged,
            limit=rules.limit,
        )
    except DataError as error:
        shutil.rmtree(folder, ignore_errors=True)
        _refuse(source, rules, error)
    place = source.parent if source.exists() else _common_folder(_named_files(source).values())
    record = {
        "report": str(_named_within(place, conversion)),
        "has_own_split": conversion.has_own_split,
        "columns": conversion.columns,
        "limit": conversion.limit,
        "sizes": {path.stem: path.stat().st_size for path in conversion.paths},
    }
    with atomic_text_files(folder / RECORD) as (stream,):
        json.dump(record, stream)
    return Converted(
        folder, record["report"], conversion.has_own_split, tuple(conversion.columns), conversion.limit
    )


def _named_within(place: Path, conversion: converter.Conversion) -> converter.Conversion:
    """The conversion with the source's files by their names within a folder, because the same content may lie elsewhere for the
    next run."""
    examples = {
        reason: [replace(skip, file=str(Path(skip.file).relative_to(place))) for skip in skips]
        for reason, skips in conversion.report.examples.items()
    }
    return replace(
        conversion,
        report=replace(conversion.report, examples=examples),
        held_out_files=tuple(path.relative_to(place) for path in conversion.held_out_files),
        doubtful_files=tuple(path.relative_to(place) for path in conversion.doubtful_files),
    )


# ---- refusals -------------------------------------------------------------------------------------------------------

LACKING = {
    "sft": "`aligner ppo` and `aligner grpo` take them as prompts",
    "preferences": "`aligner sft` learns from them, and `aligner ppo` and `aligner grpo` take their prompts",
}


def _refuse(source: Path, rules: Rules, error: DataError) -> NoReturn:
    """Raise UserError, with the cure in the words of a job's settings."""
    fault = error.fault if isinstance(error, FormError) else str(error)
    named = fault if str(source) in fault else f"{source}: {fault}"
    if isinstance(error, UnknownForm):
        meanings = error.meanings or {"question": "prompt", "best": "chosen"}
        cure = f"name what they are, as in {_setting('columns', meanings)}"
    elif isinstance(error, UnreadColumns):
        cure = (
            f"give it a meaning, as in {_setting('columns', {error.columns[0]: 'prompt'})}, or leave it out on purpose with "
            f"{_setting('ignore_columns', error.columns)}"
        )
    elif isinstance(error, SameMeaning):
        cure = (
            f"give one of them another meaning in {PLACE}.columns, or leave one out with "
            f"{_setting('ignore_columns', error.columns[:1])}"
        )
    elif isinstance(error, FormError):
        cure = LACKING[rules.to]
    else:
        raise UserError(named) from error
    raise UserError(f"{named}: {cure}") from error


def _setting(name: str, value: Any) -> str:
    """A setting of the data, quoted for a shell."""
    text = f"{PLACE}.{name}={written(value)}"
    # shlex would write each single quote as five characters
    return f'"{text}"' if "'" in text and not set('"$`\\!') & {*text} else shlex.quote(text)


def _download(source: Path, rules: Rules) -> None:
    """Download the data set that a source without a file names. Raises FileNotFoundError if there is none."""
    missing = f"data file {source} does not exist"
    if not is_hub_name(str(source)):
        raise FileNotFoundError(f"{missing}: `aligner data --help` shows how to make one")
    logger.info(f"{missing}, so {source} is looked up on the Hugging Face hub")
    try:
        own_files(str(source))
    except HubError as error:
        raise FileNotFoundError(
            f"{missing}. {error} Where a network is, `aligner data {source} --to {rules.to} --out DIR` writes the files for a "
            "machine without one"
        ) from error
