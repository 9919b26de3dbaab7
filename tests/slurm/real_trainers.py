"""Real trainers on Slurm, which can be frozen (SIGSTOP) after some steps.

So a run cannot end before its fault has struck, however slow the machine is; this costs no CPU time, and no trainer has to
know of it.
"""

import contextlib
import signal

import psutil
from processes_help import until
from smoke_jobs import steps

from aligner_lib.run_folder.reader import RunFolder
from cluster import Job, processes

BOUND_S = 600  # nothing takes so long, except on a machine that is busy with something else
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # figures that are compared to the bit must be summed alike


def freeze_after(step: int, job: Job, kind: str) -> None:
    """Wait until the job's trainer of this kind has done the step, and stop it there. Raises JobFailed when it never will."""

    def has_done_the_step() -> bool:
        if job.state.final:
            job.wait()
        return (steps(RunFolder(job.run)) or [0])[-1] >= step

    until(has_done_the_step, f"step {step}", BOUND_S)
    _signal_trainers(job, kind, signal.SIGSTOP)


def thaw(job: Job, kind: str) -> None:
    _signal_trainers(job, kind, signal.SIGCONT)


def _signal_trainers(job: Job, kind: str, number: signal.Signals) -> None:
    for process in processes.of_job(str(job.folder)):
        with contextlib.suppress(psutil.Error):  # Slurm may have killed it meanwhile
            if process.name().startswith("python") and kind in process.cmdline():
                process.send_signal(number)
