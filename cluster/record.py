"""The files of a submission in a run folder: `job/job.json`, and a numbered folder for each submission."""

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

MAIN = "main"  # the component's name when a job has only one component


class JobNotFound(LookupError):
    """No job was ever submitted for this run folder."""


@dataclass
class Record:
    """The record of a submission: the data from which another process finds the job again."""

    where: str
    """The scheduler's name."""
    id: str
    """The pid of the local supervisor, or the scheduler's job id (on Slurm 1234, and 1234_5 in an array)."""
    name: str
    folder: str
    """job/NNN in the run folder."""
    components: dict[str, list[str]]
    """Name → command. The last component is the main component."""
    identity: str = ""
    """Distinguishes the process from a later process with the same pid (see processes.identity)."""
    cluster: str = ""
    """Slurm's ClusterName, because a job id is valid on only one cluster."""
    mark: str = ""
    """The submission's folder, which Slurm lists with the job, because Slurm may reuse an id."""
    host: str = field(default_factory=socket.gethostname)
    submitted: float = field(default_factory=time.time)
    """Unix seconds."""
    nodes: int = 1
    gpus: int = 0

    @property
    def main(self) -> str:
        """The name of the main component, with which the job ends."""
        return list(self.components)[-1]


def job_folder(run: Path) -> Path:
    """The folder for the submissions' files in a run folder."""
    return run / "job"


def submission_folders(run: Path) -> list[Path]:
    """The numbered folders of past submissions, oldest first."""
    folders = job_folder(run).glob("[0-9][0-9][0-9]*")
    return sorted(folder for folder in folders if folder.name.isdecimal() and folder.is_dir())


def next_submission_folder(run: Path) -> Path:
    """The path of the next submission's folder; not created."""
    last = max((int(folder.name) for folder in submission_folders(run)), default=0)
    return job_folder(run) / f"{last + 1:03d}"


def new_submission_folder(run: Path) -> Path:
    """Create the next numbered folder. Two concurrent submissions never get the same folder.

    Raises OSError, which names the run folder, when the run folder is not writable.
    """
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
            f"the run folder {run} is not writable ({error.strerror}); choose a folder of your own, on a file system "
            "shared by the job's nodes",
        ) from error


def write(run: Path, record: Record) -> None:
    """Write job.json, the record of the latest submission."""
    write_json(job_folder(run) / "job.json", asdict(record))


def read(run: Path) -> Record:
    """The record of the latest submission. Raises JobNotFound when there is none."""
    path = job_folder(run) / "job.json"
    if not path.exists():
        if (job_folder(run) / "sweep.json").exists():
            raise JobNotFound(f"{run} has a sweep, whose members have their own jobs: use Sweep.attach")
        raise JobNotFound(f"{path} does not exist: no job was submitted for the run folder {run}")
    return Record(**json.loads(path.read_text()))


def write_json(path: Path, value: object) -> None:
    """Write JSON to a temporary file, then rename the file. Readers therefore see either the old or the new content."""
    tmp = path.with_name(f".{path.name}.{os.getpid()}")
    tmp.write_text(json.dumps(value, indent=1) + "\n")
    tmp.replace(path)


def read_json(path: Path) -> dict | None:
    """A JSON object; None when the file does not exist."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def run_info(run: Path) -> dict:
    """The content of run.json, which the trainer writes; {} when the file is missing or damaged."""
    try:
        info = read_json(run / "run.json")
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def log_path(folder: Path, component: str, rank: int | str = 0) -> Path:
    """The log of a rank of a component in a submission's folder."""
    return folder / f"{component}_{rank}.log"


def request_stop(run: Path) -> None:
    """Ask the run to save a checkpoint and end: create the `stop` file, which trainers check at each step."""
    (run / "control").mkdir(parents=True, exist_ok=True)
    (run / "control" / "stop").touch()


def clear_stop(run: Path) -> None:
    """Remove an old stop request, so that a resubmitted run continues."""
    (run / "control" / "stop").unlink(missing_ok=True)
