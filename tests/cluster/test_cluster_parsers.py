"""What reads other programs' text: host lists, squeue, sacct, logs."""

import json
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import logs, queue
from cluster.hostlist import expand
from cluster.launch import from_slurm, make_private, master_port, step_store
from cluster.queue import Entry, parse_sacct, parse_squeue
from cluster.slurm import _from_queue, first_failure
from cluster.states import State, Status, status_at_end
from cluster.sweep import last_values


@pytest.mark.parametrize(
    ("short", "hosts"),
    [
        ("", []),
        ("gpu[07-09,12],login1", ["gpu07", "gpu08", "gpu09", "gpu12", "login1"]),
        ("rack[1-2]n[09-10]", ["rack1n09", "rack1n10", "rack2n09", "rack2n10"]),
        ("a[1].site,b-[2]", ["a1.site", "b-2"]),
    ],
)
def test_host_lists(short, hosts):
    assert expand(short) == hosts


def test_torchs_variables_come_from_the_steps():
    step = {"NUM_NODES": "2", "NUM_TASKS": "16", "NODELIST": "gpu[07,09]"}
    environ = {f"SLURM_STEP_{name}": value for name, value in step.items()}
    environ |= {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "123456"}
    expected = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
    expected |= {"MASTER_ADDR": "gpu07", "MASTER_PORT": "23457"}
    assert from_slurm(environ, component=1) == expected
    assert step_store(environ, component=1) == ""
    starts = [environ | {"SLURM_STEP_NUM_NODES": "1", "SLURM_RESTART_COUNT": count} for count in "12"]
    stores = {step_store(start, component) for start in starts for component in (0, 1)}
    assert len(stores) == 4, "a requeued job and the other component of a hetjob have files of their own"


def test_a_folder_that_other_accounts_can_open_is_refused(tmp_path):
    make_private(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    make_private(tmp_path / "new")
    (tmp_path / "open").mkdir(mode=0o711)
    (tmp_path / "link").symlink_to(tmp_path / "new")
    for name in ("open", "link"):
        with pytest.raises(PermissionError, match=rf"{name} belongs to another account, or .* set TMPDIR"):
            make_private(tmp_path / name)


def test_neighbouring_jobs_have_ports_of_their_own():
    ports = {master_port(job, component=0) for job in range(123_456, 123_456 + 9_000)}
    assert len(ports) == 9_000 and min(ports) >= 20_000 and max(ports) < 30_000


def test_squeue_lines():
    text = "12+0|RUNNING|n[1-2]|2026-01-01T10:00:00|N/A|None|/runs/a|b|/runs/a|b/x.sh\n12+1|PENDING||N/A|NONE|Resources|(null)|(null)\nodd\n"
    first, second = parse_squeue(text)
    assert (first.id, first.job, first.nodes, first.end, first.reason) == ("12+0", "12", "n[1-2]", "", "")
    assert first.is_of("/runs/a|b") and not second.is_of("/runs/a|b")
    assert (second.state, second.start, second.reason) == ("PENDING", "", "Resources")


@pytest.mark.parametrize(
    ("marks", "is_of"),
    [
        ("project 42|/runs/a/job/001/x.sh", True),  # a site's plugin has replaced the comment
        ("/runs/a/job/001|(null)", True),  # a site's sbatch has copied the script
        ("/runs/a/job/0010|/runs/a/job/0010/x.sh", False),
        ("(null)|(null)", False),
    ],
)
def test_a_job_is_known_by_its_comment_or_by_its_script(marks, is_of):
    (entry,) = parse_squeue(f"7|RUNNING|n1|N/A|N/A|None|{marks}\n")
    assert entry.is_of("/runs/a/job/001") == is_of


def test_sacct_rows_leave_out_steps_and_who_cancelled():
    text = "5|CANCELLED by 1000|n1|sft|2026-01-01T10:00:00|0:15\n5.batch|CANCELLED|n1|batch|2026-01-01T10:00:00|0:15\n"
    assert [(row["JobID"], row["State"]) for row in parse_sacct(text)] == [("5", "CANCELLED")]


@settings(max_examples=50)
@given(st.text(alphabet="ab\n", max_size=60), st.integers(0, 20), st.integers(1, 40))
def test_the_tail_is_the_end_of_the_lines(tmp_path_factory, text, count, block):
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_text(text)
    lines = text.removesuffix("\n").split("\n") if text else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_BLOCK", block)  # small blocks, so that lines cross them
        assert logs.tail(path, count) == "\n".join(lines[-count:] if count else [])


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=20), max_size=10))
def test_followed_pieces_give_every_line_once(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("log") / "log"
    path.touch()
    follower, lines = logs.Follower(path), []
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        lines += follower.read()
    lines += follower.last_line()
    expected = b"".join(pieces).split(b"\n")
    expected = expected if expected[-1] else expected[:-1]
    assert lines == [line.decode(errors="replace") for line in expected]


def test_a_truncated_log_is_read_anew(tmp_path):
    path = tmp_path / "log"
    path.write_text("one\ntwo\n")
    follower = logs.Follower(path)
    assert follower.read() == ["one", "two"]
    path.write_text("new\n")
    assert follower.read() == ["new"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[rank1]: torch.OutOfMemoryError: no memory\nbye", "torch.OutOfMemoryError: no memory"),
        ("KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("ValueError: first\nRuntimeError: second\n", "RuntimeError: second"),
        ("all is well: no Error here\n", ""),
        ("loading\nerror: there is no profile 'x'\n", "error: there is no profile 'x'"),
        ("error (rank 3): the disk is full\nsrun: error: n1\n", "error (rank 3): the disk is full"),
    ],
)
def test_the_exception_in_a_log(text, line):
    assert logs.exception_line(text) == line


def test_the_last_value_of_every_metric(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": 1, "train/loss": 2.0}, {"step": 2, "val/loss": 3.0}, {"step": 3, "train/loss": 1.0}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 4, "tr')
    assert last_values(path) == {"step": 3, "train/loss": 1.0, "val/loss": 3.0}
    assert last_values(tmp_path / "none") == {}


def test_a_job_that_squeue_never_answered_for_is_not_missing(monkeypatch):
    answers = [(0, "1|RUNNING|n1|||None|\n"), (1, ""), (1, "")]

    def run_tool(*words):
        assert "-a" in words, "a hidden partition has jobs, too"
        return subprocess.CompletedProcess(words, *answers.pop(0), stderr="no route to the controller")

    monkeypatch.setattr(queue, "run_tool", run_tool)
    monkeypatch.setattr(queue.time, "monotonic", lambda: clock)
    of_process, clock = queue.Queue(), 0
    assert [entry.state for entry in of_process.entries("1")] == ["RUNNING"]
    for clock, left in ((100, 1), (100.5, 1), (102, 0)):  # noqa: B007 the lambda reads it
        with pytest.raises(queue.Unreachable, match="no route"):
            of_process.entries("2")
        assert len(answers) == left, "that squeue does not answer holds for a second"


def test_the_users_defaults_for_slurms_commands_do_not_reach_them(tmp_path, monkeypatch):
    (tmp_path / "squeue").write_text("#!/bin/bash\ncompgen -e\n")
    (tmp_path / "squeue").chmod(0o755)
    names = "SQUEUE_PARTITION SACCT_FORMAT SINFO_SORT SCANCEL_STATE SCONTROL_LOCAL SLURM_TIME_FORMAT SRUN_CPUS_PER_TASK SLURM_CONF"
    for name, value in [("PATH", f"{tmp_path}:/bin"), *((name, "x") for name in names.split())]:
        monkeypatch.setenv(name, value)
    assert set(queue.run_tool("squeue").stdout.split()) & set(names.split()) == {"SLURM_CONF"}


@pytest.mark.parametrize(("state", "reason"), [("RUNNING", ""), ("SUSPENDED", "suspended")])
def test_a_suspended_job_says_so(tmp_path, state, reason):
    assert _from_queue([Entry("7", state, "n1")], tmp_path) == Status(State.RUNNING, reason, ("n1",))


@pytest.mark.parametrize(
    ("states", "state", "words"),
    [
        ("FAILED TIMEOUT", State.FAILED, "TIMEOUT: the time limit came before"),
        ("CANCELLED OUT_OF_MEMORY FAILED", State.FAILED, "OUT_OF_MEMORY: out of memory"),
        ("COMPLETED CANCELLED FAILED", State.CANCELLED, "cancelled with scancel"),
        ("REVOKED", State.UNKNOWN, "set SLURM_CLUSTERS"),
    ],
)
def test_of_a_hetjobs_ends_the_cause_is_told(tmp_path, states, state, words):
    entries = [Entry(f"7+{i}", end, end="2026-01-01T00:00:00") for i, end in enumerate(states.split())]
    status = _from_queue(entries, tmp_path)
    assert status.state == state and words in status.reason


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        ("JobHeldUser", "'scontrol release 7'"),
        ("launch failed requeued held", "'scontrol release 7'"),
        ("JobHeldAdmin", "ask an administrator"),
        ("JobHoldMaxRequeue", "cancel the job and submit it again"),
        ("Priority", ""),
    ],
)
def test_a_held_job_names_a_cure_that_its_user_has(tmp_path, reason, cure):
    reasons = _from_queue([Entry("7", "PENDING", reason=reason)], tmp_path).reason.partition("; ")
    assert reasons[0] == reason and cure in reasons[2] and bool(cure) == bool(reasons[2])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (-35, "ended by signal 35"),  # a real-time signal without a name
        (128 + 9, "ended by SIGKILL (out of memory?)"),
        (255, "ended with exit status 255"),
    ],
)
def test_an_exit_code_names_its_signal(code, reason):
    assert status_at_end({"returncode": code}).reason == reason


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("task 3: Exited with exit code 5", 5),
        ("task 3: Killed", -9),
        ("task 3: Out Of Memory", -9),
        ("task 3: Real-time signal 11", -45),
        ("tasks 3-4: Segmentation fault (core dumped)", -11),
    ],
)
def test_the_first_failed_rank_is_the_one_that_slurm_did_not_end_itself(tmp_path, message, code):
    """The messages of srun 22.05, which ends the other tasks with SIGTERM."""
    lines = ["n1: tasks 0-2: Terminated", f"n2: {message}", "n1: task 1: Killed"]
    (tmp_path / "main.srun.log").write_text("".join(f"srun: error: {line}\n" for line in lines))
    assert first_failure(tmp_path, "main") == {"rank": 3, "returncode": code}
