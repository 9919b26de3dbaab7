"""Exporters: what each service's own reader finds is what metrics.jsonl holds, whatever happened on the way."""

import json
import logging
import math
import os
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import forks
import hypothesis
import pytest
from forks import until
from hypothesis import strategies as st

from aligner_lib.errors import UserError
from aligner_lib.run_folder.exporters import process, services, tail
from aligner_lib.run_folder.exporters.base import Service
from aligner_lib.run_folder.exporters.services import SERVICES
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.writer import RunWriter

Series = dict[str, list[tuple[int, float]]]  # metric → (step, value), as they are stored


# ---- a run ----------------------------------------------------------------------------------------------------------


def rollouts(step: int, split: str, value: float) -> list[dict]:
    records = [
        {
            "step": step,
            "split": split,
            "prompt": f"<{row}> a | b\nc",
            "response": f"r{value:g}",
            "reward": value,
        }
        for row in range(3)
    ]
    records[1] |= {"reward": None, "failure": "raised"}
    for record in records if split == "train" else []:
        record |= {"kl": 0.2, "tokens": ["r", "</s>"], "token_kl": [0.1, 0.3], "metrics": {"form": 1.0}}
    return records


def write(
    run: Path, after: int, to: int, value: float = 1.0, status: str = "finished", **exp_manager
) -> None:
    """A run from the step after `after` to the step `to`, with figures that depend on value."""
    with RunWriter(
        run, kind="ppo", config={"exp_manager": exp_manager}, seed=1, hashes={}, max_steps=to
    ) as writer:
        writer.start(after)
        for step in range(after + 1 if after else 0, to + 1):
            log(writer, step, value)
        writer.finish(status)


def log(writer: RunWriter, step: int, value: float) -> None:
    if step:
        writer.log_rollouts(rollouts(step, "train", value))
    if step % 2 == 0:
        writer.log_rollouts(rollouts(step, "validation", value))
    writer.log(step, {"train/loss": value / (step + 1), "timers/step_time": 0.1})


def expected(run: Path) -> Series:
    folder = RunFolder(run)
    return {name: list(zip(*folder.series(name))) for name in ("train/loss", "timers/step_time")}


def send(run: Path, name: str) -> int:
    return tail.follow(RunFolder(run), name, until_over=False)


# ---- what the services' own readers find ----------------------------------------------------------------------------


def tensorboard_events(run: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run / "tensorboard"), {"scalars": 0, "tensors": 0}).Reload()


def read_tensorboard(run: Path) -> Series:
    events = tensorboard_events(run)
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def tables_tensorboard(run: Path) -> dict:
    found = {}
    for tag in tensorboard_events(run).Tags()["tensors"]:
        for event in tensorboard_events(run).Tensors(tag):
            head, _, *rows = event.tensor_proto.string_val[0].decode().split("\n")
            rows = [dict(zip(head.split(" | "), row.split(" | "))) for row in rows]
            found[tag.removesuffix("/text_summary"), event.step] = rows
    return found


def wandb_records(run: Path) -> list:
    """Of the newest offline run, whose file is complete a moment after its process said so."""
    (path,) = (run / "wandb" / "latest-run").glob("*.wandb")
    until(lambda: [one for one in log_records(path) if one.HasField("exit")], f"an end in {path}")
    return log_records(path)


def log_records(path: Path) -> list:
    """A log of LevelDB's format (blocks of 32 KiB) of protobuf records, as far as it is written."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole, records = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        _, length, part = struct.unpack_from("<IHB", data, at)
        if at + 7 + length > len(data):
            break
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if part in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(whole))
            whole = b""
    return records


def wandb_rows(run: Path) -> list[dict]:
    """The history."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(run)
        if record.HasField("history")
    ]


def read_wandb(run: Path) -> Series:
    series: Series = {}
    for row in wandb_rows(run):
        for name in ("train/loss", "timers/step_time"):
            series.setdefault(name, []).append((row["_step"], row[name]))
    return series


def tables_wandb(run: Path) -> dict:
    found = {}
    for row in wandb_rows(run):
        for name in [name.removesuffix("/path") for name in row if name.endswith("/path")]:
            table = json.loads((run / "wandb" / "latest-run" / "files" / row[f"{name}/path"]).read_text())
            found[name, row["_step"]] = [dict(zip(table["columns"], cells)) for cells in table["data"]]
    return found


def mlflow_run(run: Path, experiment: str = "aligner-lab"):
    from mlflow.tracking import MlflowClient

    client = MlflowClient((run.parent / "mlruns").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return client, found


def read_mlflow(run: Path) -> Series:
    client, found = mlflow_run(run)
    return {
        name: sorted(
            (point.step, point.value) for point in client.get_metric_history(found.info.run_id, name)
        )
        for name in found.data.metrics
    }


def tables_mlflow(run: Path) -> dict:
    client, stored = mlflow_run(run)
    found = {}
    for split, name in (("train", "table/train_rollouts"), ("validation", "table/val_rollouts")):
        for file in client.list_artifacts(stored.info.run_id, f"rollouts/{split}"):
            table = json.loads(Path(client.download_artifacts(stored.info.run_id, file.path)).read_text())
            step = int(Path(file.path).stem.removeprefix("step_"))
            found[name, step] = [dict(zip(table["columns"], cells)) for cells in table["data"]]
    return found


def trackio_rows(run: Path) -> list[tuple[int, dict]]:
    """Those of the run's folder; its data base is all runs'."""
    head = json.loads((run / "exporters" / "trackio.jsonl").read_text().split("\n")[0])
    data_base = sqlite3.connect(Path(os.environ["TRACKIO_DIR"]) / "aligner-lab.db")
    query = "select step, metrics from metrics where run_name like ? order by id"
    rows = data_base.execute(query, (f"{run.name}-%",)).fetchall()
    names = {name for (name,) in data_base.execute("select distinct run_name from metrics")}
    data_base.close()
    assert f"{run.name}-{head['id']}" in names
    return [(step, json.loads(metrics)) for step, metrics in rows]


def read_trackio(run: Path) -> Series:
    rows = trackio_rows(run)
    return {
        name: [(step, metrics[name]) for step, metrics in rows] for name in ("train/loss", "timers/step_time")
    }


def tables_trackio(run: Path) -> dict:
    return {
        (name, step): value["_value"]
        for step, metrics in trackio_rows(run)
        for name, value in metrics.items()
        if isinstance(value, dict)
    }


READ = {
    "tensorboard": (read_tensorboard, tables_tensorboard),
    "wandb": (read_wandb, tables_wandb),
    "mlflow": (read_mlflow, tables_mlflow),
    "trackio": (read_trackio, tables_trackio),
}


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory):
    """Nothing leaves this machine, nor the tests' folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        yield


@pytest.fixture(params=SERVICES)
def name(request) -> str:
    """Each service whose package is installed."""
    if sentence := services.lacking(request.param):
        pytest.skip(sentence)
    return request.param


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder of a name of its own: trackio keeps all runs in one place."""
    return tmp_path / tmp_path.name


def assert_the_same(run: Path, name: str) -> None:
    found, wanted = READ[name][0](run), expected(run)
    assert found.keys() == wanted.keys()
    for metric, points in wanted.items():
        assert [step for step, _ in found[metric]] == [step for step, _ in points]
        assert [value for _, value in found[metric]] == pytest.approx(
            [value for _, value in points], rel=1e-6
        )


# ---- every service --------------------------------------------------------------------------------------------------


def test_a_run_arrives_whole_and_only_once(run, name):
    write(run, 0, 5)
    assert send(run, name) == 5
    assert_the_same(run, name)
    assert send(run, name) == 5
    assert_the_same(run, name)
    tables = READ[name][1](run)
    assert sorted(tables) == [
        *(("table/train_rollouts", step) for step in range(1, 6)),
        *(("table/val_rollouts", step) for step in (0, 2, 4)),
    ]
    first, failed, _ = tables["table/train_rollouts", 3]
    columns = ["step", "prompt", "response", "reward", "kl", "tokens", "token_kl", "metrics", "failure"]
    assert list(first)[: len(columns)] == columns
    if name == "tensorboard":
        assert (first["tokens"], first["token_kl"]) == ("r &lt;/s&gt;", "0.1 0.3")
        assert first["prompt"] == "&lt;0&gt; a &#124; b<br>c" and failed["failure"] == "raised"
    else:
        assert (first["tokens"], first["token_kl"]) == (["r", "</s>"], [0.1, 0.3])
        assert (first["prompt"], failed["reward"], failed["failure"]) == ("<0> a | b\nc", None, "raised")


def test_after_a_resume_it_goes_on_and_points_are_not_doubled(run, name):
    """Killed after step 5 with a checkpoint of step 3; steps 4 and 5 have the same figures again."""
    write(run, 0, 5, status="failed")
    send(run, name)
    notes = run / "exporters" / f"{name}.jsonl"
    attempt = notes.read_text().split("\n")[0]
    write(run, 3, 8)
    assert send(run, name) == 8
    assert_the_same(run, name)
    assert notes.read_text().split("\n")[0] == attempt


def test_of_a_run_that_went_back_the_figures_of_before_are_gone(run, name):
    write(run, 0, 5, value=1.0)
    send(run, name)
    write(run, 3, 7, value=2.0)
    send(run, name)
    assert_the_same(run, name)
    assert {rows[0]["response"] for (_, step), rows in READ[name][1](run).items() if step > 3} == {"r2"}
    write(run, 0, 2, value=3.0)  # begun anew
    send(run, name)
    assert_the_same(run, name)


def test_a_run_that_ended_earlier_than_once_leaves_nothing_of_the_later_steps(run, name):
    write(run, 0, 5, status="failed")
    send(run, name)
    write(run, 2, 3)
    send(run, name)
    assert_the_same(run, name)


@pytest.mark.parametrize("arrived", [True, False])
def test_a_step_at_which_the_exporter_died_arrives_once(run, name, arrived, monkeypatch):
    write(run, 0, 5)
    kind = type(services.make(name))
    real = kind.send

    def dies(self, step):
        if step.step != 3 or arrived:
            real(self, step)
        if step.step == 3:
            raise ConnectionError("the line is cut")

    with monkeypatch.context() as patch:
        patch.setattr(kind, "send", dies)
        with pytest.raises(
            UserError, match=r"\(the line is cut\): once it works again, `aligner log .* --to"
        ):
            send(run, name)
    send(run, name)
    assert_the_same(run, name)


def test_on_a_full_disk_nothing_is_lost_in_silence_and_with_room_all_arrives(run, name, monkeypatch):
    write(run, 0, 60)
    places = {"mlflow": run.parent / "mlruns", "trackio": Path(os.environ["TRACKIO_DIR"])}
    place = places.get(name, run / name)
    place.mkdir(exist_ok=True)
    size = "size=256k" if name == "trackio" else "size=32k"  # the tables of its data base have room
    tmpfs = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", place]
    if subprocess.run(tmpfs, capture_output=True).returncode:
        pytest.skip("no file system of a few bytes can be made here: that takes root")
    try:
        if name == "trackio":
            monkeypatch.setattr("aligner_lib.run_folder.exporters.trackio.WRITTEN_SECONDS", 1.0)
        with pytest.raises(UserError, match=r"sending to .* fails .*(No space left|is its disk full)"):
            send(run, name)
        subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
        send(run, name)
        assert_the_same(run, name)
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def test_names_that_are_asked_for_are_those_that_are_used(run, name):
    if name == "tensorboard":
        pytest.skip("its place is the run folder")
    project = "experiment_name" if name == "mlflow" else "project"
    write(run, 0, 1, **{f"{name}_logger_kwargs": {project: "of-mine", "name": "n"}})
    send(run, name)
    if name == "wandb":
        (told,) = [record.run for record in wandb_records(run) if record.HasField("run")]
        assert (told.project, told.display_name, told.run_group) == ("of-mine", "n", run.name)
    if name == "mlflow":
        _, found = mlflow_run(run, "of-mine")
        assert (found.info.run_name, found.info.status) == (run.name, "FINISHED")
        assert found.data.params["exp_manager.mlflow_logger_kwargs.experiment_name"] == "of-mine"
    if name == "trackio":
        data_base = sqlite3.connect(Path(os.environ["TRACKIO_DIR"]) / "of-mine.db")
        assert data_base.execute("select run_name from metrics").fetchone()[0].startswith("n-")


def test_a_point_is_dated_when_it_was_logged(run, name):
    write(run, 0, 1)
    lines = [record | {"time": 1e9 + 60 * number} for number, record in enumerate(RunFolder(run).metrics())]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    send(run, name)
    if name == "tensorboard":
        times = [event.wall_time for event in tensorboard_events(run).Scalars("train/loss")]
    elif name == "wandb":
        times = [row["_timestamp"] for row in wandb_rows(run)]
    elif name == "mlflow":
        client, found = mlflow_run(run)
        points = client.get_metric_history(found.info.run_id, "train/loss")
        times = [point.timestamp / 1000 for point in points]
    else:
        pytest.skip("trackio dates a point when it arrives")
    assert times == [1e9, 1e9 + 60]


# ---- the way there --------------------------------------------------------------------------------------------------


class Memory(Service):
    """Keeps what it is sent, for one run at a time. `forgets`: whether it can take something back."""

    store: ClassVar[dict[int, float]] = {}
    forgets = True

    def open(self, run, noted):
        return max(Memory.store, default=-1)

    def send(self, step):
        assert step.step > max(Memory.store, default=-1)
        Memory.store[step.step] = step.metrics["x"]

    def take_back(self, step):
        if self.forgets:
            Memory.store = {key: value for key, value in Memory.store.items() if key <= step}
        return self.forgets

    def close(self, status):
        if status == "superseded":
            Memory.store = {}


@pytest.fixture
def memory(monkeypatch):
    """The service `memory`, empty."""
    known = services.ServiceEntry("Memory", "json", "json", f"{__name__}:Memory")
    monkeypatch.setitem(SERVICES, "memory", known)
    monkeypatch.setattr(services, "import_module", lambda _: sys.modules[__name__])
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of times, where others use the disk, too
    Memory.store, Memory.forgets = {}, True
    return Memory


# what happens, in order: a step is logged, the run goes back by so many steps, the exporter sends, or a new one does
EVENTS = st.lists(
    st.sampled_from(["log", "log", "log", "send", "send", "anew", 1, 2, 3]), min_size=12, max_size=30
)


@hypothesis.settings(max_examples=40, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(events=EVENTS, forgets=st.booleans(), same=st.booleans())
def test_whatever_happens_in_whatever_order_a_service_has_the_run_s_own_figures(
    memory, tmp_path_factory, events, forgets, same
):
    Memory.store, Memory.forgets = {}, forgets
    run, step, go = tmp_path_factory.mktemp("run"), 0, 0
    with RunWriter(run, kind="ppo", config={}, seed=1, hashes={}, max_steps=9) as writer:
        writer.start(0)
        exporter = None
        for event in events:
            if event == "log":
                step += 1
                writer.log(step, {"x": step + (0 if same else go / 100)})
            elif event in (1, 2, 3):
                step, go = max(step - event, 0), go + 1
                writer.rewind(step)
            else:
                if exporter is None or event == "anew":
                    exporter = opened(run, exporter)
                try:
                    exporter.catch_up()
                except tail.Superseded:
                    exporter = opened(run, exporter)
        writer.finish("finished")
    tail.follow(RunFolder(run), "memory", until_over=False)
    assert Memory.store == dict(zip(*RunFolder(run).series("x")))
    if exporter is not None:
        exporter.close()


def opened(run: Path, before: tail.Tail | None) -> tail.Tail:
    if before is not None:
        before.close()
    exporter = tail.Tail(RunFolder(run), "memory")
    exporter.open()
    return exporter


def test_rollouts_that_a_step_left_before_the_run_went_back_are_not_those_of_a_later_one(
    run, memory, monkeypatch
):
    """An interrupted step has written its rollouts, and no figures."""
    seen = {}
    monkeypatch.setattr(
        Memory, "send", lambda self, step: seen.update({step.step: step.rollouts.get("train", [])})
    )
    with RunWriter(run, kind="ppo", config={}, seed=1, hashes={}, max_steps=9) as writer:
        writer.start(0)
        for step in (1, 2):
            log(writer, step, 1.0)
        writer.log_rollouts(rollouts(3, "train", 1.0))
        exporter = opened(run, None)
        exporter.catch_up()
        writer.rewind(1)
        for step in (2, 3):
            log(writer, step, 2.0)
        exporter.catch_up()
        exporter.close()
        writer.finish("finished")
    told = {step: [row["response"] for row in rows] for step, rows in seen.items()}
    assert told == {1: ["r1"] * 3, 2: ["r2"] * 3, 3: ["r2"] * 3}


def test_a_service_that_fails_is_tried_again_and_again_while_the_run_goes_on(
    run, memory, monkeypatch, caplog
):
    """Then a few times more: the last pauses are seconds, and the exporter ends."""
    pauses = []
    monkeypatch.setattr(Memory, "send", lambda self, step: 1 / 0)
    with RunWriter(run, kind="ppo", config={}, seed=1, hashes={}, max_steps=9) as writer:
        writer.start(0)
        log(writer, 1, 1.0)

        def pause(seconds):
            pauses.append(seconds)
            if len(pauses) == 8:
                writer.finish("finished")

        with pytest.raises(UserError, match=r"sending to .* fails \(division by zero\)"):
            tail.follow(RunFolder(run), "memory", until_over=True, pause=pause)
    assert pauses == [2, 4, 8, 16, 30, 30, 30, 30]
    assert caplog.text.count("Memory: ZeroDivisionError") == 9


def test_one_exporter_at_a_time(run, memory, monkeypatch):
    write(run, 0, 2)

    def send_too(self, step):
        send(run, "memory")

    monkeypatch.setattr(Memory, "send", send_too)
    with pytest.raises(UserError, match=f"process {os.getpid()} is already sending .* to Memory"):
        send(run, "memory")


def test_what_is_no_figure_is_passed_over(run, memory):
    write(run, 0, 0)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 1, "x": 1.5, "a": null, "b": "text", "c": NaN}\n{"x": 2}\n["step"]\nnonsense\n')
    Memory.store = {0: 0.0}
    (run / "exporters").mkdir()
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Memory, "send", lambda self, step: seen.append(step.metrics))
        Memory.store = {}
        send(run, "memory")
    assert seen[1].keys() == {"x", "c"} and seen[1]["x"] == 1.5 and math.isnan(seen[1]["c"])


def test_a_call_that_hangs_ends_the_exporter(run):
    write(run, 0, 1)
    script = f"""
import sys, threading
from aligner_lib.run_folder.exporters import services, tail
from aligner_lib.run_folder.exporters.tensorboard import TensorBoard
from aligner_lib.run_folder.reader import RunFolder
tail.CALL_SECONDS = 0.2
TensorBoard.send = lambda self, step: threading.Event().wait(60)
tail.follow(RunFolder({str(run)!r}), "tensorboard", until_over=False)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert "sending to TensorBoard takes more than 0.2 s: given up" in ended.stderr
    send(run, "tensorboard")
    assert_the_same(run, "tensorboard")


def test_a_run_s_exporter_has_sent_all_when_the_run_has_ended(run, caplog, monkeypatch):
    """It is asleep most of its time: the run wakes it at the end, and waits until it has sent everything."""
    monkeypatch.setattr(
        process, "END_SECONDS", forks.BOUND_S
    )  # a busy machine may need longer than a run waits
    with (
        closing(process.Exporters()) as exporters,
        RunWriter(run, kind="ppo", config={}, seed=1, hashes={}, max_steps=3) as writer,
    ):
        writer.start(0)
        exporters.start(run, ["tensorboard"])
        for step in (1, 2, 3):
            log(writer, step, 1.0)
        writer.finish("finished")
    assert caplog.text == ""
    assert "everything was sent, up to step 3" in (run / "exporters" / "tensorboard.log").read_text()
    assert_the_same(run, "tensorboard")


# ---- what a user is told --------------------------------------------------------------------------------------------


def test_a_missing_package_is_one_sentence_and_the_run_goes_on(run, monkeypatch, caplog):
    monkeypatch.setattr(services, "find_spec", lambda package: None)
    write(run, 0, 1)
    with pytest.raises(
        UserError, match=r"MLflow needs the package mlflow, which is not installed \(`pip install"
    ):
        send(run, "mlflow")
    assert not (run / "exporters").exists()
    exporters = process.Exporters()
    with caplog.at_level(logging.WARNING):
        exporters.start(run, ["wandb"])
    exporters.close()
    assert f"nothing is sent; `aligner log {run} --to wandb` does so later" in caplog.text


def test_an_exporter_that_can_t_be_started_is_told(run, caplog):
    write(run, 0, 1)
    (run / "exporters").write_text("in the way")
    exporters = process.Exporters()
    exporters.start(run, ["tensorboard"])
    exporters.close()
    assert "the exporter to TensorBoard can't be started" in caplog.text


@pytest.mark.parametrize(
    ("to", "words"),
    [("neptune", "no exporter sends to 'neptune'; the services are tensorboard, wandb, mlflow, trackio")],
)
def test_an_unknown_service_is_named_with_those_there_are(run, to, words):
    write(run, 0, 1)
    with pytest.raises(UserError, match=words):
        send(run, to)


def test_a_folder_without_a_run_is_told(tmp_path):
    with pytest.raises(UserError, match=r"has no run\.json"):
        send(tmp_path, "tensorboard")
