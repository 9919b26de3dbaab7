"""A server that can't start is cleared away like one that did, and its remains are told from what others own."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from forks import until

from aligner_lib.errors import UserError
from aligner_lib.remote_critic import pytriton_cleanup, pytriton_server
from aligner_lib.remote_critic.pytriton_server import PyTritonServer
from cluster.record import read_json, write_json
from cluster.rendezvous import free_port

pytestmark = pytest.mark.remote_critic

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.mark.parametrize("removed", ["", "its run folder was removed"])
def test_a_failed_start_ends_its_own_processes_alone_and_is_told_with_tritonserver_s_log(
    pytriton, tmp_path, monkeypatch, removed
):
    from pytriton.client.exceptions import PyTritonClientTimeoutError

    segment = pytriton_cleanup.SHARED_MEMORY / f"pytrtion{os.getpid()}-of-this-test"
    segment.touch()
    exporter = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(SLEEP) as unrelated, exporter:
        others = [psutil.Process(unrelated.pid)]
        server, started = PyTritonServer("127.0.0.1", free_port(), "token", tmp_path, []), []

        def run():
            started.append(subprocess.Popen(SLEEP))
            print("sleep 600 & echo $!", file=exporter.stdin, flush=True)
            others.append(psutil.Process(int(exporter.stdout.readline())))
            raise PyTritonClientTimeoutError("Waiting for server to be ready timed out.")

        monkeypatch.setattr(server._triton, "run", run)
        with pytest.raises(UserError, match=rf"at 127.0.0.1:\d+ .* {tmp_path}/job/tritonserver.log"):
            server.start()
        if removed:
            shutil.rmtree(tmp_path)
        server.stop()
        assert started[0].wait(10) < 0
        spared = [process for process in others if pytriton_cleanup.is_alive(process)]
        for process in spared:
            process.kill()
    assert len(spared) == 2 and not segment.exists()
    assert not (tmp_path / "pytriton").exists()
    assert not (tmp_path / "job" / "pytriton.json").exists()


TRITONSERVER = """
import subprocess, time
stub = subprocess.Popen(["sleep", "600"])
print(stub.pid, flush=True)
stub.wait()
time.sleep(600)
"""


def test_a_stub_that_died_is_a_problem_of_the_server(pytriton, tmp_path, monkeypatch):
    """PyTriton does not notice it. A stub is a child of tritonserver, which lives on."""
    server, started = PyTritonServer("127.0.0.1", free_port(), "token", tmp_path, []), []

    def run():
        words = [sys.executable, "-c", TRITONSERVER]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        started.append(int(started[0].stdout.readline()))

    monkeypatch.setattr(server._triton, "run", run)
    monkeypatch.setattr(server._triton, "is_alive", lambda: True)
    server.start()
    tritonserver, stub = started
    with tritonserver:
        assert server.problem() is None
        os.kill(stub, signal.SIGKILL)
        try:
            problem = until(server.problem, "the end of the stub", bound_s=30)
        finally:
            server.stop()
            tritonserver.kill()
    assert problem == f"a process of PyTriton's server ended (pid {stub})"


@pytest.mark.parametrize("mark, stays", [("started at another time", True), (None, False)])
def test_shared_memory_of_a_process_that_has_the_pid_now_stays(tmp_path, mark, stays):
    segment = pytriton_cleanup.SHARED_MEMORY / f"pytrtion{os.getpid()}-of-this-test"
    segment.touch()
    (tmp_path / "job").mkdir()
    pytriton_cleanup.note_down(tmp_path, pytriton_cleanup.resources([], []))
    (note,) = (tmp_path / "job").iterdir()
    left = read_json(note)
    write_json(note, left | {"server": left["server"] | ({"mark": mark} if mark else {})})
    pytriton_cleanup.clear(tmp_path)
    assert segment.exists() == stays
    segment.unlink(missing_ok=True)


@pytest.mark.parametrize("name, stays", [("aligner-a1b2", False), ("my-results", True)])
def test_a_link_in_the_workspace_s_place_leads_to_a_folder_that_a_server_made_or_it_stays(
    tmp_path, name, stays
):
    target = tmp_path / name
    target.mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "pytriton").symlink_to(target)
    pytriton_cleanup.clear(tmp_path / "run")
    assert target.exists() == stays and not (tmp_path / "run" / "pytriton").is_symlink()


@pytest.mark.parametrize("name, is_linked", [("run", False), ("my run", True), (100 * "r", True)])
def test_the_workspace_has_a_short_path_without_spaces(tmp_path, monkeypatch, name, is_linked):
    with tempfile.TemporaryDirectory() as short:  # pytest's folder may itself be too long
        monkeypatch.setattr(tempfile, "tempdir", short)
        run = Path(short, name)
        assert pytriton_cleanup.workspace(run).name.startswith("aligner-" if is_linked else "pytriton")
        pytriton_cleanup.clear(run)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a b"))
        (tmp_path / "a b").mkdir()
        if is_linked:
            with pytest.raises(
                UserError, match=r"temporary folder .*/a b \(the path holds a space\): set TMPDIR"
            ):
                pytriton_cleanup.workspace(run)
        assert not list((tmp_path / "a b").iterdir()) and not (run / "pytriton").is_symlink()


@pytest.mark.parametrize(
    ("disk", "problem"),
    [({"f_flag": 8}, "runs no programs: noexec"), ({"f_bavail": 7}, "less than 32 MiB free")],
)
def test_the_workspace_is_on_a_disk_that_runs_programs_and_has_room(tmp_path, monkeypatch, disk, problem):
    monkeypatch.setattr(os, "ST_NOEXEC", 8, raising=False)
    usual = {"f_flag": 0, "f_bavail": 32, "f_frsize": 1 << 20}
    monkeypatch.setattr(os, "statvfs", lambda place: SimpleNamespace(**(usual | disk)))
    with pytest.raises(UserError, match=rf"temporary folder .* \(its disk .*{problem}\): set TMPDIR"):
        pytriton_cleanup.workspace(tmp_path / "run")
    monkeypatch.setattr(os, "statvfs", lambda place: SimpleNamespace(**usual))
    assert pytriton_cleanup._problem(tmp_path) in ("", "AF_UNIX path too long")


def test_a_port_is_waited_for_while_the_server_that_has_it_ends(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as predecessor:
        monkeypatch.setattr(pytriton_server.time, "sleep", lambda _: predecessor.close())
        pytriton_server.check_port(*predecessor.getsockname())
        assert predecessor.fileno() == -1, "the port was in use at first"
