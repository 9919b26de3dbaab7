"""Processes of this machine: identify a process despite reused pids, and end all processes of a job."""

import contextlib
import ctypes
import getpass
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

JOB_VARIABLE = "ALIGNER_JOB_FOLDER"
GRACE_S = 5.0  # between SIGTERM and SIGKILL


def user_name() -> str:
    """The name of this process's user, or the user's number if the system knows no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        return str(os.getuid())


def identity(pid: int) -> str | None:
    """A text that distinguishes a process from later processes with the same pid; None when the process has ended.

    On Linux, the text contains the start time in clock ticks since boot, which does not change with the wall clock, in contrast
    to psutil's create_time. Elsewhere, the text contains the creation time.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if sys.platform != "linux":
            return f"created {process.create_time():.2f}"
        # The second field is the program's name in brackets. The name may contain spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"ticks {fields[19]}"
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None


def signalled_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """A `preexec_fn` for a child, which asks Linux to send the child a signal when its parent dies, also by SIGKILL; None on
    other systems."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    pr_set_pdeathsig = 1
    return lambda: libc.prctl(pr_set_pdeathsig, int(number))


@contextlib.contextmanager
def passing_signals_to(children: list[subprocess.Popen]) -> Iterator[None]:
    """Pass a scheduler's signals to this process (SIGTERM and SIGUSR2) on to child processes.

    children: may grow while the context lasts.
    """

    def pass_on(number: int, _) -> None:
        for child in children:
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def of_job(folder: str, spare: tuple[int, ...] = ()) -> list[psutil.Process]:
    """Processes whose environment names `folder` as their job's folder, in any spelling, including orphans.

    spare: pids to leave out.
    """
    folder = os.path.realpath(folder)
    return [
        process for process in psutil.process_iter() if process.pid not in spare and _belongs(process, folder)
    ]


def _belongs(process: psutil.Process, folder: str) -> bool:
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        named = process.environ().get(JOB_VARIABLE)
        return alive and named is not None and os.path.realpath(named) == folder
    except (psutil.Error, OSError):  # the process has ended, or belongs to another user
        return False


def end_job(folder: str, spare: tuple[int, ...] = ()) -> None:
    """End every process of the job: SIGTERM, GRACE_S seconds to clean up, then SIGKILL until no process is left.

    spare: pids to leave alone. Raises RuntimeError when a process survives SIGKILL.
    """
    _signal_all(of_job(folder, spare), signal.SIGTERM, GRACE_S)
    for _ in range(100):  # a process that forks while being killed needs another round
        stubborn = of_job(folder, spare)
        if not stubborn:
            return
        _signal_all(stubborn, signal.SIGKILL, 1.0)
    raise RuntimeError(
        f"processes {[p.pid for p in stubborn]} of {folder} are alive after SIGKILL, probably stuck in I/O: end the "
        "processes by hand, or restart the machine"
    )


def _signal_all(processes: list[psutil.Process], number: signal.Signals, wait_s: float):
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    return psutil.wait_procs(processes, timeout=wait_s)
