"""A server that can't start is cleared away like one that did."""

import os
import platform
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

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


def test_a_failed_start_ends_its_processes_and_is_told_with_tritonserver_s_log(
    pytriton, tmp_path, monkeypatch
):
    from pytriton.client.exceptions import PyTritonClientTimeoutError

    server, begun = PyTritonServer("127.0.0.1", free_port(), "token", tmp_path, []), []

    def run():
        begun.append(subprocess.Popen(SLEEP))
        raise PyTritonClientTimeoutError("Waiting for server to be ready timed out.")

    monkeypatch.setattr(server._triton, "run", run)
    with pytest.raises(UserError, match=rf"at 127.0.0.1:\d+ .* {tmp_path}/job/tritonserver.log"):
        server.start()
    server.stop()
    assert begun[0].wait(10) < 0
    assert not (tmp_path / "pytriton").exists()
    assert not (tmp_path / "job" / "pytriton.json").exists()


def test_a_server_that_was_never_started_can_be_stopped_and_ends_no_other_child(pytriton, tmp_path):
    with subprocess.Popen(SLEEP) as another:
        PyTritonServer("127.0.0.1", free_port(), "token", tmp_path, []).stop()
        assert another.poll() is None
        another.kill()
    assert not (tmp_path / "pytriton").exists()


@pytest.mark.parametrize("mark, stays", [("started at another time", True), (None, False)])
def test_shared_memory_of_a_process_that_has_the_pid_now_stays(tmp_path, mark, stays):
    segment = pytriton_cleanup.SHARED_MEMORY / f"pytrtion{os.getpid()}-of-this-test"
    segment.touch()
    (tmp_path / "job").mkdir()
    pytriton_cleanup.note_down(tmp_path, [], [])
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


HALF_GONE = """
import ctypes, socket, threading
listening = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=threading.Event().wait).start()
print(listening.getsockname()[1], flush=True)
ctypes.CDLL(None).syscall(60, 0)  # exit: of this thread alone
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="calls exit by x86_64's number of it")
def test_a_process_whose_first_thread_is_gone_still_has_its_port_and_is_waited_for(monkeypatch):
    """A killed server looks like a zombie before its last thread is gone."""
    monkeypatch.setattr(pytriton_server, "PORT_S", 0.0)
    process = subprocess.Popen([sys.executable, "-c", HALF_GONE], stdout=subprocess.PIPE, text=True)
    port, seen = int(process.stdout.readline()), psutil.Process(process.pid)
    until(lambda: seen.status() == psutil.STATUS_ZOMBIE, "the first thread's end")
    with pytest.raises(UserError, match="can't be used"):
        pytriton_server.check_port("127.0.0.1", port)
    assert pytriton_cleanup.is_alive(seen)
    monkeypatch.setattr(pytriton_server, "PORT_S", 60.0)
    with ThreadPoolExecutor() as pool:
        checked = pool.submit(pytriton_server.check_port, "127.0.0.1", port)
        pytriton_cleanup.end([process.pid], signal.SIGKILL, 10.0)
        checked.result()
    assert process.wait() is not None and not pytriton_cleanup.is_alive(seen)
