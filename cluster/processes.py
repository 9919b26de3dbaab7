"""Processes of this machine: identify a process despite reused pids, and end all processes of a job."""

import contextlib
import ctypes
import getpass
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

JOB_VARIABLE = "ALIGNER_JOB_FOLDER"
GRACE_S = 5.0  # between SIGTERM and SIGKILL
END_S = 30.0  # for children to record an interruption, or the failure of another child


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
def signalled_children() -> Iterator[Callable[..., subprocess.Popen]]:
    """Yields a function that starts a child process with the arguments of `subprocess.Popen`.

    A scheduler's signals to this process, the signal of a closed terminal, and Ctrl-C reach all children, also later children.
    Children that outlive the context receive SIGTERM, and SIGKILL after END_S seconds or a second Ctrl-C.
    """
    children: list[subprocess.Popen] = []
    received: list[int] = []

    def pass_on(number: int, _=None) -> None:
        received.append(number)
        for child in children:
            child.send_signal(number)

    def start(command: list[str], **options) -> subprocess.Popen:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,  # reading the terminal would stop a process group in the background
            # else Ctrl-C would reach the child twice: from the terminal, and from this process
            process_group=0,
            # a SIGKILL of this process would leave orphaned children
            preexec_fn=signalled_with_parent(signal.SIGKILL),
            **options,
        )
        children.append(child)
        for number in received:
            child.send_signal(number)
        return child

    numbers = (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP)
    before = {
        number: signal.signal(number, pass_on)
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN  # as SIGHUP under nohup
    }
    last = signal.SIGTERM
    try:
        yield start
    except KeyboardInterrupt:
        last = signal.SIGINT
        raise
    finally:
        try:
            pass_on(last)
            deadline = time.monotonic() + END_S
            for child in children:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(max(0, deadline - time.monotonic()))
        finally:
            for child in children:
                child.kill()
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
