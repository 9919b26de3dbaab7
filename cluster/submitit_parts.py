"""The parts of submitit that the Slurm scheduler uses, imported without submitit's configuration of logging.

The configuration would close all logging handlers of the process, for example a log file of the user's notebook.
"""

import os

os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.slurm.slurm import SlurmJob, _make_sbatch_string

__all__ = ["FailedJobError", "FailedSubmissionError", "SlurmExecutor", "SlurmJob", "_make_sbatch_string"]
