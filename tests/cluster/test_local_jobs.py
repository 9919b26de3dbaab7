"""Jobs beside the kernel, with real processes."""

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from processes_help import BOUND_S, python, until

from cluster import Job, JobFailed, JobNotFound, Resources, RunBusy, State, processes, submit

ROOT = Path(__file__).parents[2]


def gone(pid: int) -> bool:
    return processes.identity(pid) is None


def pid_in(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text().strip(), f"a pid in {path}"))


def test_a_command_runs_and_its_output_is_the_log(run):
    job = submit(python("import sys; print('out'); print('err', file=sys.stderr)"), run)
    assert job.wait(BOUND_S) == State.FINISHED == "FINISHED"
    assert job.log_path.read_text() == "out\nerr\n"
    assert job.tail(1) == "err"
    assert list(job.logs()) == ["out", "err"]
    assert job.status.returncode == 0


def test_a_failed_command_says_its_exception_and_last_lines(run):
    job = submit(python("print('step 1')\nraise ValueError('the loss is nan')"), run, name="sft")
    with pytest.raises(JobFailed) as failure:
        job.wait(BOUND_S)
    assert failure.value.exception_line == "ValueError: the loss is nan"
    assert str(failure.value).startswith("sft failed: ValueError: the loss is nan")
    assert "step 1" in failure.value.last_lines
    assert failure.value.returncode == 1
    assert job.state == State.FAILED


def test_a_program_that_does_not_exist_fails_with_its_name(run):
    with pytest.raises(JobFailed, match="no-such-program"):
        submit(["no-such-program"], run).wait(BOUND_S)


def test_lines_come_while_the_job_runs(run, gate):
    job = submit(python(f"print('one'); {gate.code}; print('two', end='')"), run)
    lines = job.logs(follow=True)
    assert next(lines) == "one"
    assert job.state == State.RUNNING
    gate.open()
    assert list(lines) == ["two"]


def test_waiting_is_bounded_and_the_job_goes_on(run, gate):
    job = submit(python(gate.code), run)
    with pytest.raises(TimeoutError, match=r"still RUNNING after 0\.05 s"):
        job.wait(timeout=0.05)
    gate.open()
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


def test_the_kernels_and_an_outer_jobs_variables_stay_behind(run, monkeypatch):
    foreign = {
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "JPY_PARENT_PID": "1",
        "JUPYTERHUB_API_TOKEN": "secret",
        "SLURM_PROCID": "3",
        "WORLD_SIZE": "8",
    }
    for name, value in foreign.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_HOME", "/cache")
    job = submit(python("import json, os; print(json.dumps(dict(os.environ)))"), run, env={"SEED": 7})
    job.wait(BOUND_S)
    seen = json.loads(job.log_path.read_text())
    assert not {"MPLBACKEND", "JPY_PARENT_PID", "JUPYTERHUB_API_TOKEN", "SLURM_PROCID", "WORLD_SIZE"} & set(
        seen
    )
    assert (seen["HF_HOME"], seen["SEED"]) == ("/cache", "7")


def test_an_ordinary_plot_backend_is_kept(run, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    job = submit(python("import os; print(os.environ['MPLBACKEND'])"), run)
    job.wait(BOUND_S)
    assert job.tail() == "agg"


RANKS = """
import os
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]
print(*[os.environ[name] for name in names])
"""


def test_ranks_get_torch_distributeds_variables(run):
    job = submit(python(RANKS), run, resources=Resources(tasks_per_node=2))
    job.wait(BOUND_S)
    first, second = (job.log_of("main", rank).read_text().split() for rank in (0, 1))
    assert first[:4] == ["0", "2", "0", "127.0.0.1"]
    assert second[:4] == ["1", "2", "1", "127.0.0.1"]
    assert first[4] == second[4]


def test_when_one_rank_fails_all_end(run, gate, tmp_path):
    code = f"""
import os
if os.environ["RANK"] == "1":
    raise RuntimeError("rank one is unwell")
open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
{gate.code}
"""
    job = submit(python(code), run, resources=Resources(tasks_per_node=2))
    with pytest.raises(JobFailed, match="main rank 1 ended with exit status 1") as failure:
        job.wait(BOUND_S)
    assert failure.value.exception_line == "RuntimeError: rank one is unwell"
    until(lambda: not processes.of_job(str(job.folder)), "every process of the job gone")


def test_components_have_their_own_ranks_and_the_last_one_ends_the_job(run):
    critic = "import signal; print('serving', flush=True); signal.pause()"
    job = submit(
        {"critic": python(critic), "actor": python(RANKS)},
        run,
        resources={"critic": Resources(linger_s=0), "actor": Resources(tasks_per_node=2, linger_s=0)},
    )
    assert job.wait(BOUND_S) == State.FINISHED
    assert job.log_path.read_text().split()[:2] == ["0", "2"]
    assert job.log_path == job.log_of("actor")
    until(lambda: not processes.of_job(str(job.folder)), "every process of the job gone")


def test_a_component_that_fails_takes_the_others_with_it(run, gate):
    components = {"critic": python("raise OSError('port taken')"), "actor": python(gate.code)}
    with pytest.raises(JobFailed, match="OSError: port taken"):
        submit(components, run).wait(BOUND_S)


STUBBORN_TREE = """
import signal, subprocess, sys
child = '''
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
if os.fork():
    os._exit(0)  # the grandchild is adopted by init
open({pid!r}, "w").write(str(os.getpid()))
signal.pause()
'''
subprocess.run([sys.executable, "-c", child])
signal.pause()
"""


def test_cancel_leaves_no_orphan(run, tmp_path, monkeypatch):
    job = submit(python(STUBBORN_TREE.format(pid=str(tmp_path / "pid"))), run)
    stubborn = pid_in(tmp_path / "pid")
    assert len(processes.of_job(str(job.folder))) == 3  # supervisor, rank, orphan
    monkeypatch.setattr(processes, "GRACE_S", 0.2)
    assert job.cancel() == State.CANCELLED
    assert gone(stubborn)
    assert not processes.of_job(str(job.folder))
    assert job.wait() == State.CANCELLED


def test_cancelling_an_ended_job_changes_nothing(run):
    job = submit(python("pass"), run)
    job.wait(BOUND_S)
    assert job.cancel() == State.FINISHED


KERNEL = """
import os, signal, sys
from cluster import submit
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background ignores it
submit([sys.executable, "-c", {code!r}], {run!r})
print("submitted", flush=True)
signal.pause()
"""


@pytest.fixture
def kernel(run, gate):
    """A process that submitted a job, as a notebook kernel does, in a process group of its own."""
    code = KERNEL.format(code=f"print('begun', flush=True); {gate.code}; print('done')", run=str(run))
    process = subprocess.Popen(
        python(code), cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "submitted\n"
    yield process
    process.kill()
    process.wait()


def test_a_kernels_death_leaves_the_job_which_another_process_finds(run, gate, kernel):
    kernel.kill()
    kernel.wait()
    job = Job.attach(run)
    assert job.state == State.RUNNING
    gate.open()
    assert job.wait(BOUND_S) == State.FINISHED
    assert job.tail() == "begun\ndone"


def test_a_kernels_interrupt_does_not_reach_the_job(run, gate, kernel):
    job = Job.attach(run)
    assert next(job.logs(follow=True)) == "begun"
    os.killpg(kernel.pid, signal.SIGINT)
    kernel.wait(BOUND_S)
    gate.open()
    assert job.wait(BOUND_S) == State.FINISHED


def test_attach_needs_a_submission(tmp_path):
    with pytest.raises(JobNotFound, match="no job was submitted"):
        Job.attach(tmp_path)


def test_another_process_with_the_jobs_pid_is_not_the_job(run, gate):
    job = submit(python(gate.code), run)
    handle = json.loads((run / "job" / "job.json").read_text())
    (run / "job" / "job.json").write_text(json.dumps({**handle, "id": str(os.getpid())}))
    assert Job.attach(run).state == State.FAILED  # our own pid, but not the job's start
    assert job.state == State.RUNNING
    (run / "job" / "job.json").write_text(json.dumps(handle))


def test_a_killed_supervisor_takes_its_ranks_with_it(run, gate, tmp_path):
    code = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); {gate.code}"
    job = submit(python(code), run)
    rank = psutil.Process(pid_in(tmp_path / "pid"))
    assert rank.parent().pid == int(job.id)
    rank.parent().kill()
    until(lambda: not processes.of_job(str(job.folder)), "all processes of the job gone")
    with pytest.raises(JobFailed):
        job.wait(BOUND_S)


def test_a_run_folder_has_one_job_at_a_time(run, gate):
    job = submit(python(gate.code), run)
    with pytest.raises(RunBusy, match="a job that is RUNNING"):
        submit(python("pass"), run)
    gate.open()
    job.wait(BOUND_S)
    again = submit(python("print('again')"), run)
    again.wait(BOUND_S)
    assert (job.folder.name, again.folder.name) == ("001", "002")
    assert job.log_path.read_text() == ""


def test_stop_is_a_file_and_a_new_submission_takes_it_back(run, gate):
    job = submit(python(gate.code), run)
    job.stop()
    assert (run / "control" / "stop").exists()
    gate.open()
    job.wait(BOUND_S)
    submit(python("pass"), run).wait(BOUND_S)
    assert not (run / "control" / "stop").exists()


def test_wrong_use_is_refused_with_the_cure(run):
    with pytest.raises(ValueError, match="sequence of words"):
        submit("python train.py", run)
    with pytest.raises(ValueError, match="known are local, slurm, print"):
        submit(["true"], run, where="cloud")
    with pytest.raises(ValueError, match="one node"):
        submit(["true"], run, resources=Resources(nodes=2))
    with pytest.raises(ValueError, match="no queue"):
        submit(["true"], run).requeue()


def test_an_unwritable_run_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="not writable"):
        submit(["true"], tmp_path / "file" / "run")


def test_the_handle_shows_itself_in_a_line(run):
    job = submit(python("pass"), run, name="<sft>")
    job.wait(BOUND_S)
    assert repr(job).startswith("<Job <sft>: FINISHED local")
    assert "&lt;sft&gt;" in job._repr_html_()
