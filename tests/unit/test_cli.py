"""The `aligner` command as a user meets it, mostly in this process; tests/unit/test_imports.py says what a start loads."""

import errno
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from forks import until

import cluster
from aligner_lib import __version__
from aligner_lib.cli import doctor
from aligner_lib.cli import main as cli
from aligner_lib.config.compose import compose
from aligner_lib.errors import UserError
from aligner_lib.jobs import local_ranks
from aligner_lib.rollouts.environments.pool import Environments
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.writer import RunWriter
from cluster import record
from cluster.logs import exception_line
from cluster.record import Record
from cluster.states import State, Status

ROOT = Path(__file__).parents[2]


@pytest.fixture
def inside(monkeypatch, tmp_path):
    """Run a command in this process, with tmp_path as the working directory; gives the exit code."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments) -> int:
        monkeypatch.setattr(sys, "argv", ["aligner", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code or 0

    return run


@pytest.fixture
def recorded_job(monkeypatch):
    """Put a recorder in the place of training; gives the calls."""
    calls = []
    for name, job in {"run": "run_job", "serve_critic": "serve_job"}.items():
        module = type(sys)(f"aligner_lib.jobs.{name}")
        setattr(module, job, lambda kind, config, profile: calls.append((kind, config, profile)))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delenv("RANK", raising=False)
    return calls


def test_help_and_version(inside, capsys):
    assert inside("--help") == 0
    shown = capsys.readouterr().out
    commands = "tutorial jupyter sft rm ppo serve-critic serve-rm runs show stop doctor test bench model data".split()
    assert all(f" {name} " in shown for name in commands)
    for name in ("tutorial", "serve-rm", "model fetch"):
        assert inside(*name.split(), "--help") == 0
        assert "Usage" in capsys.readouterr().out
    assert inside("--version") == 0
    assert capsys.readouterr().out == f"aligner {__version__}\n"


def test_a_job_gets_its_profile_run_folder_and_overrides(inside, recorded_job, capsys):
    overrides = "++model.ppo.ratio_eps=0.3", "+model.seed=7"
    assert inside("ppo", "--profile", "smoke", "--run", "some run", *overrides) == 0
    assert inside("rm") == 0
    [(kind, config, profile), (_, without_folder, _)] = recorded_job
    assert (kind, profile) == ("ppo", "smoke")
    assert config.exp_manager.explicit_log_dir == "some run"
    assert (config.model.ppo.ratio_eps, config.model.seed) == (0.3, 7)
    assert without_folder.exp_manager.explicit_log_dir.startswith("runs/rm-")
    names = ["it's run 3", "a\\b", "null", "a,b={c}", "…"]  # a run folder may have any name
    assert [inside("sft", "--run", name) for name in names] == [0] * 5
    assert [config.exp_manager.explicit_log_dir for _, config, _ in recorded_job[2:]] == names
    recorded_job.clear()
    assert inside("sft", "--print-config", "model.optim.lr=3e-4") == 0
    assert "lr: 0.0003" in capsys.readouterr().out and recorded_job == []


def test_several_processes_are_ranks_of_the_same_command(inside, recorded_job, monkeypatch):
    started = []

    class Ended(SimpleNamespace):
        def __init__(self, words, env, **_):
            started.append((words, env))
            super().__init__(returncode=0, poll=lambda: 0, wait=lambda *_: 0, send_signal=Mock(), kill=Mock())

    monkeypatch.setattr(subprocess, "Popen", Ended)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    overrides = ["trainer.devices=2", "+model.tensor_model_parallel_size=2"]
    assert inside("ppo", "--profile", "smoke", "--run", "r", *overrides) == 0
    (words, first), (others_words, second) = started
    assert words == others_words and words[1:3] == ["-m", "aligner_lib"]
    assert words[3:9] == ["ppo", "--profile", "smoke", "--run", "r", "--"] and {*overrides} <= {*words[9:]}
    assert [first["RANK"], second["RANK"], second["WORLD_SIZE"]] == ["0", "1", "2"]
    assert first["PYTHONUNBUFFERED"] == "1"
    assert recorded_job == []
    # a rank gets the very command again, and trains
    monkeypatch.setenv("RANK", "0")
    assert inside(*words[3:]) == 0
    [(_, config, profile)] = recorded_job
    assert (profile, config.trainer.devices, config.exp_manager.explicit_log_dir) == ("smoke", 2, "r")


RANK_ENDS = """
import os, pathlib, signal, sys
fails, ready, rank = sys.argv[1] == "fails", pathlib.Path(sys.argv[2]), os.environ["RANK"]
store = pathlib.Path(os.environ["ALIGNER_JOB_STORE"])
assert store.parent.stat().st_mode & 0o077 == 0 and not store.exists()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0 if fails else 7))
if fails and rank == "1":
    sys.exit(3)
try:
    (ready / rank).touch()
    signal.pause()
except KeyboardInterrupt:
    (ready / f"{rank} interrupted").touch()
"""


@pytest.mark.parametrize(("end", "code"), [("fails", 3), (signal.SIGTERM, 7), (signal.SIGINT, None)])
def test_a_failed_rank_ends_the_others_and_a_signal_reaches_all(monkeypatch, request, tmp_path, end, code):
    words = [sys.executable, "-c", RANK_ENDS, str(end), str(tmp_path)]
    monkeypatch.setattr(local_ranks, "command", lambda *_: words)
    # a shell starts programs in the background, as CI's lanes, with SIGINT ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def send() -> None:
        until(lambda: len([*tmp_path.iterdir()]) == 2, "the ranks' handlers")
        os.kill(os.getpid(), end)

    if end != "fails":
        Thread(target=send).start()
    config = compose("sft", ["trainer.devices=2"])
    with pytest.raises(KeyboardInterrupt) if end == signal.SIGINT else nullcontext():
        assert local_ranks.run_ranks("sft", config, None, []) == code
    assert len([*tmp_path.glob("* interrupted")]) == (2 if end == signal.SIGINT else 0)


def test_several_nodes_need_a_launcher_for_each(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    config = compose("sft", ["trainer.num_nodes=2", "trainer.devices=8"])
    with pytest.raises(UserError, match="every node"):
        local_ranks.needs_launcher(config)
    monkeypatch.setenv("RANK", "3")
    assert not local_ranks.needs_launcher(config)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ppo trainer.ppo.inital_policy_kl_penalty=0.1", "trainer.ppo.initial_policy_kl_penalty"),
        ("data dolly --raw nowhere.jsonl --out o", "nowhere.jsonl"),
        ("data dolly --raw raw.jsonl --out o --strict", "raw.jsonl:2"),
        ("model fetch gpt-5", "smollm2-135m"),
        ("model import nowhere --out o", "nowhere"),
        ("show ghost", "ghost"),
        ("cancel none", "no run 'none'"),
        ("runs", "no runs"),
        ("tutorial --only 77", "77"),
        ("tutorial -p steps", "name=value"),
        ("profile stf --out o/trace.json", "error: there is no kind of job 'stf'; did you mean sft?"),
        (
            "profile evaluate --out o/trace.json",
            "evaluate has no steps of training (`aligner profile` takes sft",
        ),
        ("model export nowhere --out o --shard-gb nan", "--shard-gb nan: give a number from 0.001"),
        ("model export nowhere --out o --shard-gb 0", "--shard-gb 0.0: give a number from 0.001"),
        # a file stands in the place of a folder
        ("data dolly --raw sample --out raw.jsonl/below", "raw.jsonl"),
        ("model fetch smoke", "raw.jsonl"),
    ],
)
def test_a_user_s_mistake_is_one_sentence_with_the_cure_and_writes_nothing(
    inside, capsys, tmp_path, monkeypatch, command, words
):
    record = '{"instruction": "a", "response": "b", "context": "", "category": "x"}\nnonsense\n'
    Path("raw.jsonl").write_text(record)
    monkeypatch.setenv("ALIGNER_CACHE", "raw.jsonl")
    assert inside(*command.split()) == 2
    error = capsys.readouterr().err
    assert words in error and error.startswith("error: ") and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "raw.jsonl"] and Path("raw.jsonl").read_text() == record


def test_an_import_shows_its_progress_before_the_folder(inside, monkeypatch, capsys):
    monkeypatch.setattr("aligner_lib.models.import_model", lambda source, out, progress: progress(1, 2))
    assert inside("model", "import", "a", "--out", "b") == 0
    shown = capsys.readouterr().out
    assert "import" in shown and "50%" in shown and shown.endswith("\nb\n")


def test_a_rank_s_mistake_has_the_form_that_a_failed_job_shows(inside, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "3")
    assert inside("show", "ghost") == 2
    error = capsys.readouterr().err
    assert error.startswith("error (rank 3): ") and exception_line(error) == error.strip()


def test_a_rank_that_loses_another_shows_no_traceback(inside, recorded_job, monkeypatch, capsys):
    def lose(*_) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer\nframe #0")

    importlib.import_module("aligner_lib.megatron.parallel")
    monkeypatch.setattr(sys.modules["aligner_lib.jobs.run"], "run_job", lose)
    monkeypatch.setenv("RANK", "1")
    assert inside("sft") == 1
    error = capsys.readouterr().err
    assert error.startswith("error (rank 1): lost another rank") and error.count("\n") == 1


def test_a_librarys_error_keeps_its_traceback(inside, monkeypatch):
    jobs = type(sys)("aligner_lib.jobs.run")
    jobs.run_job = lambda *_: json.loads("{")  # a ValueError, and not one of ours
    monkeypatch.setitem(sys.modules, "aligner_lib.jobs.run", jobs)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", ["aligner", "sft"])
    with pytest.raises(json.JSONDecodeError):
        cli.main()


def test_data_commands_write_the_trainers_files(inside, capsys):
    assert inside(*"data dolly --raw sample --out sft".split()) == 0
    assert inside(*"data hh --raw sample --split test --out hh --strict".split()) == 0
    first = json.loads(Path("sft/train.jsonl").read_text().splitlines()[0])
    assert first.keys() == {"input", "output", "category"}
    assert len(Path("hh/test_comparisons.jsonl").read_text().splitlines()) > 100
    assert "kept" in capsys.readouterr().out


@pytest.fixture
def two_runs(tmp_path):
    """A finished run and one that goes on (in this process), below runs/."""
    with ExitStack() as open_runs:
        for name in ("first", "second"):
            run = RunWriter(tmp_path / "runs" / name, kind="sft", config={}, seed=3, hashes={}, max_steps=2)
            open_runs.enter_context(run)
            run.start(0)
            run.log(1, {"train/loss": 1.25})
            if name == "first":
                run.finish("finished")
        yield


def test_runs_show_stop_and_log_by_a_run_s_name(inside, two_runs, capsys, tmp_path):
    assert inside("show", "second") == 0
    assert "1.25" in capsys.readouterr().out
    assert inside("stop", "second") == 0
    assert (tmp_path / "runs/second/control/stop").exists()
    assert inside("stop", "first") == 2
    assert "finished" in capsys.readouterr().err
    assert inside("logs", "first") == 2
    assert "a run started by hand has no job" in capsys.readouterr().err
    assert inside("log", "first", "--to", "tensorboard") == 0
    assert capsys.readouterr().out == "tensorboard has all of first, up to step 1\n"
    assert list((tmp_path / "runs" / "first" / "tensorboard").glob("events.out.tfevents.*"))


def test_a_message_with_brackets_is_shown_as_it_is(inside, two_runs, capsys, tmp_path):
    path = tmp_path / "runs" / "first[lr=1]"
    (tmp_path / "runs" / "first").rename(path)
    message = "a text has [/INST]; see '.[json]'"
    (path / "run.json").write_text(
        json.dumps(json.loads((path / "run.json").read_text()) | {"message": message})
    )
    assert inside("show", "first[lr=1]") == 0
    shown = capsys.readouterr().out
    assert "first[lr=1]" in shown and f"({message})" in shown
    assert inside("runs") == 0 and "first[lr=1]" in capsys.readouterr().out


def test_a_run_whose_next_attempt_waits_in_a_queue_can_be_stopped(inside, two_runs, monkeypatch, tmp_path):
    state = State.PENDING
    monkeypatch.setattr(RunFolder, "latest_job", lambda run: SimpleNamespace(state=state))
    assert inside("stop", "first") == 0
    assert (tmp_path / "runs/first/control/stop").exists()
    state = State.FINISHED
    assert inside("stop", "first") == 2


def test_runs_and_show_tell_that_a_stopped_run_s_next_attempt_waits(inside, tmp_path, monkeypatch, capsys):
    run = RunWriter(tmp_path / "runs" / "sft", kind="sft", config={}, seed=3, hashes={}, max_steps=9)
    with run:
        run.start(0)
        run.finish("stopped", "stopped as asked")
    (run.path / "checkpoints" / "step_000004").mkdir(parents=True)
    status, folder = Status(State.PENDING, "Resources"), run.path / "job" / "001"
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(RunFolder, "latest_job", lambda run: SimpleNamespace(status=status, folder=folder))
    for command in (["runs"], ["show", "sft"]):
        assert inside(*command) == 0
        shown = capsys.readouterr().out
        assert "pending (Resources), resumes from step 4" in shown and "as asked" not in shown
    status = Status(State.FINISHED)
    assert inside("show", "sft") == 0 and "stopped (stopped as asked)" in capsys.readouterr().out
    status = Status(State.RUNNING)  # first only of another component, then of an attempt that has just begun
    folder.mkdir(parents=True)
    for seconds, word in ((-60, "stopped (stopped as asked)"), (60, "status running step")):
        os.utime(folder, ((run.path / "run.json").stat().st_mtime + seconds,) * 2)
        assert inside("show", "sft") == 0
        assert word in " ".join(capsys.readouterr().out.split())


def test_show_says_that_a_recorded_run_does_not_contain_its_own_function(inside, tmp_path, capsys):
    config = {"functions": {"loss": None}}  # without_paths leaves out the file
    with RunWriter(tmp_path / "runs" / "rm", kind="rm", config=config, seed=3, hashes={}, max_steps=9) as run:
        run.start(0)
    assert inside("show", "rm") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "functions.loss a function that the recording does not contain, in place of aligner_lib.alg" in shown
    )


@pytest.mark.parametrize("kind", ["empty file", "pipe"])
def test_a_damaged_exit_record_hides_no_runs(inside, two_runs, tmp_path, capsys, monkeypatch, kind):
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("first", "lone"):
        folder = tmp_path / "runs" / name / "job" / "001"
        folder.mkdir(parents=True)
        record.write(folder.parents[1], Record("slurm", "7", name, "job/001", {"main": ["train"]}))
        os.mkfifo(folder / "exit.json") if kind == "pipe" else (folder / "exit.json").touch()
    info = json.loads((tmp_path / "runs/first/run.json").read_text())
    (tmp_path / "runs/first/run.json").write_text(json.dumps(info | {"status": "failed"}))
    assert inside("runs") == 0
    listed = capsys.readouterr().out
    assert "failed" in listed and "unknown (its job/001/exit.json is damaged)" in listed


def test_the_table_of_runs_has_their_states_and_the_age_of_each_heartbeat(inside, two_runs, capsys, tmp_path):
    lost, torn = tmp_path / "runs" / "lost", tmp_path / "runs" / "torn" / "job"
    lost.mkdir()
    info = json.loads((tmp_path / "runs/second/run.json").read_text())
    beat = {"time": time.time() - 7300, "step": 1}
    (lost / "run.json").write_text(json.dumps(info | {"identity": "gone", "heartbeat": beat}))
    torn.mkdir(parents=True)
    (torn / "job.json").write_text('{"id": "7", "where"')
    (tmp_path / "runs/first/job").mkdir()
    os.mkfifo(tmp_path / "runs/first/job/job.json")
    info |= {
        "kind": "[/]",
        "status": "[/]",
        "heartbeat": beat | {"step": "[/]"},
    }  # as a participant may write
    (tmp_path / "runs/odd").mkdir()
    (tmp_path / "runs/odd/run.json").write_text(json.dumps(info))
    assert inside("runs") == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert "heartbeat" in head
    listed = {line.split()[0]: line for line in lines if line.startswith("runs/")}
    assert re.search(r" 1/2 +2 h ", listed["runs/lost"]) and "lost " in listed["runs/lost"]
    assert re.search(r" 1/2 +\d+ s ", listed["runs/second"]) and "running" in listed["runs/second"]
    assert listed["runs/odd"].split()[1:4] == ["[/]", "[/]", "[/]/2"]
    assert re.search(r" 1/2 +– ", listed["runs/first"]) and "finished" in listed["runs/first"]
    assert "unknown (its" in listed["runs/torn"]


@pytest.fixture
def submitted(tmp_path):
    """A local job that has not written run.json, below runs/deep/er."""
    run = tmp_path / "runs" / "deep" / "er"
    code = "import time; print('loading the model', flush=True); time.sleep(600)"
    job = cluster.submit([sys.executable, "-c", code], run)
    yield job
    if not job.state.final:
        job.cancel()


def test_a_job_that_has_only_been_submitted_is_shown_and_cancelled(inside, submitted, capsys):
    until(lambda: "loading" in submitted.tail(), "the job's first line")
    assert not (submitted.run / "run.json").exists()
    for name in ("runs/deep/er", "deep/er", "er"):
        assert inside("logs", name) == 0
        assert capsys.readouterr().out == "loading the model\n"
        assert inside("show", name) == 0
        assert "running" in capsys.readouterr().out
    assert inside("runs") == 0
    assert re.search(r"^runs/deep/er +– +running ", capsys.readouterr().out, re.MULTILINE)
    assert inside("cancel", "er") == 0
    assert capsys.readouterr().out == f"{submitted.run}: CANCELLED\n"
    assert submitted.state == "CANCELLED"


def test_a_log_is_followed_to_the_job_s_end(inside, tmp_path, capsys):
    code = "import time; print('one', flush=True); time.sleep(0.1); print('two')"
    cluster.submit([sys.executable, "-c", code], tmp_path / "runs" / "short")
    assert inside("logs", "short", "-f") == 0
    assert capsys.readouterr().out == "one\ntwo\n"


def test_the_log_of_a_component_and_of_a_job_that_failed_before_its_first_line(
    inside, tmp_path, capsys, monkeypatch
):
    run = tmp_path / "runs" / "ppo"
    (run / "job" / "001").mkdir(parents=True)
    record.write(run, Record("slurm", "7", "ppo", "job/001", {"critic": ["serve"], "actor": ["train"]}))
    (run / "job" / "001" / "critic_0.log").write_text("serving\n")
    (run / "job" / "001" / "actor.srun.log").write_text("srun: error: Unable to create step\n")
    (run / "job" / "001" / "exit.json").write_text('{"returncode": 1, "component": "actor", "rank": 0}')
    for name, text in {"runs/ppo/critic": "serving\n", "ppo": "srun: error: Unable to create step\n"}.items():
        assert inside("logs", name) == 0
        assert capsys.readouterr().out == text
    (run / "critic").mkdir()
    (run / "critic" / "run.json").write_text('{"kind": "critic"}')
    assert inside("logs", "critic") == 0
    monkeypatch.chdir(run / "critic")
    assert inside("logs", ".") == 0 and capsys.readouterr().out == "serving\n" * 2
    monkeypatch.chdir(tmp_path)
    assert inside("logs", "ppo/other") == 2 and "there is no run 'ppo/other'" in capsys.readouterr().err


def test_doctor_lists_what_is_there_and_what_is_not(tmp_path):
    """In a process of its own: tests may have put other versions of packages on this one's path."""
    variables = {"HF_ENDPOINT": "http://127.0.0.1:9", "ALIGNER_CACHE": str(tmp_path / "c"), "COLUMNS": "200"}
    command = [sys.executable, "-m", "aligner_lib", "doctor"]
    shown = subprocess.check_output(command, cwd=tmp_path, env=os.environ | variables, text=True)
    words = "megatron-core|units for bf16|CUDA|Slurm|GiB free|hub can't be reached|fetched when needed"
    assert [word for word in words.split("|") if word not in shown] == []


def test_doctor_names_what_a_container_does_not_allow(tmp_path, monkeypatch):
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.access", lambda place, mode: place != tmp_path)
    assert f"{tmp_path} can't be written: set ALIGNER_CACHE" in doctor._models().detail
    read_only = Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))
    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", read_only)
    with pytest.raises(UserError, match=r"can't share locks \(Read-only file system\), so PPO"):
        Environments({}, "train")
    monkeypatch.setattr(doctor, "memory_limits", lambda: [(1 << 30, 2 << 30)])
    findings = {finding.what: finding.detail for finding in doctor._machine()}
    assert findings["memory"].startswith("1.0 of 2.0 GiB free; the laptop profile needs 8")
    assert "make /dev/shm writable" in findings["shared memory"]


def test_doctor_names_a_package_that_it_needs_itself(inside, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setattr(doctor, "report", Mock(side_effect=ModuleNotFoundError(name="rich.table")))
    words = "rich is not installed, so doctor can't look further: run `python -m pip install rich==1"
    assert inside("doctor") == 2 and words in capsys.readouterr().err


def test_doctor_tells_the_precision_of_the_laptop_profile(tmp_path):
    processor = tmp_path / "cpuinfo"  # a Mac has none
    assert "the laptop profile computes in float32" in doctor.bf16_units(processor)
    for features, precision in (("fma avx2", "float32"), ("avx2 avx512_bf16", "bf16"), ("amx_bf16", "bf16")):
        processor.write_text(f"processor : 0\nflags : {features}\n")
        assert f"the laptop profile computes in {precision}" in doctor.bf16_units(processor)


ENDING = """
import atexit, sys, tempfile, threading, time
from concurrent.futures import ThreadPoolExecutor
from aligner_lib import __main__ as process
from aligner_lib.cli import main

sys.modules["torch"] = sys
pool, folder = ThreadPoolExecutor(), tempfile.TemporaryDirectory()

def app():
    atexit.register(lambda: print("exit function", end=";"))
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread", end=";"))).start()
    pool.submit(print, folder.name, end=";")
    sys.exit(3)

main.app = app
process.run()
"""


def test_a_process_with_torch_ends_after_its_threads_exit_functions_and_output():
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60)
    folder, *ends = done.stdout.split(";")
    assert (ends, done.stderr, done.returncode) == (["thread", "exit function", ""], "", 3)
    assert not Path(folder).exists()


@pytest.mark.parametrize("name", ["sft-1", "sft-1@best"])
def test_graduate_finds_a_run_by_its_name(name, inside, tmp_path, monkeypatch):
    import aligner_lib.jobs.graduate as module

    (tmp_path / "runs" / "sft-1").mkdir(parents=True)
    calls = []
    monkeypatch.setattr(module, "graduate", lambda source, *_: calls.append(source) or [])
    assert inside("graduate", name, "--to", "trl", "--out", "out") == 0
    assert calls == [Path("runs", name)]
