"""Clean up after a server that has ended or was killed: its processes, shared memory and folders.

A killed server can't clean up. Therefore each server records its resources, and the next server in the same run folder cleans
up. The start time of a process distinguishes the process from a later process with the same pid.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path

import psutil

from aligner_lib.errors import UserError
from cluster.processes import identity
from cluster.record import read_json, write_json

# time limit for a process to end after SIGKILL: on a busy machine a process keeps its port for seconds
KILLED_S = 30.0
SHARED_MEMORY = Path("/dev/shm")
TENSORS = re.compile(r"/dev/shm/psm_\w+$", re.MULTILINE)
LONGEST_SOCKET = "checkpoint_0_0-server.sock"
PROGRAMS_MIB = 32  # PyTriton copies 21 MiB of programs into its workspace
WORKSPACE = "aligner-"  # prefix of a workspace's name in the temporary folder


def resources(children: list[psutil.Process], environments: list[str]) -> dict:
    """The record of the resources of this process's server.

    environments: folders in /tmp that tritonserver made for its stubs.
    """
    marks = {str(child.pid): identity(child.pid) for child in children if is_alive(child)}
    server = {"pid": os.getpid(), "mark": identity(os.getpid())}
    return {"server": server, "children": marks, "environments": environments}


def note_down(folder: Path, left: dict) -> None:
    """Write the record of a server's resources into the run folder."""
    write_json(_note(folder), left)


def clear(folder: Path, left: dict | None = None, finish_s: float = 0.0) -> None:
    """Clean up after the server of this run folder, which was killed or is ending.

    left: the record of the server's resources; None: the run folder's record. finish_s: seconds that tritonserver has
    for the requests in progress before tritonserver is killed.
    """
    left = left or read_json(_note(folder)) or {"server": None, "children": {}, "environments": []}
    marks = left["children"].items()
    ours = [int(pid) for pid, mark in marks if mark is not None and identity(int(pid)) == mark]
    ours += [pid for pid in _stubs(_place(folder)) if pid not in ours]
    segments = {*_segments_of(left["server"]), *_tensors_of(ours)}
    if finish_s > 0:
        end([pid for pid in ours if _is_tritonserver(pid)], signal.SIGINT, finish_s)
        # Read the segments again: a stub that has ended no longer lists its segments, and a living stub may have made more.
        segments |= _tensors_of(ours)
    end(ours, signal.SIGKILL, KILLED_S)
    for segment in segments:
        segment.unlink(missing_ok=True)
    for environment in left["environments"]:
        # another server has made and uses the folder: the folder is not empty
        with contextlib.suppress(OSError):
            os.rmdir(environment)
    _note(folder).unlink(missing_ok=True)
    place = _place(folder)
    if not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
        return
    if place.resolve().name.startswith(WORKSPACE):  # any other target is a link of the user's
        shutil.rmtree(place.resolve(), ignore_errors=True)
    place.unlink()


def workspace(folder: Path) -> Path:
    """The folder for PyTriton's workspace: in the run folder, or in the temporary folder with a link in the run folder.

    The workspace contains Unix sockets. Their paths must be short, and some shared file systems don't support Unix sockets.
    PyTriton splits paths at white space. Raises UserError if the temporary folder is unsuitable, too.
    """
    place = _place(folder)
    place.mkdir(parents=True)
    if problem := _problem(place.resolve()):
        shutil.rmtree(place)
        place.symlink_to(tempfile.mkdtemp(prefix=WORKSPACE))
        if unsuitable := _problem(place.resolve()):
            clear(folder)
            raise UserError(
                f"PyTriton's server can run neither in {place} ({problem}) nor in the temporary folder {tempfile.gettempdir()} "
                f"({unsuitable}): set TMPDIR to a folder on this machine with a short path without spaces, on a disk with "
                f"{PROGRAMS_MIB} MiB free that runs programs"
            )
    target = place.resolve()
    shutil.rmtree(target)  # PyTriton itself makes the folder
    return target


def _problem(place: Path) -> str:
    """The reason why PyTriton's server can't run in a folder; "" without one."""
    if re.search(r"\s", str(place)):
        return "the path holds a space"
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(place / LONGEST_SOCKET))
    except OSError as error:
        return str(error)
    disk = os.statvfs(place)
    if disk.f_flag & getattr(os, "ST_NOEXEC", 0):  # Linux has the flag, as it has PyTriton
        return "its disk runs no programs: noexec"
    if disk.f_bavail * disk.f_frsize < PROGRAMS_MIB << 20:
        return f"its disk has less than {PROGRAMS_MIB} MiB free"
    return ""


def end(pids: list[int], number: signal.Signals, within_s: float) -> None:
    """Send a signal to processes. Returns when none of the processes runs, or after within_s seconds.

    The function does not wait until the parents have reaped the processes, which may take seconds.
    """
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
            processes[-1].send_signal(number)
    deadline, pause = time.monotonic() + within_s, threading.Event()
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        pause.wait(0.01)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still holds its resources. After SIGKILL, a process is reported as a zombie as soon as its first thread
    has ended, but keeps its ports until its last thread has ended."""
    try:
        if not process.is_running():
            return False
        return process.status() != psutil.STATUS_ZOMBIE or len(os.listdir(f"/proc/{process.pid}/task")) > 1
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False


def _is_tritonserver(pid: int) -> bool:
    try:
        return psutil.Process(pid).name() == "tritonserver"
    except psutil.NoSuchProcess:
        return False


def _stubs(place: Path) -> list[int]:
    """Processes that run from this workspace, recorded or not. A stub may be missing in the record, because tritonserver
    replaces a stub that has ended. A stub whose tritonserver has died waits forever."""
    if not place.exists():
        return []
    beginning = f"{place.resolve()}/"
    pids = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, IndexError):
            if process.cmdline()[0].startswith(beginning):
                pids.append(process.pid)
    return pids


def _segments_of(server: dict | None) -> list[Path]:
    """The shared memory of the server's tritonserver and stubs, in PyTriton's spelling; empty when the server's pid was
    reused."""
    if server is None or identity(server["pid"]) not in (None, server["mark"]):
        return []
    return list(SHARED_MEMORY.glob(f"pytrtion{server['pid']}-*"))


def _tensors_of(pids: list[int]) -> set[Path]:
    """The shared memory in which processes keep tensors. Only the processes themselves know the names of the segments."""
    names: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended in the meantime
            names |= set(TENSORS.findall(Path(f"/proc/{pid}/maps").read_text()))
    return {Path(name) for name in names}


def _note(folder: Path) -> Path:
    return Path(folder) / "job" / "pytriton.json"


def _place(folder: Path) -> Path:
    return Path(folder) / "pytriton"
