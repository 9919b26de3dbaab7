"""Jobs beside the kernel, with real processes."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from processes_help import BOUND_S, python, until

from cluster import (
    Job,
    JobFailed,
    JobNotFound,
    Resources,
    RunBusy,
    State,
    environment,
    gpus,
    processes,
    record,
    submit,
)

ROOT = Path(__file__).parents[2]


def none_left(job: Job) -> None:
    until(lambda: not processes.of_job(str(job.folder)), "every process of the job gone")


ENVIRON = "import json, os, sys; print(json.dumps(dict(os.environ))); print('err', file=sys.stderr)"


def test_a_finished_job_has_its_log_its_environment_and_a_line_that_shows_it(run, monkeypatch):
    """The kernel's variables and those of an outer job stay behind; the user's own reach the job."""
    foreign = {
        "JPY_PARENT_PID": "1",
        "JUPYTERHUB_API_TOKEN": "secret",
        "SLURM_PROCID": "3",
        "WORLD_SIZE": "8",
    }
    foreign["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    for name, value in (foreign | {"HF_HOME": "/cache"}).items():
        monkeypatch.setenv(name, value)
    job = submit(python(ENVIRON), run, name="<sft>", env={"SEED": 7})
    assert job.wait(BOUND_S) == State.FINISHED == "FINISHED"
    environ, error = job.log_path.read_text().splitlines()
    assert list(job.logs()) == [environ, error] and job.tail(1) == error == "err"
    assert job.status.returncode == 0
    seen = json.loads(environ)
    assert foreign.keys().isdisjoint(seen) and (seen["HF_HOME"], seen["SEED"]) == ("/cache", "7")
    assert repr(job).startswith("<Job <sft>: FINISHED local") and "&lt;sft&gt;" in job._repr_html_()
    assert job.cancel() == State.FINISHED, "cancelling an ended job changes nothing"


def test_an_ordinary_plot_backend_is_kept(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert environment.job_environment()["MPLBACKEND"] == "agg"


def test_a_failed_command_says_its_exception_and_last_lines(run):
    job = submit(python("print('step 1')\nraise ValueError('the loss is nan')"), run, name="sft")
    with pytest.raises(JobFailed) as failure:
        job.wait(BOUND_S)
    assert failure.value.exception_line == "ValueError: the loss is nan"
    assert str(failure.value).startswith("sft failed: ValueError: the loss is nan")
    assert "step 1" in failure.value.last_lines and failure.value.returncode == 1
    assert job.state == State.FAILED
    with pytest.raises(JobFailed, match="no-such-program"):
        submit(["no-such-program"], run).wait(BOUND_S)


def test_lines_come_while_the_job_runs_and_waiting_is_bounded(run, gate, monkeypatch, capsys):
    job = submit(python(f"print('one'); {gate.code}; print('two', end='')"), run)
    lines = job.logs(follow=True)
    assert next(lines) == "one"
    assert job.state == State.RUNNING
    with pytest.raises(TimeoutError, match=r"still RUNNING after 0\.05 s"):
        job.wait(timeout=0.05)
    assert capsys.readouterr().out == "", "a short wait is silent"
    (run / "run.json").write_text('{"heartbeat": {"step": 3}, "max_steps": 40}')
    monkeypatch.setattr("cluster.job.NEWS_S", 0.0)
    with pytest.raises(TimeoutError):
        job.wait(timeout=0.05)
    assert f"{job.name} is RUNNING, step 3 of 40, after 0 s" in capsys.readouterr().out
    gate.open()
    assert list(lines) == ["two"]
    assert job.wait(BOUND_S) == State.FINISHED


def test_await_leaves_the_loop_free(run, gate):
    async def notebook():
        job = submit(python(gate.code), run)

        async def another_cell():
            gate.open()
            return "ran"

        state, cell = await asyncio.gather(job.wait_async(BOUND_S), another_cell())
        return state, cell, await job

    assert asyncio.run(notebook()) == (State.FINISHED, "ran", State.FINISHED)


# ---- ranks and components -------------------------------------------------------------------------------------------


RANKS = """
import os
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]
print(*[os.environ[name] for name in names])
"""


def test_components_have_their_own_ranks_and_the_last_one_ends_the_job(run):
    critic = "import signal; print('serving', flush=True); signal.pause()"
    shares = {"critic": Resources(linger_s=0), "actor": Resources(tasks_per_node=2, linger_s=0)}
    job = submit({"critic": python(critic), "actor": python(RANKS)}, run, resources=shares)
    assert job.wait(BOUND_S) == State.FINISHED
    first, second = (job.log_of("actor", rank).read_text().split() for rank in (0, 1))
    assert first[:4] == ["0", "2", "0", "127.0.0.1"]
    assert second[:4] == ["1", "2", "1", "127.0.0.1"]
    assert first[4] == second[4]
    assert job.log_path == job.log_of("actor")
    none_left(job)


def test_when_one_rank_of_a_component_fails_all_ranks_and_components_end(run, gate):
    code = f"import os\nif os.environ['RANK'] == '1': raise RuntimeError('rank one is unwell')\n{gate.code}"
    components = {"critic": python(code), "actor": python(gate.code)}
    job = submit(components, run, resources={"critic": Resources(tasks_per_node=2), "actor": Resources()})
    with pytest.raises(JobFailed, match="critic rank 1 ended with exit status 1") as failure:
        job.wait(BOUND_S)
    assert failure.value.exception_line == "RuntimeError: rank one is unwell"
    none_left(job)


def test_without_nvidia_smi_the_driver_s_devices_are_counted(tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus._installed.__wrapped__() == 2


@pytest.mark.parametrize(
    ("visible", "own"), [("4,5,6", ["4", "5,6", "5,6"]), ("GPU-a,GPU-b,GPU-c,GPU-d", ["GPU-a", *2 * ["GPU-b,GPU-c"]]), ("0,1", [])]
)  # fmt: skip
def test_components_have_gpus_of_their_own_where_there_are_enough(run, monkeypatch, visible, own):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    shares = {"critic": Resources(gpus_per_node=1), "actor": Resources(gpus_per_node=2)}
    text = submit({name: ["true"] for name in shares}, run, "print:local", shares).text
    assert re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", text) == own, "the actor has two ranks"


# ---- ends and deaths ------------------------------------------------------------------------------------------------


STUBBORN_TREE = """
import signal, subprocess, sys
child = '''
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
if os.fork():
    os._exit(0)  # the grandchild is adopted by init
print(os.getpid(), flush=True)
signal.pause()
'''
subprocess.run([sys.executable, "-c", child])
signal.pause()
"""


def test_cancel_leaves_no_orphan(run, monkeypatch):
    job = submit(python(STUBBORN_TREE), run)
    stubborn = int(next(job.logs(follow=True)))
    assert len(processes.of_job(str(job.folder))) == 3  # supervisor, rank, orphan
    monkeypatch.setattr(processes, "GRACE_S", 0.2)
    assert job.cancel() == State.CANCELLED
    assert processes.identity(stubborn) is None
    assert not processes.of_job(str(job.folder))
    assert job.wait() == State.CANCELLED


def test_cancel_lets_the_supervisor_record_the_end_before_what_is_left_is_killed(run, gate, monkeypatch):
    job, outcomes = submit(python(f"print('started', flush=True); {gate.code}"), run), []
    assert next(job.logs(follow=True)) == "started"

    def end_job(folder):
        outcomes.append(record.read_json(Path(folder) / "exit.json"))

    monkeypatch.setattr(processes, "end_job", end_job)
    assert job.cancel() == State.CANCELLED
    assert [outcome["returncode"] for outcome in outcomes] == [-signal.SIGTERM]


def test_cancel_finds_a_job_whose_run_folder_was_written_in_another_way(tmp_path, monkeypatch):
    """A notebook's `../runs/x`, cancelled from the repository's root as `runs/x`."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    job = submit(python("import time; time.sleep(1000)"), "../runs/x")
    monkeypatch.chdir(tmp_path)
    again = Job.attach("runs/x")
    until(lambda: again.state == State.RUNNING, "the start")
    assert again.cancel() == State.CANCELLED
    none_left(job)


def test_a_killed_supervisor_takes_its_ranks_with_it(run, gate):
    job = submit(python(f"import os; print(os.getpid(), flush=True); {gate.code}"), run)
    supervisor = psutil.Process(int(next(job.logs(follow=True)))).parent()
    assert supervisor.pid == int(job.id)
    supervisor.kill()
    none_left(job)
    with pytest.raises(JobFailed, match="killed from outside"):
        job.wait(BOUND_S)
    shutil.rmtree(job.folder)
    assert job.reason == f"its folder {job.folder} was deleted"


KERNEL = """
import signal, sys
from cluster import submit
submit([sys.executable, "-c", {code!r}], {run!r})
print("submitted", flush=True)
signal.pause()
"""


def test_a_kernels_end_leaves_the_job_which_another_process_finds(run, gate):
    """The kernel is a process that submitted a job, in a process group of its own, which is killed."""
    code = KERNEL.format(code=f"print('begun', flush=True); {gate.code}; print('done')", run=str(run))
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    kernel = subprocess.Popen(python(code), cwd=ROOT, start_new_session=True, **options)
    assert kernel.stdout.readline() == "submitted\n"
    job = Job.attach(run)
    assert next(job.logs(follow=True)) == "begun"
    os.killpg(kernel.pid, signal.SIGKILL)
    kernel.wait(BOUND_S)
    assert job.state == State.RUNNING
    gate.open()
    assert job.wait(BOUND_S) == State.FINISHED
    assert job.tail() == "begun\ndone"


def test_a_signal_before_a_child_s_start_reaches_the_child():
    with processes.signalled_children() as start:
        os.kill(os.getpid(), signal.SIGTERM)
        assert start(["sleep", "60"]).wait(BOUND_S) == -signal.SIGTERM


def test_without_a_temporary_folder_a_job_says_why_it_ended(tmp_path):
    record.write_json(tmp_path / "spec.json", {"components": [], "linger_s": 0})
    code = "import sys, tempfile; tempfile.tempdir = '/missing'; from cluster.supervise import *; supervise(Path(sys.argv[1]))"
    subprocess.run([*python(code), str(tmp_path)], cwd=ROOT)
    outcome = record.read_json(tmp_path / "exit.json")
    assert outcome["returncode"] == 127 and "/missing" in outcome["note"]


def test_the_printed_script_starts_the_same_ranks_and_ends_with_the_failed_rank_s_status(run, monkeypatch):
    code = "import os, sys; print(os.environ['OMP_NUM_THREADS']); sys.exit(3 * (os.environ['RANK'] == '0'))"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = submit(python(code), run, "print:local", Resources(tasks_per_node=2))
    monkeypatch.delenv("OMP_NUM_THREADS")
    stores = run / "stores"
    stores.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(stores))
    assert subprocess.run(["bash", "-c", plan.text]).returncode == 3
    assert not [*stores.iterdir()]
    assert [path.read_text() for path in sorted(run.rglob("main_*.log"))] == ["1\n", "1\n"]
    assert plan.text.count(" GOMP_SPINCOUNT=") == 2


def test_a_damaged_run_json_breaks_no_handle(run):
    job = submit(python("pass"), run)
    for text in ("{", "[1]", "\0"):
        (run / "run.json").write_text(text)
        assert job.heartbeat_age is None and job.news().startswith(f"{run.name} is ") and job._repr_html_()
    assert job.wait(BOUND_S) == State.FINISHED


def test_another_process_with_the_jobs_pid_is_not_the_job(run, gate):
    job = submit(python(gate.code), run)
    handle = json.loads((run / "job" / "job.json").read_text())
    (run / "job" / "job.json").write_text(json.dumps({**handle, "id": str(os.getpid())}))
    assert Job.attach(run).state == State.FAILED  # our own pid, but not the job's start
    assert job.state == State.RUNNING
    (run / "job" / "job.json").write_text(json.dumps(handle))


# ---- one run folder -------------------------------------------------------------------------------------------------


def test_a_run_folder_has_one_job_at_a_time_and_a_new_one_takes_the_stop_back(run, gate):
    job = submit(python(gate.code), run)
    with pytest.raises(RunBusy, match="a job, RUNNING"):
        submit(python("pass"), run)
    job.stop()
    assert (run / "control" / "stop").exists()
    gate.open()
    job.wait(BOUND_S)
    again = submit(python("print('again')"), run)
    again.wait(BOUND_S)
    assert (job.folder.name, again.folder.name) == ("001", "002")
    assert job.log_path.read_text() == ""
    assert not (run / "control" / "stop").exists()
    with pytest.raises(ValueError, match="no queue"):
        again.requeue()


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("python train.py", {}, "sequence of words"),
        (["true"], {"where": "cloud"}, "known are local, slurm, print"),
        (["true"], {"resources": Resources(nodes=2)}, "single node"),
        (
            ["true"],
            {"resources": Resources(gpus_per_node=99)},
            r"this machine has \d+ GPUs, .*main: 99.*: set",
        ),
    ],
)
def test_wrong_use_is_refused_with_the_cure(run, command, options, words):
    with pytest.raises(ValueError, match=words):
        submit(command, run, **options)


def test_a_folder_without_a_job_and_one_that_is_not_writable_are_named(tmp_path):
    with pytest.raises(JobNotFound, match="no job was submitted"):
        Job.attach(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="not writable"):
        submit(["true"], tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("beat_ago", "state"),
    [(None, State.UNKNOWN), (3610, State.UNKNOWN), (300, State.FAILED), (10, State.UNKNOWN)],
)
def test_a_job_of_another_host_has_ended_when_its_run_falls_silent(tmp_path, beat_ago, state):
    """A job without a heartbeat of its own may be loading a model, or be no trainer."""
    now = time.time()
    (tmp_path / "job").mkdir()
    job = record.Record(
        "local", "1", "sft", "job/001", {"main": ["true"]}, host="elsewhere", submitted=now - 3600
    )
    record.write(tmp_path, job)
    if beat_ago is not None:
        record.write_json(tmp_path / "run.json", {"heartbeat": {"time": now - beat_ago, "step": 3}})
    status = Job.attach(tmp_path).status
    assert status.state == state and "it was started on elsewhere" in status.reason
