"""Files of a data set on the Hugging Face hub, at a pinned revision."""

import errno
import re
from dataclasses import dataclass
from pathlib import Path

from data.readers import OWN_SUFFIXES, SUFFIXES, is_about_data
from data.report import DataError

PROBE_SECONDS = 10.0


class HubError(DataError):
    """A data set cannot be downloaded from the hub. The message names the data set and a cure."""


@dataclass(frozen=True)
class HubDataset:
    """The project's own knowledge about a data set, which needs no request to the hub."""

    revision: str  # the commit that the project was tested with
    files: tuple[str, ...]


HH_SUBSETS = ("harmless-base", "helpful-base", "helpful-online", "helpful-rejection-sampled")
KNOWN = {
    "databricks/databricks-dolly-15k": HubDataset(
        "bdd27f4d94b9c1f951818a7da7fd7aeea5dbff1a", ("databricks-dolly-15k.jsonl",)
    ),
    "Anthropic/hh-rlhf": HubDataset(
        "09be8c5bbc57cb3887f3a9732ad6aa7ec602a1fa",
        tuple(f"{subset}/{split}.jsonl.gz" for split in ("train", "test") for subset in HH_SUBSETS),
    ),
}


NAME = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")


def is_hub_name(text: str) -> bool:
    """Whether `text` has the form owner/name or owner/name@revision, and is not the path of a data file."""
    return bool(NAME.fullmatch(text)) and not text.lower().endswith(OWN_SUFFIXES)


def fetch(name: str, *, split: str | None = None, subset: str | None = None) -> tuple[Path, ...]:
    """Download a data set's files, or find them in the cache. `split` and `subset`, if given, restrict the files.

    name: owner/name or owner/name@revision, a commit or branch; by default the pinned revision, else main. Raises HubError when
    the hub cannot be reached or has no such files.
    """
    match = NAME.fullmatch(name)
    assert match, f"{name} is not a hub name"
    name, known = match["name"], KNOWN.get(match["name"])
    revision = match["revision"] or (known.revision if known else "main")
    available = known.files if known else _list_files(name, revision)
    chosen = _select(available, split, subset)
    if not chosen:
        if not available:
            raise HubError(
                f"The data set {name} has no file that ends in {', '.join(OWN_SUFFIXES)}: download it, and convert the files."
            )
        request = f"split {split!r}" + (f" of subset {subset!r}" if subset else "")
        raise HubError(f"The data set {name} has no file for {request}; known files: {', '.join(available)}.")
    return tuple(_fetch_file(name, file, revision) for file in chosen)


def _select(files: tuple[str, ...], split: str | None, subset: str | None) -> list[str]:
    chosen = [file for file in files if subset is None or file.startswith(f"{subset}/")]
    if split is not None:
        chosen = [file for file in chosen if file.rpartition("/")[2].startswith(split)]
    return chosen


def _list_files(name: str, revision: str) -> tuple[str, ...]:
    from huggingface_hub import HfApi

    try:
        # list_repo_files retries for 23 s without a network
        info = HfApi().repo_info(name, repo_type="dataset", revision=revision, timeout=PROBE_SECONDS)
        files = [file.rfilename for file in info.siblings or ()]
    except Exception as error:  # the hub's client passes through all errors of its HTTP library
        raise _unreachable(name, error) from error
    # most .json files of the hub describe a data set, and some data sets have nothing else
    usual = [file for file in files if file.lower().endswith(SUFFIXES)]
    others = [
        file for file in files if file.lower().endswith(OWN_SUFFIXES) and not is_about_data(Path(file).name)
    ]
    return tuple(sorted(usual or others))


def _fetch_file(name: str, file: str, revision: str) -> Path:
    import huggingface_hub as hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def download(**options: bool) -> Path:
        return Path(hub.hf_hub_download(name, file, repo_type="dataset", revision=revision, **options))

    try:
        return download(local_files_only=True)
    except LocalEntryNotFoundError:
        pass
    try:
        # hf_hub_download retries for 23 s without a network; a single short request detects a missing network sooner.
        url = hub.hf_hub_url(name, file, repo_type="dataset", revision=revision)
        hub.get_hf_file_metadata(url, timeout=PROBE_SECONDS)
        return download()
    except Exception as error:  # the hub's client passes through all errors of its HTTP library
        raise _unreachable(name, error) from error


def _unreachable(name: str, error: Exception) -> HubError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        from huggingface_hub import constants

        return HubError(
            f"The disk is full: free space for the data set {name} in {constants.HF_HUB_CACHE}, or choose another"
            " disk (HF_HOME)."
        )
    cause = " ".join(str(error).split())[:200] or type(error).__name__
    return HubError(
        f"The data set {name} cannot be had from the Hugging Face hub ({cause}); check the network and the name,"
        " or give a local file or the bundled sample instead."
    )
