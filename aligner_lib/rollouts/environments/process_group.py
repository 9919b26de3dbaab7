"""Spawned processes. The programs that a process has started end with the process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from multiprocessing import popen_spawn_posix
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Thread

from aligner_lib.errors import UserError


def check_locks() -> None:
    """Raises UserError if processes can't share locks. Linux keeps the locks in /dev/shm."""
    try:
        GroupLeaders().Lock()
    except OSError as error:
        raise UserError(
            f"processes can't share locks ({error.strerror}), so PPO, GRPO and evaluations can't start their environments: make "
            "/dev/shm writable, as a container's option --shm-size=1g does"
        ) from error


class GroupLeader(SpawnProcess):
    """A spawned process in a session and a process group of its own.

    When the process has ended, its parent kills the rest of the group: the programs that the process has started, except programs
    in a session of their own. When the parent was killed, the process kills its group and itself.
    """

    def run(self) -> None:
        os.setsid()
        Thread(target=_end_with_parent, daemon=True).start()
        super().run()

    @staticmethod
    def _Popen(process: SpawnProcess) -> _GroupPopen:
        return _GroupPopen(process)


class GroupLeaders(SpawnContext):
    """The start method `spawn`, whose processes are GroupLeaders."""

    Process = GroupLeader


def _end_with_parent() -> None:
    """Kill this process's group when the parent has ended. A judge's worker would otherwise send its requests to the end."""
    multiprocessing.parent_process().join()
    os.killpg(0, signal.SIGKILL)


class _GroupPopen(popen_spawn_posix.Popen):
    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code; None for a process that runs. flag: 0 waits for the end."""
        if self.returncode is None and hasattr(os, "waitid"):  # macOS has waitid since Python 3.13
            with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
                # WNOWAIT keeps the ended process as a zombie, so no other process has its pid, the group's number, yet
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | flag):
                    os.killpg(self.pid, signal.SIGKILL)
        return super().poll(flag)
