"""Runs of the real trainer that are taken from their nodes in the middle.

A run is frozen (SIGSTOP) after some steps, so that it cannot end before its fault has struck, however slow the
machine is; this costs no CPU time, and no trainer has to know of it.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from processes_help import until
from smoke_jobs import SmokeJobs, steps

from aligner_lib.run_folder.reader import RunFolder
from cluster import Job, Resources, State, processes, submit

BOUND_S = 600  # nothing takes so long, except on a machine that is busy with something else
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # figures that are compared to the bit must be summed alike


def command(jobs: SmokeJobs, kind: str, run: str, **more: object) -> list[str]:
    """The command line of a short job on the smoke model."""
    settings = jobs.settings(kind, run, **more)
    return [sys.executable, "-m", "aligner_lib", kind, "--profile", "smoke", *settings]


class Survivor:
    """A real run on Slurm, and what was seen of it on the way."""

    def __init__(self, run: RunFolder, kind: str, commands, resources):
        """commands, resources: what `submit` takes; kind: sft or ppo, whose process is frozen."""
        self.run, self.kind = run, kind
        self.job: Job = submit(commands, run.path, "slurm", resources, env=ONE_THREAD)
        self.seen: set[State] = set()

    @property
    def batch_log(self) -> str:
        path = self.job.folder / "batch.log"
        return path.read_text() if path.exists() else ""

    def comes_to(self, condition: Callable[[], object]) -> bool:
        """Whether the condition is true by now. Raises JobFailed when the job has failed."""
        if self.has_ended():
            self.job.wait()
        return bool(condition())

    def freeze_after(self, step: int) -> bool:
        """True once the trainer has done the step and stands still. Raises JobFailed when it never will."""
        if not self.comes_to(lambda: (steps(self.run) or [0])[-1] >= step):
            return False
        for process in self._trainers():
            process.send_signal(signal.SIGSTOP)
        return True

    def thaw(self) -> None:
        for process in self._trainers():
            with contextlib.suppress(psutil.Error):  # Slurm may have killed it meanwhile
                process.send_signal(signal.SIGCONT)

    @property
    def nodes(self) -> tuple[str, ...]:
        return until(lambda: self.job.nodes, "the nodes")  # Slurm may be slow to answer

    def is_being_preempted(self, slurm) -> bool:
        return "PreemptTime=2" in slurm.tool("scontrol", "show", "job", self.job.id)

    def has_ended(self) -> bool:
        self.seen.add(self.job.state)
        return self.job.state.final

    def lasts_until_its_end(self, slurm) -> None:
        """Wait for the run's end. Fails with what Slurm and the batch script say of a run that does not end."""

        def report() -> str:
            job = slurm.tool("scontrol", "show", "job", self.job.id)
            left = processes.of_job(str(self.job.folder))
            return f"the end\n{job}\n{self.batch_log}\n{left}\n{slurm.log()[-6000:]}"

        until(self.has_ended, report, BOUND_S)

    def _trainers(self) -> list[psutil.Process]:
        return [process for process in processes.of_job(str(self.job.folder)) if self._trains(process)]

    def _trains(self, process: psutil.Process) -> bool:
        try:
            return process.name().startswith("python") and self.kind in process.cmdline()
        except psutil.Error:  # gone meanwhile
            return False


def until_all(survivors, condition, what: str) -> None:
    """Wait until the condition has been true once for each of them."""
    left = list(survivors)

    def done() -> bool:
        left[:] = [survivor for survivor in left if not condition(survivor)]
        return not left

    until(done, what, BOUND_S)


def preemptor(survivor: Survivor, node: str, folder: Path) -> Job:
    """A job of the urgent partition that wants the survivor's node."""
    share = Resources(partition="urgent", exclusive=True, time="30", sbatch={"nodelist": node})
    return submit(["true"], folder, "slurm", share)
