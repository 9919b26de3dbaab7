"""Recordings as files: packing a run into a single file, and reading recordings.

A recording is {"info", "metrics", "rollouts", "alarms"}, the content of a run folder's files, as gzipped JSON.
`notebooks/record.py` makes the recordings of this package.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from aligner_lib.config.kinds import alarms_of
from aligner_lib.errors import UserError
from aligner_lib.run_folder.alarms import Thresholds, Watch, as_record
from aligner_lib.run_folder.reader import RunFolder, flatten, without_paths

SHIPPED = Path(__file__).parent
PACKED = ".json.gz"
ABOVE = re.compile(r"(?<![\w./:])(?:/[^\s/:'\"]+)+/")
"""The leading folders of an absolute path in a message."""
ACCOUNT = re.compile(
    r"(?<![\w./:])(?:/[^\s/:'\"]+)*?/(?:homes?|Users)/[^\s/:'\",;]+(?:(?: [^\s/:'\",;]+){1,2}(?=/))?"
)
"""The folder of an account in a message. A name with spaces is known as such by the slash after the name."""
FILE_ADDRESS = re.compile(r"\b(?:file:(?://[^\s/]*)?|[a-z][\w+.-]*://)/*(?=/)", re.IGNORECASE)
"""The start of an address before the absolute path of a file: `file:`, `file://HOST`, or a scheme without a host."""
USER_OF_ADDRESS = re.compile(
    r"(?<=://)[^\s/:,;\[]*(?::(?!\d+[/,;?#)'\"\]])(?:[^\s/]*|[^\s@]*))?@"  # after ://, a colon may also begin a port
    r"|(?<![\w./:@+-])[\w.+-]+:[^\s/@,;]+@(?=[\w\[])"
)
"""A user name and a password before a host, with or without a scheme. A password after a scheme may have an unescaped @ or /."""
HOSTS = ("ip", "address", "host", "hosts", "hostname", "server", "servers")
"""The names of settings whose values are hosts."""
DATA_FILE = r"[\w.-]+\.(?:jsonl?|gz|parquet|csv|tsv|arrow)"
HOST_AND_PORT = re.compile(
    rf"(?<![\w.:-])(?!(?:cuda|[\d_-]+|{DATA_FILE}):)(\[[^\]\s]*\]|[\w.-]+):\d{{2,}}(?![.:-]?\w)"
)
"""A server in the value of any setting, such as gpu-07:8000. A single digit is a line, a device or a model's size, and a number
after a data file is a line."""
HOST_OF_ADDRESS = re.compile(r"://(\[[^\]\s]*\]|[^\s/:\"]+)")
KEPT = "name kind status message seed versions git_commit created max_steps validation_samples controls precision resumed_at changed_at other_settings_at".split()


@dataclass(frozen=True)
class Content:
    """The content of a recording, as in a run folder's run.json, metrics.jsonl, rollouts.jsonl and alarms.jsonl."""

    info: dict
    metrics: list[dict]
    rollouts: list[dict]
    alarms: list[dict]


def shipped() -> list[str]:
    """The names of this package's recordings."""
    return sorted(path.name.removesuffix(PACKED) for path in SHIPPED.glob(f"*{PACKED}"))


def record(
    run,
    path,
    name: str | None = None,
    rollouts_a_step: int = 8,
    validation_rollouts: int | None = None,
    limits: Thresholds | None = None,
) -> Path:
    """Pack a run into a single file, PATH.json.gz, and return the file's path.

    rollouts_a_step: number of rollouts for each step and split; groups are completed. validation_rollouts: the same for a
    validation; None: rollouts_a_step. name: the name in the monitor. Host, process and paths are left out. limits: thresholds
    with which the alarms are computed again, and which replace the thresholds in the recording's settings; None: the run's own
    alarms and settings. Raises as `find` and `read` do.
    """
    source = find(run)
    content = read(source)
    info = {key: content.info[key] for key in KEPT if key in content.info}
    if parent := content.info.get("parent"):
        info["parent"] = {
            key: value for key, value in parent.items() if key != "run"
        }  # run: the parent's path
    message = without_places(info.get("message", ""), source)
    for host in sorted(_hosts(content.info), key=len, reverse=True):
        message = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "…", message)
    info["message"] = message
    config = _without_hosts(without_paths(content.info.get("config", {})))
    config.pop("functions", None)  # contains paths, and reveals the faults in notebook 10
    if limits and "alarms" in config.get("exp_manager", {}):
        given = asdict(limits)
        config["exp_manager"]["alarms"] = {key: given[key] for key in config["exp_manager"]["alarms"]}
    info |= {"name": name or content.info["name"], "config": config, "responses": len(content.rollouts)}
    validated = rollouts_a_step if validation_rollouts is None else validation_rollouts
    rollouts = _first_of_each_step(content.rollouts, {"train": rollouts_a_step, "validation": validated})
    alarms = _alarms(content.info["kind"], content.metrics, limits) if limits else content.alarms
    packed = asdict(Content(info, content.metrics, rollouts, alarms))
    path = Path(path)
    path = path if path.name.endswith(PACKED) else path.with_name(path.name + PACKED)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(packed, ensure_ascii=False, separators=(",", ":"))
    data = text.encode(errors="backslashreplace")  # as JsonlWriter
    path.write_bytes(gzip.compress(data, mtime=0))  # mtime=0: the same run gives the same bytes
    return path


def find(source) -> Path:
    """Find the file or folder of a recording. source: as for Recording; PACKED may be missing. Raises FileNotFoundError."""
    path = Path(getattr(source, "path", source)).expanduser()
    for place in (path, Path(f"{path}{PACKED}")):
        if place.is_file() or (place / "run.json").is_file():
            return place
    if str(source) in shipped():
        return SHIPPED / f"{source}{PACKED}"
    raise FileNotFoundError(
        f"{path} holds no recorded run, because run.json is missing; recordings of the package: "
        f"{', '.join(shipped())}"
    )


def read(path: Path) -> Content:
    """Read a recording file, or the current content of a run folder. Raises UserError for a file that is no recording."""
    if path.is_dir():
        return _read_folder(RunFolder(path))
    try:
        return Content(**json.loads(gzip.decompress(path.read_bytes())))
    except (gzip.BadGzipFile, zlib.error, EOFError, ValueError, TypeError) as error:
        raise UserError(
            f"{path} is no recording, or is cut short ({error}): copy the file again, or name a run folder or a recording"
        ) from None


def _read_folder(run: RunFolder) -> Content:
    # run.json of a lost run says that the run is running
    return Content(run.info | {"status": run.status}, run.metrics(), run.rollouts(), run.alarms())


def without_places(message: str, run: Path) -> str:
    """A message without the users of its addresses, and without the leading folders of its absolute paths. The known folders
    may have spaces in their names."""
    message = FILE_ADDRESS.sub("file ", USER_OF_ADDRESS.sub("", message))
    home = Path(os.path.expanduser("~"))  # Path.home raises an error for an account without a home
    known = {*([home] * home.is_absolute()), *run.absolute().parents, *run.resolve().parents}
    known -= {Path(run.absolute().anchor)}
    texts = {text for folder in known for text in (str(folder), quote(str(folder)))}  # quoted: in an address
    for folder in sorted(texts, key=len, reverse=True):
        message = re.sub(rf"(?<![\w./:]){re.escape(folder)}(?![\w-])", "/…", message)
    return ABOVE.sub("…/", ACCOUNT.sub("/…", message))


def _hosts(info: dict) -> set[str]:
    """The names and addresses of the machines of a run: its own, and the servers among its settings."""
    config = info.get("config") or {}
    values = [value for name, value in flatten(config).items() if name.rpartition(".")[2] in HOSTS]
    named = [name for value in values for name in (value if isinstance(value, list) else [value])]
    text = USER_OF_ADDRESS.sub("", json.dumps(config))
    addressed = HOST_OF_ADDRESS.findall(text) + HOST_AND_PORT.findall(text)
    return {text for text in (info.get("host"), *named, *addressed) if isinstance(text, str)} - {""}


def _without_hosts(config):
    if isinstance(config, list):
        return list(map(_without_hosts, config))
    if not isinstance(config, dict):
        return HOST_AND_PORT.sub("…", config) if isinstance(config, str) else config
    return {key: None if key in HOSTS else _without_hosts(value) for key, value in config.items()}


def _alarms(kind: str, metrics: list[dict], limits: Thresholds) -> list[dict]:
    watch = Watch(alarms_of(kind), limits)
    return [as_record(alarm, record["time"]) for record in metrics for alarm in watch.check(record)]


def _first_of_each_step(rollouts: list[dict], most: dict[str, int]) -> list[dict]:
    """The first rollouts of each step and split, and the remaining members of their groups.

    most: the number of rollouts by split. The responses of an evaluation count as validation.
    """
    seen: dict[tuple, int] = {}
    begun: set[tuple] = set()
    kept = []
    for rollout in rollouts:
        key = (rollout["step"], rollout["split"])
        group = (*key, rollout.get("group"))
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= most["train" if rollout["split"] == "train" else "validation"] or (
            group in begun and "group" in rollout
        ):
            begun.add(group)
            kept.append(rollout)
    return kept
