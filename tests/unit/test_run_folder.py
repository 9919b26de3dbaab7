"""Run folders: what a run records about itself, also when the run is killed."""

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from aligner_lib.config.compose import compose
from aligner_lib.config.kinds import alarms_of
from aligner_lib.datasets.indexed_dataset import INT32
from aligner_lib.datasets.token_files import Unfinished
from aligner_lib.errors import UserError
from aligner_lib.models.fetch import locked
from aligner_lib.run_folder.alarms import Thresholds
from aligner_lib.run_folder.exporters import tail
from aligner_lib.run_folder.reader import RunFolder, find_runs, without_paths
from aligner_lib.run_folder.writer import RunWriter
from cluster import processes

HERE = os.uname().nodename


def writer(path, **changes) -> RunWriter:
    settings = {"kind": "ppo", "config": {"a": 1}, "seed": 7, "hashes": {"model": "abc"}, "max_steps": 9}
    return RunWriter(path, **(settings | {"alarms": alarms_of("ppo")} | changes))


def begin(path, steps=(), end: str = "", **changes) -> RunFolder:
    """A run that logs a loss of 1 at each step; without an end its status stays `running`."""
    with writer(path, **changes) as run:
        run.start(0)
        for step in steps:
            run.log(step, {"train/loss": 1.0})
        if end:
            run.finish(end)
    return RunFolder(path)


def another_process() -> dict:
    """A living process that is not this one, as run.json names it."""
    return {"pid": os.getppid(), "identity": processes.identity(os.getppid())}


def change_info(path, **changes) -> None:
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | changes))


def files_of(path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.glob("*.json*")}


def steps_of(records: list[dict]) -> list[int]:
    return [record["step"] for record in records]


def test_an_absent_run_is_read_as_empty_and_not_created(tmp_path):
    run = RunFolder(tmp_path / "none")
    assert (run.status, run.kind, run.info, run.metrics(), run.is_over) == ("waiting", "", {}, [], False)
    assert run.latest_checkpoint() is None and run.heartbeat_age == float("inf")
    assert not run.path.exists()


def test_a_run_records_its_settings_metrics_and_status(tmp_path):
    with writer(tmp_path / "run") as run:
        run.start(0)
        run.log(1, {"train/loss": 2.5})
        run.log(2, {"train/loss": 1.5, "validation/loss": 2.0})
        reader = RunFolder(tmp_path / "run")
        assert (reader.status, reader.kind, reader.name) == ("running", "ppo", "run")
        assert reader.info["heartbeat"]["step"] == 2 and 0 <= reader.heartbeat_age < 60
        run.finish("finished", "2 steps")
    assert reader.status == "finished" and reader.is_over
    assert steps_of(reader.follow()) == [1, 2]
    assert reader.series("train/loss") == ([1, 2], [2.5, 1.5])
    assert reader.series("validation/loss") == ([2], [2.0])
    expected = {"message": "2 steps", "config": {"a": 1}, "seed": 7, "max_steps": 9, "host": HERE}
    assert expected.items() <= reader.info.items() and {"git_commit", "created"} <= reader.info.keys()
    assert {"python", "torch", "megatron-core"} <= reader.info["versions"].keys()


@pytest.mark.parametrize(
    "error, status", [(RuntimeError("the loss is nan"), "failed"), (KeyboardInterrupt(), "stopped")]
)
def test_an_exception_or_an_interrupt_ends_the_run_with_its_message(tmp_path, error, status):
    with pytest.raises(type(error)), writer(tmp_path) as run:
        run.start(0)
        raise error
    info = RunFolder(tmp_path).info
    assert (info["status"], info["message"]) == (status, str(error) or "interrupted by Ctrl-C or SIGINT")


@pytest.mark.parametrize(
    "changes, lives, status",
    [
        ({}, True, "running"),
        ({"identity": "an earlier process's"}, True, "lost"),  # in a container every run may be pid 1
        ({"identity": None}, True, "running"),  # run.json of an earlier release has no identity
        ({"identity": None}, False, "lost"),
        ({"host": "some-other-node"}, False, "running"),  # its process can't be asked
        ({"host": "some-other-node", "heartbeat": {"time": 0, "step": 0}}, False, "lost"),
    ],
)
def test_a_run_is_lost_when_its_process_is_gone(tmp_path, changes, lives, status):
    begin(tmp_path)
    process = another_process()
    if not lives:
        ended = subprocess.Popen(["true"])
        ended.wait()
        process = {"pid": ended.pid}
    change_info(tmp_path, **process | changes)
    assert (RunFolder(tmp_path).status, RunFolder(tmp_path).is_over) == (status, status == "lost")


def set_slurm(monkeypatch, job: str | None, attempt: int, host: str) -> None:
    for name, value in {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": str(attempt)}.items():
        monkeypatch.setenv(name, value) if job else monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("platform.node", lambda: host)


@pytest.mark.parametrize(
    "before, job, attempt, host, is_taken_over",
    [
        ("7", "7", 2, "node-b", True),
        ("7", "7", 1, "node-b", False),  # two tasks of one attempt
        ("7", "8", 2, "node-b", False),
        ("7", "7", 2, HERE, False),  # its process lives: ask it
        (None, None, 0, "node-b", False),  # outside of Slurm
    ],
)
def test_only_a_requeued_job_takes_over_a_folder_that_is_in_use(
    tmp_path, monkeypatch, before, job, attempt, host, is_taken_over
):
    """The node of the previous attempt was lost seconds after its last heartbeat."""
    set_slurm(monkeypatch, before, 1, HERE if host == HERE else "node-a")
    begin(tmp_path)
    change_info(tmp_path, **another_process())
    set_slurm(monkeypatch, job, attempt, host)
    words = rf"in progress \(.*pid {os.getppid()}.*choose another folder"
    with nullcontext() if is_taken_over else pytest.raises(FileExistsError, match=words):
        begin(tmp_path)
        assert RunFolder(tmp_path).info["slurm"] == {"job": job, "attempt": attempt}


def is_refused(path, words: str) -> None:
    with pytest.raises(FileExistsError, match=words):
        writer(path)


def test_of_two_jobs_that_start_together_one_gets_the_folder(tmp_path):
    """The other job is a fork of this process, and must not get this process's lock."""
    states = "is taken by another job, which is starting", rf"in progress \(pid {os.getpid()}\)"
    with writer(tmp_path) as run:
        for state in states:
            other = multiprocessing.get_context("fork").Process(target=is_refused, args=(tmp_path, state))
            other.start()
            other.join()
            assert other.exitcode == 0, state
            run.start(0)


def test_a_file_system_without_locks_has_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.lockf", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    assert begin(tmp_path, end="finished").status == "finished"


@pytest.mark.parametrize(
    "lock",
    [
        lambda path: locked(path, pytest.fail, "fetches the same model"),
        lambda path: tail._alone(path, "Memory", wait=False),
        lambda path: Unfinished(path, {}, INT32).locked(),
    ],
)
def test_a_file_system_without_locks_has_models_exporters_and_token_files(tmp_path, monkeypatch, lock):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOSYS, "Function not implemented")))
    with lock(tmp_path / "lock"):
        pass


def test_the_heartbeat_survives_a_file_system_that_is_briefly_away(tmp_path, monkeypatch):
    write, refused, pause = Path.write_text, [], threading.Event()

    def sometimes(path, text):
        if threading.current_thread() is not threading.main_thread() and len(refused) < 3:
            refused.append(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return write(path, text)

    monkeypatch.setattr("aligner_lib.run_folder.writer.HEARTBEAT_SECONDS", 0.01)
    with writer(tmp_path) as run:
        run.start(0)
        monkeypatch.setattr(Path, "write_text", sometimes)
        before = RunFolder(tmp_path).info["heartbeat"]["time"]
        assert any(
            (RunFolder(tmp_path).info["heartbeat"]["time"] > before and len(refused) == 3) or pause.wait(0.01)
            for _ in range(1000)
        )


# ---- resuming -------------------------------------------------------------------------------------------------------


def test_a_resumed_run_removes_the_steps_it_repeats_and_an_old_stop_request(tmp_path, caplog):
    caplog.set_level("INFO")
    with writer(tmp_path) as run:
        run.start(0)
        for step in range(1, 6):
            run.log(step, {"train/loss": 1.0})
            run.log_rollouts([{"step": step, "prompt": "p"}] * 2)
        run.folder.request_stop()
        assert run.requests(()).stop
    created = RunFolder(tmp_path).info["created"]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("\n", "\na damaged line\n", 1))
    with writer(tmp_path) as run:
        run.start(3)
        assert not run.requests(()).stop
        run.log(4, {"train/loss": 2.0})
    again = RunFolder(tmp_path)
    assert again.series("train/loss") == ([1, 2, 3, 4], [1.0, 1.0, 1.0, 2.0])
    assert steps_of(again.rollouts()) == [1, 1, 2, 2, 3, 3]
    assert (again.info["created"], again.info["resumed"]) == (created, 1)
    assert "metrics.jsonl: 1 lines that are not records are ignored" in caplog.text


def test_run_json_names_the_steps_that_the_run_was_resumed_at(tmp_path):
    info = begin(tmp_path, (1, 2, 3), "stopped").info
    del info["resumed_at"]  # an earlier release did not record it
    (tmp_path / "run.json").write_text(json.dumps(info))
    resumed_at = []
    for start, end in ((3, 4), (4, 5), (5, 6), (4, 5)):  # the last attempt takes step 5 again
        with writer(tmp_path) as run:
            run.start_loading(start)
            assert RunFolder(tmp_path).info.get("resumed_at", []) == resumed_at  # nothing is loaded yet
            run.rewind(start)
            run.log(end, {"train/loss": 1.0})
        resumed_at = RunFolder(tmp_path).info["resumed_at"]
    assert resumed_at == [3, 4]
    change_info(tmp_path, created=5.0)
    anew, before = begin(tmp_path).info, RunFolder(tmp_path / "old-1").info
    assert (anew["resumed_at"], before["resumed_at"], before["created"]) == ([], [3, 4], 5.0)
    assert anew["created"] > 5.0


def test_another_precision_of_the_computation_counts_as_another_setting(tmp_path):
    # an earlier release recorded no precision
    for step, precision in ((0, None), (2, "bf16"), (3, "bf16"), (4, "32")):
        with writer(tmp_path, precision=precision) as run:
            run.start(step)
            run.log(step + 1, {"train/loss": 1.0})
    assert RunFolder(tmp_path).info["other_settings_at"] == [4]


def test_a_stop_request_that_came_while_a_dispatched_run_was_loading_counts(tmp_path, monkeypatch):
    """The scheduler's notice may come before the model is in memory; a job's own dispatch removes old requests."""
    for folder, heard in ((tmp_path / "job" / "001", True), (tmp_path.parent / "other" / "job", False)):
        monkeypatch.setenv("ALIGNER_JOB_FOLDER", str(folder))
        RunFolder(tmp_path).request_stop()
        with writer(tmp_path) as run:
            run.start(0)
            assert run.requests(()).stop == heard


@pytest.mark.parametrize(
    "hashes, named",
    [
        ({"model": "m2", "train.jsonl": "t"}, "(model)"),
        ({"model": "m", "more.jsonl": "t"}, "(train.jsonl, more.jsonl)"),
    ],
)
def test_a_run_is_not_resumed_with_other_inputs(tmp_path, hashes, named):
    def resume() -> None:
        with writer(tmp_path, hashes=hashes) as run:
            run.start(2)

    begin(tmp_path, (1, 2, 3), "stopped", hashes={"model": "m", "train.jsonl": "t"})
    files = files_of(tmp_path)
    for _ in range(2):  # a refusal must not make the next attempt pass
        with pytest.raises(UserError) as error:
            resume()
        for words in (str(tmp_path), named, "another run folder", "exp_manager.resume_if_exists=False"):
            assert words in str(error.value)
    assert files == files_of(tmp_path)
    assert begin(tmp_path, hashes=hashes).info["hashes"] == hashes  # a run from step 0 may have them
    change_info(tmp_path, hashes={})  # an early release recorded none
    resume()


@pytest.mark.parametrize(
    ("unread", "recorded"),
    [
        ({"test": "data/t.jsonl"}, ["t.jsonl"]),
        ({"test": ["data/t.jsonl", "more/t.jsonl"]}, ["data/t.jsonl", "more/t.jsonl"]),
        ({"test": ["data/t_text"]}, ["t_text.bin", "t_text.idx"]),
    ],
)
def test_a_run_that_was_begun_with_unread_files_is_resumed_without_them(tmp_path, unread, recorded):
    hashes = {"model": "m"} | dict.fromkeys(recorded, "t")
    config = {"model": {"data": {"data_prefix": {"train": ["v.jsonl"]} | unread}}}
    begin(tmp_path, (1, 2, 3), "stopped", hashes=hashes | {"v.jsonl": "v"}, config=config)
    with (
        pytest.raises(UserError, match=r"other inputs \(v.jsonl\)"),
        writer(tmp_path, hashes={"model": "m"}) as run,
    ):
        run.start(2)
    with writer(tmp_path, hashes={"model": "m", "v.jsonl": "v"}) as run:
        run.start(2)
    config["model"]["environments"] = {"sums": {"use": "sums"}}  # which provide the prompts
    change_info(tmp_path, hashes=hashes | {"v.jsonl": "v"}, config=config)
    with writer(tmp_path, hashes={"model": "m"}) as run:
        run.start(2)


def test_a_job_of_another_kind_leaves_the_folder_of_a_run_unchanged(tmp_path):
    begin(tmp_path, (1, 2), "finished")
    files = files_of(tmp_path)
    words = rf"{tmp_path} is the run folder of a job of another kind \(ppo\).*\(evaluate\).*choose another"
    with pytest.raises(UserError, match=words):
        begin(tmp_path, kind="evaluate")
    assert files == files_of(tmp_path)


def test_a_critic_with_another_model_begins_anew_with_its_actor(tmp_path):
    """The critic's job reads no exp_manager.resume_if_exists."""
    begin(tmp_path, (1, 2), "stopped", kind="critic", hashes={"model": "m"})
    words = f"give the original inputs, or move {tmp_path} away and begin the actor anew"
    with (
        pytest.raises(UserError, match=words),
        writer(tmp_path, kind="critic", hashes={"model": "n"}, max_steps=0) as run,
    ):
        run.start(2)


def test_a_branch_has_other_functions_from_its_fork_on_and_no_other_model(tmp_path):
    begin(tmp_path, (1, 2, 3), "stopped", hashes={"model": "m"})
    change_info(tmp_path, parent={"run": "p", "name": "p", "step": 2})
    own = {"model": "m", "functions.loss": "f"}
    for step, hashes in ((3, own), (2, own | {"model": "n"})):
        words = "or train its parent anew and branch again"
        with pytest.raises(UserError, match=words), writer(tmp_path, hashes=hashes) as run:
            run.start(step)
    with writer(tmp_path, hashes=own) as run:
        run.start(2)
    assert RunFolder(tmp_path).info["hashes"] == own


def test_a_branch_tells_of_a_function_whose_file_was_edited_since_the_parent_read_it(tmp_path):
    config = {"functions": {"reward": "mine.py:reward"}}
    begin(tmp_path, (1, 2, 3), "stopped", hashes={"functions.reward": "f"}, config=config)
    change_info(tmp_path, parent={"run": "p", "name": "p", "step": 2})
    with writer(tmp_path, hashes={"functions.reward": "g"}, config=config) as run:
        run.start(2)
    info = RunFolder(tmp_path).info
    assert "functions.reward mine.py:reward, edited since then" in info["message"]
    assert info["other_settings_at"] == [2]


def test_a_branch_that_begins_anew_may_have_another_model_unless_it_was_never_started(tmp_path):
    begin(tmp_path, (1, 2, 3), "stopped", hashes={"model": "m"})
    change_info(tmp_path, parent={"run": "p", "name": "p", "step": 2})
    info, anew = RunFolder(tmp_path).info, {"exp_manager": {"resume_if_exists": False}}
    unstarted = {name: value for name, value in info.items() if name != "heartbeat"}
    for before, config in ((info, {}), (unstarted, anew)):
        (tmp_path / "run.json").write_text(json.dumps(before))
        with (
            pytest.raises(UserError, match="other inputs"),
            writer(tmp_path, hashes={"model": "n"}, config=config) as run,
        ):
            run.start(0)
    (tmp_path / "run.json").write_text(json.dumps(info))
    with writer(tmp_path, hashes={"model": "n"}, config=anew) as run:
        run.start(0)
    assert RunFolder(tmp_path / "old-1").info["hashes"] == {"model": "m"}


def test_new_settings_are_recorded_when_their_checkpoint_is_loaded_and_announced_once(tmp_path):
    before, changed = ({"peft": {"rank": rank}, "seed": 1} for rank in (4, 8))
    begin(tmp_path, (1, 2, 3), "stopped", config=before)
    files = files_of(tmp_path)

    def attempt(step: int, error: Exception):
        with pytest.raises(type(error)), writer(tmp_path, config=changed) as run:
            run.start_loading(step)
            info = RunFolder(tmp_path).info
            assert (info["status"], info["config"], info["pid"]) == ("running", before, os.getpid())
            raise error

    attempt(2, UserError("the checkpoint holds adapters of rank 4, but the settings say rank 8"))
    assert files == files_of(tmp_path)  # a refused checkpoint leaves the stopped run as it was
    attempt(3, RuntimeError("out of memory"))
    info = RunFolder(tmp_path).info
    assert (info["status"], info["message"], info["config"]) == ("failed", "out of memory", before)
    for start, message in ((2, "continues with other settings than before: peft.rank 4 → 8"), (3, "")):
        with writer(tmp_path, config=changed) as run:
            run.start_loading(start)
            run.rewind(start)
            info = RunFolder(tmp_path).info
            assert (info["status"], info["config"], info["message"]) == ("running", changed, message)
            assert steps_of(RunFolder(tmp_path).metrics())[-1] == start
            run.log(start + 1, {"train/loss": 0.5})
            run.finish("finished")
    assert (RunFolder(tmp_path).status, info["resumed"]) == ("finished", 2)


def test_half_of_a_surrogate_pair_in_a_failure_s_text_does_not_end_the_run(tmp_path):
    with writer(tmp_path) as run:
        run.start(0)
        run.note_failure("judge", "raised", "no points in 'Great \ud83d'")
    assert (tmp_path / "environment_failures.txt").read_text() == "judge: no points in 'Great \\ud83d'\n\n"


def test_the_first_failure_of_each_reason_is_written_down(tmp_path):
    with writer(tmp_path) as run:
        run.start(0)
        for reason, text in [("no_reward", "None"), ("raised", "KeyError"), ("raised", "TypeError")]:
            run.note_failure("sums", reason, text)
    assert (tmp_path / "environment_failures.txt").read_text() == "sums: None\n\nsums: KeyError\n\n"


# ---- alarms ---------------------------------------------------------------------------------------------------------


def entropy_alarms(path, *attempts: tuple[int, dict[int, float]], **changes) -> list[tuple[str, int]]:
    """The alarms of a run that logs these entropies: (last step before the attempt, entropy by step)."""
    for start, values in attempts:
        with writer(path, **changes) as run:
            run.start(start)
            for step, value in values.items():
                run.log(step, {"train_rollouts/entropy": value})
    return [(alarm["name"], alarm["step"]) for alarm in RunFolder(path).alarms()]


HIGH = dict.fromkeys(range(1, 7), 2.0)


def low(first: int, last: int) -> dict[int, float]:
    return dict.fromkeys(range(first, last + 1), 0.1)


@pytest.mark.parametrize(
    "attempts, expected",
    [
        ([(0, HIGH | low(7, 7)), (6, low(7, 10))], [("entropy", 9)]),  # against the start before a resume
        ([(0, HIGH | low(7, 11)), (10, low(11, 13))], [("entropy", 9)]),  # it was raised before the resume
        ([(0, HIGH | low(7, 11)), (8, low(9, 11))], [("entropy", 9)]),  # the run goes back to before it
        ([(0, HIGH), (0, low(1, 6))], []),  # a run begun anew has a start of its own
    ],
)
def test_a_collapse_is_one_alarm_however_often_the_run_is_resumed(tmp_path, attempts, expected):
    assert entropy_alarms(tmp_path, *attempts) == expected


def test_a_run_has_its_own_thresholds(tmp_path):
    values = HIGH | dict.fromkeys(range(7, 12), 1.5)
    assert entropy_alarms(tmp_path / "usual", (0, values)) == []
    strict = entropy_alarms(tmp_path / "strict", (0, values), limits=Thresholds(entropy=0.8))
    assert strict == [("entropy", 9)]


# ---- the end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [None, RuntimeError("no")])
def test_the_last_records_are_on_the_disk_when_the_run_has_ended(tmp_path, monkeypatch, end):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    with suppress(RuntimeError), writer(tmp_path) as run:
        run.start(0)
        run.log(1, {"train/loss": 1.0})
        if end:
            raise end
    assert {os.path.basename(path) for path in synced} >= {"metrics.jsonl", "rollouts.jsonl", "alarms.jsonl"}


@pytest.mark.parametrize("call", ["pathlib.Path.write_text", "os.fsync"])
def test_a_full_disk_at_the_end_still_lets_the_first_error_through(tmp_path, monkeypatch, call):
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RuntimeError, match="the first error"), writer(tmp_path) as run:
        run.start(0)
        monkeypatch.setattr(call, Mock(side_effect=full))
        raise RuntimeError("the first error")


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def checkpoint(run: RunWriter, step: int, keep: int = 1, check=lambda _: None, content="whole") -> None:
    tmp_dir = run.checkpoint_tmp_dir(step)
    (tmp_dir / "weights").write_text(content)
    run.accept_checkpoint(tmp_dir, step, keep, check)


def names(run: RunFolder) -> list[str]:
    return [path.name for path in run.checkpoints()]


def weights(checkpoint: Path) -> str:
    return (checkpoint / "weights").read_text()


def test_old_checkpoints_are_removed_but_never_the_new_one(tmp_path):
    run = writer(tmp_path)
    for step in (2, 999_999, 1_000_002):
        checkpoint(run, step, keep=2)
    assert names(run.folder) == ["step_999999", "step_1000002"]
    assert run.folder.latest_checkpoint().name == "step_1000002"
    checkpoint(run, 6)
    assert "step_000006" in names(run.folder)


def test_a_killed_or_damaged_write_leaves_the_previous_checkpoint(tmp_path):
    def check(folder):
        if weights(folder) != "whole":
            raise ValueError("damaged")

    run = writer(tmp_path)
    checkpoint(run, 2, check=check)
    with pytest.raises(ValueError, match="damaged"):
        checkpoint(run, 4, check=check, content="half")
    (run.checkpoint_tmp_dir(4) / "weights").write_text("ha")  # and here the process is killed
    again = writer(tmp_path)
    assert names(again.folder) == ["step_000002"]
    assert list(again.checkpoint_tmp_dir(4).iterdir()) == []
    (tmp_path / "checkpoints" / ".replaced_step_000002").mkdir()
    with writer(tmp_path) as run:
        run.start(2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_000002"]


def test_a_checkpoint_is_on_the_disk_with_its_name_before_another_is_removed(tmp_path, monkeypatch):
    """The order of system calls: at every moment a loss of power leaves a whole checkpoint."""
    calls = []

    def recorded(name, call, place):
        def record(first, *rest, **options):
            calls.append((name, os.path.relpath(place(first), tmp_path / "checkpoints")))
            return call(first, *rest, **options)

        return record

    run = writer(tmp_path)
    checkpoint(run, 2)
    tmp_dir = run.checkpoint_tmp_dir(4)
    (tmp_dir / "critic").mkdir()
    for file in (tmp_dir / "weights", tmp_dir / "critic" / "weights"):
        file.write_text("whole")
    opened = lambda number: os.readlink(f"/proc/self/fd/{number}")  # noqa: E731
    monkeypatch.setattr(os, "fsync", recorded("fsync", os.fsync, opened))
    monkeypatch.setattr(os, "rename", recorded("rename", os.rename, str))
    monkeypatch.setattr("shutil.rmtree", recorded("remove", shutil.rmtree, str))
    run.accept_checkpoint(tmp_dir, 4, keep=1, check=lambda _: None)
    renamed = calls.index(("rename", ".writing_step_000004"))
    contents = {"", "/weights", "/critic", "/critic/weights"}
    assert set(calls[:renamed]) == {("fsync", f".writing_step_000004{name}") for name in contents}
    assert calls[renamed + 1 :] == [("fsync", "."), ("fsync", ".."), ("remove", "step_000002")]


def test_a_checkpoint_written_again_is_there_before_the_old_one_goes(tmp_path, monkeypatch):
    run, rmtree = writer(tmp_path), shutil.rmtree
    checkpoint(run, 2, content="old")

    def killed(path, **options):
        if not options:
            raise KeyboardInterrupt
        rmtree(path, **options)

    monkeypatch.setattr("shutil.rmtree", killed)
    with suppress(KeyboardInterrupt):
        checkpoint(run, 2, content="new")
    assert weights(run.folder.latest_checkpoint()) == "new"
    monkeypatch.setattr("shutil.rmtree", rmtree)
    checkpoint(run, 2, content="newest")
    assert [weights(path) for path in (tmp_path / "checkpoints").iterdir()] == ["newest"]


# ---- setting aside --------------------------------------------------------------------------------------------------


def test_a_run_begun_anew_sets_the_earlier_one_aside(tmp_path, caplog):
    """With the old checkpoints left in place, the new ones were removed at once, and the next stage got the old weights."""
    caplog.set_level("INFO")
    tmp_path = tmp_path / "run"
    begin(tmp_path)  # a run without a record leaves nothing to set aside
    for attempt in (1, 2, 3):
        with writer(tmp_path, config={"attempt": attempt}) as run:
            run.start(0)
            for step in (6, 12):
                run.log(step, {"train/loss": float(attempt)})
                run.log_rollouts([{"step": step, "response": f"{attempt}"}])
                checkpoint(run, step, content=f"{attempt}")
            run.log(13, {"train/loss": float("nan")})  # an alarm
            run.finish("stopped", f"attempt {attempt}")
    for attempt, path in ((1, tmp_path / "old-1"), (2, tmp_path / "old-2"), (3, tmp_path)):
        run = RunFolder(path)
        assert (run.info["message"], run.info["config"]) == (f"attempt {attempt}", {"attempt": attempt})
        steps, losses = run.series("train/loss")
        assert (run.status, steps, losses[:2]) == ("stopped", [6, 12, 13], [attempt, attempt])
        assert [record["response"] for record in run.rollouts()] == [f"{attempt}"] * 2
        assert steps_of(run.alarms()) == [13]
        assert [(path.name, weights(path)) for path in run.checkpoints()] == [("step_000012", f"{attempt}")]
    files = "metrics.jsonl, rollouts.jsonl, alarms.jsonl, step_000012"
    assert f"set aside in {tmp_path / 'old-2'}: {files}" in caplog.text
    assert [run.path for run in find_runs(tmp_path.parent)] == [tmp_path]


def test_a_run_that_goes_back_to_its_start_continues_to_write(tmp_path):
    """A critic does so when its actor begins anew."""
    with writer(tmp_path) as run:
        run.start(0)
        run.log(1, {"train/loss": 1.0})
        run.rewind(0)
        assert (RunFolder(tmp_path / "old-1").status, RunFolder(tmp_path).status) == ("stopped", "running")
        run.log(1, {"train/loss": 2.0})
    assert RunFolder(tmp_path).series("train/loss") == ([1], [2.0])
    assert RunFolder(tmp_path / "old-1").series("train/loss") == ([1], [1.0])


def test_a_resumed_run_keeps_its_checkpoints_and_sets_aside_later_ones(tmp_path):
    for step in (12, 24):
        checkpoint(writer(tmp_path), step, keep=2)
    for start, kept in ((24, ["step_000012", "step_000024"]), (12, ["step_000012"])):
        with writer(tmp_path) as run:
            run.start(start)
        assert names(run.folder) == kept
    assert weights(tmp_path / "old-1" / "checkpoints" / "step_000024") == "whole"


def test_a_checkpoint_that_a_user_renamed_is_kept_and_is_not_resumed_from(tmp_path):
    (tmp_path / "checkpoints" / "step_000012-v2").mkdir(parents=True)
    run = writer(tmp_path)
    checkpoint(run, 2)
    assert names(run.folder) == ["step_000002"]
    checkpoint(run, 4)  # and the outdated checkpoint is removed
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step_000004", "step_000012-v2"]


# ---- finding runs, and their data -----------------------------------------------------------------------------------


def test_a_text_with_a_slash_is_a_path_except_among_an_environment_s_arguments():
    for text, is_kept in (
        ("data/x", False),
        ("my files/x", True),
        ("/my files/x", False),
        ("as in /home/me/rubric", False),
        ("file:///home/me/a b", False),
    ):
        assert without_paths({"file": text}) == {"file": None}
        wording = text if is_kept else None
        assert without_paths({"args": {"of": {"wording": text}}}) == {"args": {"of": {"wording": wording}}}
        rubric = {"args": {"rubric": [[text, 2], ["It is short.", 1]]}}
        assert without_paths(rubric) == rubric
    for model, is_kept in (("Qwen/Qwen2.5", True), ("/home/me/Qwen", False)):
        assert without_paths({"args": {"model": model}}) == {"args": {"model": model if is_kept else None}}


def test_data_files_of_one_name_have_a_hash_each(tmp_path, monkeypatch):
    from aligner_lib.kinds import inputs

    monkeypatch.setattr(inputs, "model_hash", lambda folder: "m")
    train, validation = files = [tmp_path / folder / "data.jsonl" for folder in ("train", "validation")]
    for file in files:
        file.parent.mkdir()
        file.write_text(file.parent.name)
    other = tmp_path / "model"
    other.write_text("a data file named like the model")
    hashes = inputs.hashes_of(tmp_path, [str(train)], str(validation), str(other), str(other))
    assert set(hashes) == {"model", str(train), str(validation), str(other)}
    assert hashes["model"] == "m" and len(set(hashes.values())) == 4
    assert set(inputs.hashes_of(tmp_path, str(train), str(train))) == {"model", "data.jsonl"}
    # no job reads data_prefix.test
    splits = f"train: {train}, validation: [{validation}], test: [{tmp_path}/no_such_file.jsonl]"
    config = compose("rm", ["model.data.data_prefix={" + splits + "}"])
    assert set(inputs.hashes_of_splits(config, tmp_path)) == {"model", str(train), str(validation)}


def test_a_checkpoint_of_the_job_s_own_run_is_refused_behind_a_link(tmp_path, monkeypatch):
    from aligner_lib.kinds import inputs

    monkeypatch.setattr(inputs, "resolve", Path)
    for folder in ("disk/step_5", "run"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    settings = {"model.restore_from_path": "run/checkpoints/step_5", "exp_manager.explicit_log_dir": "run"}
    config = compose("sft", [f"{key}='{tmp_path}/{value}'" for key, value in settings.items()])
    with pytest.raises(UserError, match="step_5 is a checkpoint in the job's own run folder"):
        inputs.model_folder(config, "model.restore_from_path")


def test_a_run_without_a_step_left_keeps_the_settings_of_its_figures(tmp_path, caplog):
    begin(tmp_path, (1, 2, 3), "finished", config={"lr": 0.1}, max_steps=3)
    with writer(tmp_path, config={"lr": 0.2}, seed=8, max_steps=3) as run:
        run.start_loading(3)
        run.rewind(3)
        run.finish("finished")
    info = RunFolder(tmp_path).info
    assert (info["config"], info["seed"], info["resumed"]) == ({"lr": 0.1}, 7, 1)
    assert info["resumed_at"] == [], "explain judges the steps after the last resume"
    assert "has all its steps, so nothing is trained with other settings (lr 0.1 → 0.2)" in caplog.text


def test_a_machine_without_git_trains(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert begin(tmp_path).info["git_commit"] == ""


def test_a_process_of_another_machine_with_the_same_number_is_another_run(tmp_path):
    begin(tmp_path, (1,))
    change_info(tmp_path, host="another", heartbeat={"step": 1, "time": time.time()})
    with pytest.raises(FileExistsError, match="belongs to a run in progress"):
        writer(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "[" * 100_000, '{"created": "now"}', '{"heartbeat": {"time": 1e999}}', '{"pid": 1.5}'),
        *(
            '{"kind": []}',
            '{"status": {}}',
            '{"status": "running", "host": "another"}',
        ),  # without a heartbeat
        f'{{"status": "running", "host": "{os.uname().nodename}"}}',  # without a process
    ],
)
def test_a_damaged_run_is_left_out_of_the_list_and_its_cure_is_named(tmp_path, caplog, content):
    for age, place in ((3, "a"), (1, "deep/er/b"), (2, "deep/c")):
        begin(tmp_path / place)
        change_info(tmp_path / place, created=100 - age)
    damaged = tmp_path / "cut"
    begin(damaged, [1, 2, 3], "stopped")
    (damaged / "run.json").write_text(content)
    assert [run.name for run in find_runs(tmp_path)] == ["b", "c", "a"], "newest first"
    assert "cut/run.json is damaged" in caplog.text
    cure = "remove the file, and the run's next start goes on from its last checkpoint"
    with pytest.raises(UserError, match=cure):
        writer(damaged)
    (damaged / "run.json").unlink()
    with pytest.raises(UserError, match="refused"), writer(damaged) as run:
        run.start_loading(2)
        raise UserError("refused")  # by the trainer, which loads the checkpoint
    assert not (damaged / "run.json").exists()
    with writer(damaged) as run:
        run.start_loading(2)
        run.rewind(2)
        run.log(3, {"train/loss": 0.5})
        run.finish("finished")
    assert RunFolder(damaged).series("train/loss") == ([1, 2, 3], [1.0, 1.0, 0.5])
    assert "has checkpoints but no run.json" in caplog.text
