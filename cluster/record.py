"""What the dispatch writes into a run folder: `job/job.json`, and one numbered folder for each submission."""

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

MAIN = "main"  # the component's name when there is only one


class JobNotFound(LookupError):
    """No job was ever submitted for this run folder."""


@dataclass
class Record:
    """The handle of a submission: all that another process needs to find the job again."""

    where: str  # local | slurm
    id: str  # pid of the local controller, or Slurm's job id (1234, 1234_5 in an array)
    name: str
    folder: str  # job/NNN in the run folder
    components: dict[str, list[str]]  # name -> command; the last one is the main component
    identity: str = ""  # tells the process from a later one with its pid (see processes.identity)
    cluster: str = ""  # Slurm's ClusterName: ids of another cluster mean nothing here
    mark: str = ""  # Slurm's comment on the job: an id alone may be an older or a newer job's
    host: str = field(default_factory=socket.gethostname)
    submitted: float = field(default_factory=time.time)  # unix seconds
    nodes: int = 1
    gpus: int = 0

    @property
    def main(self) -> str:
        return list(self.components)[-1]


def job_folder(run: Path) -> Path:
    return run / "job"


def submission_folders(run: Path) -> list[Path]:
    """The numbered folders of past submissions, oldest first."""
    return sorted(folder for folder in job_folder(run).glob("[0-9][0-9][0-9]*") if folder.is_dir())


def next_submission_folder(run: Path) -> Path:
    """Path of the next submission's folder; not created."""
    last = max((int(folder.name) for folder in submission_folders(run)), default=0)
    return job_folder(run) / f"{last + 1:03d}"


def new_submission_folder(run: Path) -> Path:
    """Create the next numbered folder; two submissions at once never get the same one."""
    try:
        job_folder(run).mkdir(parents=True, exist_ok=True)
        while True:
            folder = next_submission_folder(run)
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                continue
    except OSError as error:
        raise type(error)(
            error.errno,
            f"the run folder {run} is not writable ({error.strerror}); choose one that you own, on a "
            "file system that the job's nodes share",
        ) from error


def write(run: Path, record: Record) -> None:
    write_json(job_folder(run) / "job.json", asdict(record))


def read(run: Path) -> Record:
    """The latest submission's handle. Raises JobNotFound when there is none."""
    path = job_folder(run) / "job.json"
    if not path.exists():
        raise JobNotFound(f"{path} does not exist: no job was submitted for the run folder {run}")
    return Record(**json.loads(path.read_text()))


def write_json(path: Path, value: object) -> None:
    """Write aside, then rename: a reader sees the old text or the new one, never half of it."""
    tmp = path.with_name(f".{path.name}.{os.getpid()}")
    tmp.write_text(json.dumps(value, indent=1) + "\n")
    tmp.replace(path)


def read_json(path: Path) -> dict | None:
    """A JSON object, or None when there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def log_path(folder: Path, component: str, rank: int | str = 0) -> Path:
    return folder / f"{component}_{rank}.log"


def request_stop(run: Path) -> None:
    """Ask the run to checkpoint and end: the `stop` file that trainers look for at each step."""
    (run / "control").mkdir(parents=True, exist_ok=True)
    (run / "control" / "stop").touch()


def clear_stop(run: Path) -> None:
    """Take back an old request: a run that is submitted again is meant to go on."""
    (run / "control" / "stop").unlink(missing_ok=True)
