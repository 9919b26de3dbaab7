"""submitit's Slurm executor for commands instead of pickled functions, and for hetjobs and arrays."""

import contextlib
import io
import os
import shutil
from pathlib import Path

from cluster import environment, sbatch
from cluster.scheduler import Submission, SubmissionRefused
from cluster.submitit_parts import FailedJobError, FailedSubmissionError, SlurmExecutor, SlurmJob

BATCH_FUNCTIONS = [Path(__file__).with_name(name) for name in ("slurm.sh", "batch.sh")]


class HetjobExecutor(SlurmExecutor):
    """Submits a job with one or several members (an array) and one or several components (a hetjob). Each component has its own
    resources."""

    def __init__(self, submission: Submission):
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise SubmissionRefused("where='slurm', but sbatch and srun are not on the machine's PATH")
        super().__init__(submission.folder)
        self.text = sbatch.script(submission)

    def start(self) -> SlurmJob:
        """Submit the job. Raises SubmissionRefused with Slurm's reason."""
        for file in BATCH_FUNCTIONS:
            shutil.copy(file, self.folder)
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit also prints the exception's message
                return self._submit_command(command="")
        except (FailedJobError, FailedSubmissionError) as error:
            raise SubmissionRefused(str(error)) from error

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self.text

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        # The variables of the notebook kernel are removed, because sbatch hands its environment to the job.
        names = environment.foreign_names() + sbatch.overriding_variables(self.text)
        # the hub's number of threads (docs/jupyterhub/jupyterhub_config.py) is for its own machine; a user's own number stays
        if "JUPYTERHUB_USER" in os.environ and os.environ.get("OMP_NUM_THREADS") == "1":
            names.append("OMP_NUM_THREADS")
        unset = [word for name in names for word in ("-u", name)]
        return ["env", *unset, "sbatch", str(submission_file_path)]

    def _num_tasks(self) -> int:
        return 1  # for submitit's bookkeeping of pickled results; these jobs have no pickled results
