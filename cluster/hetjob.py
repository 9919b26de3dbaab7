"""submitit's Slurm executor for commands instead of pickled functions, and for hetjobs and arrays."""

import contextlib
import io
import shutil
from collections.abc import Mapping
from pathlib import Path

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError
from submitit.slurm.slurm import SlurmJob

from cluster import environment, sbatch
from cluster.resources import Resources

BATCH_FUNCTIONS = Path(__file__).with_name("batch.sh")


class SubmissionRefused(ValueError):
    """Slurm rejected the job; the message says why."""


class HetjobExecutor(SlurmExecutor):
    """Submits members (one, or an array) of components (one, or a hetjob), each with its own resources."""

    def __init__(
        self,
        folder: Path,
        members: list[sbatch.Member],
        wanted: Mapping[str, Resources],
        variables: Mapping[str, str],
        name: str,
        parallel: int = 0,
    ):
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise SubmissionRefused("where='slurm', but sbatch and srun are not on this machine's PATH")
        super().__init__(folder)
        self.text = sbatch.script(members, wanted, variables, name, folder, parallel)

    def start(self) -> SlurmJob:
        """Submit the job. Raises SubmissionRefused with Slurm's reason."""
        shutil.copy(BATCH_FUNCTIONS, self.folder / "batch.sh")
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what the exception says, too
                return self._submit_command(command="")
        except FailedJobError as error:
            raise SubmissionRefused(str(error)) from error

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self.text

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        # sbatch hands its environment to the job: without the notebook kernel's part.
        unset = [word for name in environment.foreign_names() for word in ("-u", name)]
        return ["env", *unset, "sbatch", str(submission_file_path)]

    def _num_tasks(self) -> int:
        return 1  # for submitit's bookkeeping of pickled results, of which there are none
