"""batch.sh in bash, with programs of our own in the place of Slurm's: the cases that a real cluster makes rare."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes_help import until

from aligner_lib.run_folder.reader import RunFolder
from cluster import Resources, State, record
from cluster.sbatch import member_lines
from cluster.scheduler import Member
from cluster.states import status_at_end

CLUSTER = Path(__file__).parents[2] / "cluster"
WAITS = "bash -c 'touch {run}/up; until [ -e {run}/{file} ]; do sleep 0.05; done; {then}'"


class Batch:
    """A job's batch script, with scontrol and squeue that answer with the text of a file."""

    def __init__(self, folder: Path):
        self.folder, self.run, self.tools = folder, folder / "run", folder / "bin"
        (self.run / "job" / "001").mkdir(parents=True)
        (self.run / "control").mkdir()
        self.stop, self.started = self.run / "control" / "stop", []
        self.tools.mkdir()
        scontrol = f"""
        if [ "$1" = requeue ]; then
            echo "$@" >>{folder}/requeued
            [ -z "$TERM_ALL" ] || kill -TERM $$ $PPID
            cat {folder}/refusal >&2 2>/dev/null && exit 1
            exit 0
        fi
        cat {folder}/job 2>/dev/null"""
        for name, text in {"scontrol": scontrol, "squeue": ""}.items():
            (self.tools / name).write_text(f"#!/bin/bash\n{text}\n")
            (self.tools / name).chmod(0o755)

    def start(self, lines: str, max_requeues=9, **environment: str) -> subprocess.Popen:
        """Starts a batch script with these lines between begin and finish."""
        sources = "".join(f"source {CLUSTER}/{name}.sh\n" for name in ("slurm", "batch"))
        begin = f"begin {self.run} {self.run}/job/001 1 {max_requeues}"
        path = {"PATH": f"{self.tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        command = ["bash", "-c", f"{sources}{begin}\n{lines}\nfinish\n"]
        self.started.append(subprocess.Popen(command, env={**os.environ, **path, **environment}))
        return self.started[-1]

    def start_waiting(self, file: str, then="exit 0", **options) -> subprocess.Popen:
        """A component that is up, and that does `then` once the file is in the run folder."""
        waits = WAITS.format(run=self.run, file=file, then=then)
        process = self.start(f"component main {waits}", **options)
        until((self.run / "up").exists, "the trainer's start")
        return process

    def run_next_attempt(self) -> None:
        """The job's next attempt, whose component has nothing to do."""
        self.start("component main true").wait(60)

    def preempt(self, time: str = "2026-01-01T00:00:00") -> None:
        """A job that Slurm preempts: its processes get SIGTERM."""
        (self.folder / "job").write_text(f"JobState=RUNNING PreemptTime={time}\n")
        self.start("component main bash -c 'kill -TERM $$'").wait(60)
        (self.folder / "job").unlink()

    def notice(self, **options) -> int:
        """A whole job that got the scheduler's notice while it ran; its script's exit status."""
        process = self.start_waiting("control/stop", **options)
        process.send_signal(signal.SIGUSR2)
        return process.wait(60)

    def signal_and_end(self, process: subprocess.Popen, number: int, logged: str) -> None:
        """Sends a signal, and ends the component that waits for `go` when the script has reacted."""
        process.send_signal(number)
        until(lambda: logged in self.log, logged)
        (self.run / "go").touch()
        process.wait(60)

    @property
    def log(self) -> str:
        return (self.run / "job" / "001" / "batch.log").read_text()

    @property
    def outcome(self) -> dict:
        path = self.run / "job" / "001" / "exit.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def is_requeued(self) -> bool:
        return (self.folder / "requeued").exists()


@pytest.fixture
def batch(tmp_path):
    batch = Batch(tmp_path)
    yield batch
    for process in batch.started:
        process.kill()
        process.wait()


def test_after_a_notice_the_job_is_queued_again_and_takes_back_the_notice_but_not_the_users_stop(batch):
    batch.notice()
    assert (batch.folder / "requeued").read_text() == "requeue 7\n" and not batch.outcome
    assert batch.stop.exists()
    batch.run_next_attempt()
    assert not batch.stop.exists()
    batch.stop.touch()
    batch.run_next_attempt()
    assert batch.stop.exists()


def test_being_queued_again_ends_the_script_and_scontrol_before_its_answer(batch):
    """Slurm grants the request and sends SIGTERM to everything in the job, scontrol included."""
    batch.notice(TERM_ALL="1")
    assert batch.is_requeued and not batch.outcome and "queued again" in batch.log


@pytest.mark.parametrize(("then", "returncode"), [("kill -9 $$", None), ("exit 3", 3)])
def test_after_a_notice_a_trainer_that_a_signal_ends_is_queued_again_and_one_that_fails_is_not(
    batch, then, returncode
):
    batch.notice(then=then)
    assert batch.is_requeued == (returncode is None)
    assert batch.outcome.get("returncode") == returncode


def test_a_run_that_finished_meanwhile_is_not_queued_again(batch):
    finish = 'echo "{\\"status\\": \\"finished\\"}" >$OUT'
    batch.notice(then=finish, OUT=str(batch.run / "run.json"))
    assert not batch.is_requeued and batch.outcome["returncode"] == 0
    assert not batch.stop.exists(), "the stop that the notice asked for is taken back"


@pytest.mark.parametrize("stopped", ["before the notice", "after the notice"])
def test_a_run_that_the_user_stops_is_not_queued_again_and_keeps_its_stop(batch, stopped):
    process = batch.start_waiting("go")
    if stopped == "before the notice":
        batch.stop.touch()
        batch.signal_and_end(process, signal.SIGUSR2, "gave notice")
    else:
        process.send_signal(signal.SIGUSR2)
        until(batch.stop.exists, "the notice's stop")
        RunFolder(batch.run).request_stop()
        (batch.run / "go").touch()
        process.wait(60)
    assert not batch.is_requeued and batch.outcome["returncode"] == 0
    assert batch.stop.exists()


def test_a_cluster_that_refuses_to_queue_again_is_quoted(batch):
    (batch.folder / "refusal").write_text('Requested "operation" is disabled\n')
    assert batch.notice() == 75, "no job that depends on this one's success may start"
    status = status_at_end(batch.outcome)
    assert status.state == State.FAILED
    assert status.reason.startswith("it could not be queued again (Requested operation is disabled); submit")


def test_the_bound_on_requeues(batch):
    assert batch.notice(max_requeues=2, SLURM_RESTART_COUNT="2") == 75
    assert not batch.is_requeued and "queued again 2 times" in batch.outcome["note"]


@pytest.mark.parametrize("taken", [Batch.notice, Batch.preempt])
def test_a_stop_that_the_user_requests_while_the_job_waits_in_the_queue_is_kept(batch, taken):
    taken(batch)
    assert batch.is_requeued and not batch.outcome
    record.request_stop(batch.run)
    batch.run_next_attempt()
    assert batch.stop.exists() and batch.outcome["returncode"] == 0


@pytest.mark.parametrize("ends", ["by a signal of another", "finished", "stopped by the user"])
def test_a_job_that_is_not_preempted_or_whose_run_is_over_is_not_queued_again(batch, ends):
    """Preemption is known by its time and not by the signal."""
    if ends == "finished":
        (batch.run / "run.json").write_text('{"status": "finished"}')
    elif ends == "stopped by the user":
        batch.stop.touch()
    batch.preempt(*["None"] * (ends == "by a signal of another"))
    assert not batch.is_requeued and batch.outcome["returncode"] == 143
    assert batch.stop.exists() == (ends == "stopped by the user")


@pytest.mark.parametrize(("reason", "word"), [("TimeLimit", "TIMEOUT"), ("None", "CANCELLED")])
def test_the_schedulers_end_is_remembered(batch, reason, word):
    (batch.folder / "job").write_text(f"JobState=COMPLETING Reason={reason}")
    batch.signal_and_end(batch.start_waiting("go"), signal.SIGTERM, "ends the job")
    assert (batch.run / "job" / "001" / "taken").read_text() == f"{word}\n"
    assert not batch.outcome


@pytest.mark.parametrize("components", ["1", "2"])
def test_of_a_job_that_slurm_has_queued_again_the_script_queues_the_other_components(batch, components):
    """Slurm itself queues only the component that lost its node."""
    (batch.folder / "job").write_text("JobState=PENDING Reason=BeginTime")
    process = batch.start_waiting("go", SLURM_HET_SIZE=components)
    batch.signal_and_end(process, signal.SIGTERM, "ends the job")
    assert (batch.run / "job" / "001" / "taken").read_text() == "REQUEUED\n"
    assert batch.is_requeued == (components == "2") and not batch.outcome


@pytest.mark.parametrize(
    ("critic", "actor", "outcome"),
    [
        ("until [ -e /never ]; do sleep 0.05; done", "true", {"returncode": 0, "component": "actor"}),
        ("exit 5", "until [ -e /never ]; do sleep 0.05; done", {"returncode": 5, "component": "critic"}),
    ],
)
def test_the_main_component_s_end_or_any_failure_ends_the_others(batch, critic, actor, outcome):
    lines = f"component critic bash -c '{critic}'\ncomponent actor bash -c '{actor}'"
    assert batch.start(lines).wait(60) == outcome["returncode"]
    assert batch.outcome == outcome | {"rank": 0, "note": ""}


def test_a_notice_does_not_end_a_component_that_still_saves(batch):
    saves = f"touch {batch.run}/saves; until [ -e {batch.run}/go ]; do sleep 0.05; done; touch {batch.run}/saved; exit"
    wait = "until [ -e /never ]; do sleep 0.05; done"
    trap = shlex.quote(f"trap {shlex.quote(saves)} TERM; touch {batch.run}/up; {wait}")
    until_up = f"until [ -e {batch.run}/up ]; do sleep 0.05; done"
    process = batch.start(f"component critic bash -c {trap}\ncomponent actor bash -c '{until_up}'")
    until((batch.run / "saves").exists, "the critic's signal")
    batch.signal_and_end(process, signal.SIGUSR2, "gave notice")
    assert (batch.run / "saved").exists()


def test_a_full_disk_leaves_no_empty_exit_record(batch):
    assert batch.start("printf() { return 1; }\ncomponent main true").wait(60) == 0
    assert not (batch.run / "job" / "001" / "exit.json").exists()


@pytest.mark.parametrize("returncode", [0, 3])
def test_options_and_variables_of_the_setup_do_not_reach_the_batch_script(batch, returncode):
    (batch.tools / "srun").write_text(f"#!/bin/bash\nkill -USR2 $PPID\nexit {returncode}\n")
    (batch.tools / "srun").chmod(0o755)
    names = (
        "RUN FOLDER JOB HOSTS ATTEMPT RESTARTS LINGER_S MAX_REQUEUES names pids codes failed noticed taken"
    )
    functions = "notice say record over component requeue is_preempted".split()
    setup = (
        "set -euo pipefail",
        *(f"{name}=7" for name in names.split()),
        "trap 'exit 9' USR2 TERM",
        "sleep 30 &",
    )
    share = Resources(setup=(*setup, *(f"{name}() {{ exit 9; }}" for name in functions)))
    member = Member(batch.run, batch.run / "job" / "001", {"main": ["true"]})
    script = batch.start("\n".join(member_lines(member, {"main": share})[1:]))
    assert script.wait(20) == returncode, "the script does not wait for the setup's `sleep 30`"
    assert "gave notice" in batch.log
    assert batch.is_requeued == (returncode == 0)
    assert batch.outcome.get("returncode", 0) == returncode


def test_a_line_of_the_setup_that_fails_ends_the_job_if_the_setup_wants_it(batch):
    assert batch.start("set -e\nfalse\nend_setup\ncomponent main true").wait(60) == 1
    assert "ended with" not in batch.log and not batch.outcome


def test_each_component_has_its_own_setup(batch):
    srun = batch.tools / "srun"
    srun.write_text(f'#!/bin/bash\necho "$ROLE" >{batch.folder}/role_of_${{1#--het-group=}}\n')
    srun.chmod(0o755)
    shares = {name: Resources(setup=(f"export ROLE={name}",)) for name in ("critic", "actor")}
    member = Member(batch.run, batch.run / "job" / "001", {name: ["true"] for name in shares})
    assert batch.start("\n".join(member_lines(member, shares)[1:])).wait(60) == 0
    roles = [(batch.folder / f"role_of_{component}").read_text() for component in (0, 1)]
    assert roles == ["critic\n", "actor\n"]


def test_loading_submitit_leaves_the_users_log_handlers_alone(tmp_path):
    """submitit configures logging at import, which closes all handlers: a file that was opened for writing got no further line."""
    program = """
import logging, sys
logging.basicConfig(filename=sys.argv[1], filemode="w", level="INFO")
logging.info("before")
from cluster import hetjob, sbatch
logging.info("after")
"""
    log = tmp_path / "mine.log"
    subprocess.run([sys.executable, "-c", program, str(log)], check=True, cwd=CLUSTER.parent)
    assert log.read_text().split() == ["INFO:root:before", "INFO:root:after"]
