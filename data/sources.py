"""Find raw data: a file, a data set on the hub, or the bundled sample."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data import hub
from data.readers import OWN_SUFFIXES, SUFFIXES, is_about_data
from data.report import DataError

Kind = Literal["dolly", "hh", "squad"]
"""The raw format: instruction records, preference pairs, or questions about a text."""

SAMPLES = Path(__file__).parent / "samples"
# The bundled samples: the files of each kind; `resolve` fills in {split}.
BUNDLED: dict[str, dict[Kind, str]] = {
    "sample": {"dolly": "dolly-sample.jsonl", "hh": "hh-sample-{split}.jsonl"},
    "forms": {"dolly": "forms-sft.jsonl", "hh": "forms-{split}.jsonl"},
    "drawn": {"dolly": "drawn-sft.jsonl", "hh": "drawn-{split}.jsonl"},
}
HUB_NAMES: dict[Kind, str] = {
    "dolly": "databricks/databricks-dolly-15k",
    "hh": "Anthropic/hh-rlhf",
    "squad": "rajpurkar/squad",
}
HH_SPLITS = ("train", "test")


@dataclass(frozen=True)
class Source:
    """Raw files on this machine."""

    name: str  # for messages
    paths: tuple[Path, ...]
    note: str  # a line that names the chosen files and the reason


def resolve(
    dataset: str | os.PathLike | Iterable[str | os.PathLike],
    kind: Kind,
    *,
    split: str = "train",
    subset: str | None = None,
) -> Source:
    """Find the raw files of `kind` that `dataset` names, and download them when necessary.

    dataset: "sample", "forms" or "drawn" (bundled); "dolly", "hh" or "squad" (the real data set from the hub; for another kind,
    the sample is used); "hub" (the real data set of every kind); "auto" (the hub, else the sample); a hub name such as
    "owner/name"; or path(s). `split` and `subset` select among the files of a data set with splits.

    Raises DataError for a missing path, hub.HubError when the hub cannot provide the files.
    """
    if not isinstance(dataset, str):
        paths = [dataset] if isinstance(dataset, os.PathLike) else list(dataset)
        return _from_files([Path(path) for path in paths])
    if dataset in BUNDLED:
        return _from_sample(kind, split, "as asked", dataset)
    if dataset == "hub":
        return _from_hub(HUB_NAMES[kind], kind, split, subset)
    if dataset == "auto":
        try:
            return _from_hub(HUB_NAMES[kind], kind, split, subset)
        except hub.HubError as error:
            return _from_sample(kind, split, str(error))
    if dataset in HUB_NAMES and dataset != kind:
        return _from_sample(kind, split, f"{dataset!r} has no {kind} records")
    if dataset in HUB_NAMES:
        return _from_hub(HUB_NAMES[kind], kind, split, subset)
    if hub.is_hub_name(dataset) and not Path(dataset).exists():
        return _from_hub(dataset, kind, split, subset)
    return _from_files([Path(dataset)])


def own_files(raw: str | os.PathLike | Iterable[str | os.PathLike]) -> Source:
    """The files of your own data: a file, a folder, several of them, or a hub data set's files of all splits (owner/name, or
    owner/name@revision).

    Raises DataError for a path without data files, hub.HubError when the hub cannot provide the files.
    """
    if isinstance(raw, str) and hub.is_hub_name(raw) and not Path(raw).exists():
        paths = hub.fetch(raw)
        return Source(raw, paths, f"raw data: {raw} from the Hugging Face hub ({len(paths)} files)")
    given = [Path(raw)] if isinstance(raw, str | os.PathLike) else [Path(path) for path in raw]
    paths = [file for path in given for file in (_data_files(path) if path.is_dir() else [path])]
    return _from_files(paths, OWN_SUFFIXES)


def _data_files(folder: Path) -> list[Path]:
    """The data files of a folder and its subfolders. Hidden files and folders are left out, for example Jupyter's copies in
    `.ipynb_checkpoints`, and also the results that `datasets` keeps beside its data (`cache-….arrow`)."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.name.lower().endswith(OWN_SUFFIXES)
        and not is_about_data(path.name)
        and not (path.name.startswith("cache-") and path.name.lower().endswith(".arrow"))
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        raise DataError(f"{folder} has no data file: data files end in {', '.join(OWN_SUFFIXES)}")
    return files


def _from_files(paths: list[Path], suffixes: tuple[str, ...] = SUFFIXES) -> Source:
    if not paths:
        raise DataError("no raw data file was given")
    for path in paths:
        if not path.is_file():
            raise DataError(
                f"{path} is not a file: give a file ending in {', '.join(suffixes)}, a hub data set name"
                f" such as Anthropic/hh-rlhf{', or sample' if suffixes is SUFFIXES else ', or a folder of these files'}"
            )
    name = ", ".join(map(str, paths))
    return Source(name, tuple(paths), f"raw data: {name}")


def _from_sample(kind: Kind, split: str, why: str, name: str = "sample") -> Source:
    if kind == "squad":
        raise DataError(
            f"there is no bundled sample of SQuAD ({why}): give the files of SQuAD, or rajpurkar/squad"
        )
    if kind == "hh" and split not in HH_SPLITS:
        raise DataError(f"the bundled HH sample has no split {split!r}, only {' and '.join(HH_SPLITS)}")
    path = SAMPLES / BUNDLED[name][kind].format(split=split)
    return Source(path.name, (path,), f"raw data: the bundled sample {path.name} ({why})")


def _from_hub(name: str, kind: Kind, split: str, subset: str | None) -> Source:
    # Dolly has a single file and no splits: the formatter makes the splits.
    paths = hub.fetch(name, split=split if kind != "dolly" else None, subset=subset)
    return Source(name, paths, f"raw data: {name} from the Hugging Face hub ({len(paths)} files)")
