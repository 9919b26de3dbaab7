"""Exporters: each service's own reader finds the figures of metrics.jsonl, whatever happened on the way."""

import json
import math
import os
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
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

Point = tuple[str, int, float | list[dict]]  # metric or table, step, value or rows
METRICS = ("train/loss", "timers/step_time")


def rollouts(step: int, split: str, value: float) -> list[dict]:
    response = {"response": f"r{value:g}", "reward": value}
    records = [{"step": step, "split": split, "prompt": f"<{row}> a | b\nc"} | response for row in range(3)]
    records[1] |= {"reward": None, "failure": "raised"}
    for record in records if split == "train" else []:
        record |= {"kl": 0.2, "tokens": ["r", "</s>"], "token_kl": [0.1, 0.3], "metrics": {"form": 1.0}}
    return records


def write(run: Path, after: int, to: int, value: float = 1.0, status: str = "finished") -> None:
    """A run from the step after `after` to the step `to`, with figures that depend on value."""
    names = {"project": "of-mine", "name": f"n-{run.name}"}
    names = {"wandb_logger_kwargs": names, "trackio_logger_kwargs": names}
    names["mlflow_logger_kwargs"] = {"experiment_name": "of-mine"}
    settings = {"kind": "ppo", "config": {"exp_manager": names}, "seed": 1, "hashes": {}, "max_steps": to}
    with RunWriter(run, **settings) as writer:
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


def send(run: Path, name: str) -> int:
    return tail.follow(RunFolder(run), name, until_over=False)


# ---- points that the services' own readers find ---------------------------------------------------------------------


def tensorboard_events(run: Path):
    """The reader of TensorBoard's server. After a restart, `event_accumulator.EventAccumulator` discards figures but no tables."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    return EventAccumulator(str(run / "tensorboard"), {"tensors": 0}).Reload()


def tensorboard_points(run: Path) -> Iterator[Point]:
    events = tensorboard_events(run)
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            if tag.endswith("/text_summary"):
                head, _, *rows = event.tensor_proto.string_val[0].decode().split("\n")
                rows = [dict(zip(head.split(" | "), row.split(" | "))) for row in rows]
                yield tag.removesuffix("/text_summary"), event.step, rows
            else:
                yield tag, event.step, event.tensor_proto.float_val[0]


def wandb_records(run: Path) -> list:
    """Of the newest offline run, whose file is complete a moment after its process said so."""
    (path,) = (run / "wandb" / "latest-run").glob("*.wandb")
    until(lambda: any(record.HasField("exit") for record in log_records(path)), f"an end in {path}")
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


def as_rows(file: Path) -> list[dict]:
    table = json.loads(file.read_text())
    return [dict(zip(table["columns"], cells)) for cells in table["data"]]


def wandb_points(run: Path) -> Iterator[Point]:
    for row in wandb_rows(run):
        yield from ((name, row["_step"], row[name]) for name in METRICS)
        for key in row:
            if key.endswith("/path"):
                table = as_rows(run / "wandb" / "latest-run" / "files" / row[key])
                yield key.removesuffix("/path"), row["_step"], table


def mlflow_run(run: Path):
    from mlflow.tracking import MlflowClient

    client = MlflowClient((run.parent / "mlruns").as_uri())
    (stored,) = client.search_runs([client.get_experiment_by_name("of-mine").experiment_id])
    return client, stored


def mlflow_points(run: Path) -> Iterator[Point]:
    client, stored = mlflow_run(run)
    id, downloads = stored.info.run_id, run.parent / "downloads"
    downloads.mkdir(exist_ok=True)
    for name in stored.data.metrics:
        yield from sorted((name, point.step, point.value) for point in client.get_metric_history(id, name))
    for split, name in (("train", "table/train_rollouts"), ("validation", "table/val_rollouts")):
        for file in client.list_artifacts(id, f"rollouts/{split}"):
            step = int(Path(file.path).stem.removeprefix("step_"))
            yield name, step, as_rows(Path(client.download_artifacts(id, file.path, downloads)))


def trackio_points(run: Path) -> Iterator[Point]:
    """Those of the run; the data base has all runs of the project."""
    id = json.loads((run / "exporters" / "trackio.jsonl").read_text().split("\n")[0])["id"]
    with closing(sqlite3.connect(Path(os.environ["TRACKIO_DIR"]) / "of-mine.db")) as data_base:
        query = "select run_name, step, metrics from metrics where run_name like ? order by id"
        rows = data_base.execute(query, (f"n-{run.name}-%",)).fetchall()
    assert {name for name, *_ in rows} == {f"n-{run.name}-{id}"}
    for _, step, metrics in rows:
        for name, value in json.loads(metrics).items():
            if name in METRICS or isinstance(value, dict):
                yield name, step, value["_value"] if isinstance(value, dict) else value


POINTS = {
    "tensorboard": tensorboard_points,
    "wandb": wandb_points,
    "mlflow": mlflow_points,
    "trackio": trackio_points,
}


def tables(run: Path, name: str) -> dict[tuple[str, int], list[dict]]:
    return {(table, step): rows for table, step, rows in POINTS[name](run) if isinstance(rows, list)}


def assert_the_same(run: Path, name: str) -> None:
    """The service has each figure of the run once, in its order, and no other."""
    points = [point for point in POINTS[name](run) if not isinstance(point[2], list)]
    assert {metric for metric, *_ in points} == set(METRICS)
    for metric in METRICS:
        steps, values = RunFolder(run).series(metric)
        assert [step for key, step, _ in points if key == metric] == list(steps)
        assert [value for key, _, value in points if key == metric] == pytest.approx(values, rel=1e-6)


@pytest.fixture(scope="module", autouse=True)
def environment():
    """Nothing leaves this machine. (tests/conftest.py chooses trackio's folder.)"""
    with pytest.MonkeyPatch.context() as patch:
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


# ---- every service --------------------------------------------------------------------------------------------------


def test_a_run_arrives_whole_once_and_dated_although_its_exporter_dies(run, name, monkeypatch):
    write(run, 0, 5)
    lines = [record | {"time": 1e9 + 60 * record["step"]} for record in RunFolder(run).metrics()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    kind = type(services.make(name))
    real = kind.send

    def dies_before_step_2(self, step):
        if step.step == 2:
            raise ConnectionError("the line is cut")
        real(self, step)

    def dies_after_step_4(self, step):
        real(self, step)
        assert step.step != 4, "the exporter dies"

    cure = r"\(the line is cut\): after the cause is repaired, `aligner log .* --to"
    for dies, words in ((dies_before_step_2, cure), (dies_after_step_4, "the exporter dies")):
        with monkeypatch.context() as patch, pytest.raises(UserError, match=words):
            patch.setattr(kind, "send", dies)
            send(run, name)
    for _ in range(2):
        assert send(run, name) == 5
        assert_the_same(run, name)
    sent = tables(run, name)
    steps = {"train": range(1, 6), "val": (0, 2, 4)}
    assert sent.keys() == {(f"table/{split}_rollouts", step) for split in steps for step in steps[split]}
    first, failed, _ = sent["table/train_rollouts", 3]
    columns = ["step", "prompt", "response", "reward", "kl", "tokens", "token_kl", "metrics", "failure"]
    assert list(first)[: len(columns)] == columns
    times = None  # trackio dates a point when it arrives
    if name == "tensorboard":
        assert (first["tokens"], first["token_kl"]) == ("r &lt;/s&gt;", "0.1 0.3")
        assert first["prompt"] == "&lt;0&gt; a &#124; b<br>c" and failed["failure"] == "raised"
        times = [event.wall_time for event in tensorboard_events(run).Tensors("train/loss")]
    else:
        assert (first["tokens"], first["token_kl"]) == (["r", "</s>"], [0.1, 0.3])
        assert (first["prompt"], failed["reward"], failed["failure"]) == ("<0> a | b\nc", None, "raised")
    if name == "wandb":
        (named,) = [record.run for record in wandb_records(run) if record.HasField("run")]
        assert (named.project, named.display_name, named.run_group) == ("of-mine", f"n-{run.name}", run.name)
        times = [row["_timestamp"] for row in wandb_rows(run)]
    if name == "mlflow":
        client, stored = mlflow_run(run)
        assert (stored.info.run_name, stored.info.status) == (run.name, "FINISHED")
        assert stored.data.params["exp_manager.mlflow_logger_kwargs.experiment_name"] == "of-mine"
        points = client.get_metric_history(stored.info.run_id, "train/loss")
        times = [point.timestamp / 1000 for point in points]
    assert times in (None, [1e9 + 60 * step for step in range(6)])


def test_a_resumed_run_has_no_point_twice_and_none_of_steps_that_it_took_back(run, name):
    notes = run / "exporters" / f"{name}.jsonl"
    write(run, 0, 5, status="failed")
    send(run, name)
    attempt = notes.read_text().split("\n")[0]
    write(run, 3, 8)  # from its checkpoint of step 3, with the same figures again
    assert send(run, name) == 8
    assert_the_same(run, name)
    assert notes.read_text().split("\n")[0] == attempt
    write(run, 3, 7, value=2.0)  # with other figures, and fewer steps
    send(run, name)
    assert_the_same(run, name)
    responses = {step: rows[0]["response"] for (_, step), rows in tables(run, name).items()}
    assert max(responses) == 7 and {responses[step] for step in responses if step > 3} == {"r2"}
    write(run, 0, 2, value=3.0)  # begun anew
    send(run, name)
    assert_the_same(run, name)
    assert max(step for _, step in tables(run, name)) == 2


def test_mlflow_keeps_similar_names_apart_and_shows_settings_that_a_resume_changed(run):
    pytest.importorskip("mlflow")
    for steps, metrics, rate in (((1, 2), {"100%": 1.0, "100#": 2.0}, 0.1), ((3,), {}, 0.2), ((4,), {}, 0.1)):
        names = {"mlflow_logger_kwargs": {"experiment_name": "of-mine"}}
        config = {"exp_manager": names, "lr": rate, "seed": 1}
        with RunWriter(run, kind="ppo", config=config, seed=1, hashes={}, max_steps=4) as writer:
            writer.start(steps[0] - 1)
            for step in steps:
                writer.log(step, metrics)
            writer.finish("stopped")
        send(run, "mlflow")
        _, stored = mlflow_run(run)
        assert stored.data.metrics == {"100_25": 1.0, "100_23": 2.0} and stored.data.params["lr"] == "0.1"
        changed = {name: value for name, value in stored.data.tags.items() if name.startswith("changed.")}
        assert changed == ({} if steps == (1, 2) else {"changed.lr": str(rate)})


def test_a_name_that_mlflow_refuses_is_written_in_another_way_or_left_out_with_a_warning(run, caplog):
    pytest.importorskip("mlflow")
    own = {"mlflow_logger_kwargs": {"experiment_name": "of-mine"}}
    odd = {"a//b/": "a/_2fb_2f", "/..": "_2f_2e_2e", "./c...": "_2e/c...", "é" * 130: "é" * 116 + "_270cdf4b"}
    config = {"exp_manager": own, **dict.fromkeys(odd, 1)}
    with RunWriter(run, kind="ppo", config=config, seed=1, hashes={}, max_steps=4) as writer:
        writer.start(0)
        for step in (1, 2):  # MLflow's files cannot have a file `score` and a folder `score`
            writer.log(step, {"score": 1.0, "score/form": 1.0, **dict.fromkeys(odd, 1.0)})
    assert send(run, "mlflow") == 2
    client, stored = mlflow_run(run)
    assert stored.data.metrics.keys() == {"score", *odd.values()}
    assert {*odd.values()} < stored.data.params.keys()
    for name in stored.data.metrics:
        assert [point.step for point in client.get_metric_history(stored.info.run_id, name)] == [1, 2]
    assert caplog.text.count("score/form is left out, because MLflow refuses the name: [Errno 20]") == 1


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
        with monkeypatch.context() as patch:
            if name == "trackio":
                patch.setattr("aligner_lib.run_folder.exporters.trackio.WRITTEN_SECONDS", 1.0)
            with pytest.raises(UserError, match=r"sending to .* fails .*(No space left|is its disk full)"):
                send(run, name)
        subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
        send(run, name)
        assert_the_same(run, name)
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


# ---- the way there --------------------------------------------------------------------------------------------------


class Memory(Service):
    """Keeps the figures of one run at a time. `forgets`: whether it can take a step back."""

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


def begun(run: Path) -> RunWriter:
    writer = RunWriter(run, kind="ppo", config={}, seed=1, hashes={}, max_steps=9)
    writer.start(0)
    return writer


@pytest.fixture
def memory(monkeypatch):
    """The service `memory`, empty."""
    known = services.ServiceEntry("Memory", "json", "json", f"{__name__}:Memory")
    monkeypatch.setitem(SERVICES, "memory", known)
    monkeypatch.setattr(services, "import_module", lambda _: sys.modules[__name__])
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of times, where others use the disk, too
    Memory.store, Memory.forgets = {}, True
    return Memory


# a step is logged, the run goes back by 1 to 3 steps, the exporter sends, or a new exporter does
EVENTS = ["log", "log", "log", "send", "send", "anew", 1, 2, 3]


@hypothesis.settings(max_examples=20, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    events=st.lists(st.sampled_from(EVENTS), min_size=12, max_size=30),
    forgets=st.booleans(),
    same=st.booleans(),
)
def test_whatever_happens_in_whatever_order_a_service_has_the_run_s_own_figures(
    memory, tmp_path_factory, events, forgets, same
):
    Memory.store, Memory.forgets = {}, forgets
    run, step, go = tmp_path_factory.mktemp("run"), 0, 0
    with begun(run) as writer:
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


def test_a_resume_s_settings_reach_its_own_exporter_and_the_earlier_attempt_s(run, memory):
    settings, rates = {"kind": "ppo", "seed": 1, "hashes": {}, "max_steps": 9}, []
    with RunWriter(run, config={"lr": 0.1}, **settings) as writer:
        writer.start(0)
        writer.log(1, {"x": 1.0})
        exporter = opened(run, None)
    with RunWriter(run, config={"lr": 0.2}, **settings) as writer:
        writer.start_loading(1)
        writer.after_loading(lambda: rates.append(RunFolder(run).info["config"]["lr"]))
        exporter.catch_up()
        assert rates == [] and Memory.store == {1: 1.0}
        writer.rewind(1)
        writer.log(2, {"x": 2.0})
        with pytest.raises(tail.Superseded, match="the run has other settings since its resume"):
            exporter.catch_up()
        exporter = opened(run, exporter)
        exporter.catch_up()
    exporter.close()
    assert rates == [0.2] and Memory.store == {1: 1.0, 2: 2.0}


def test_rollouts_that_a_taken_back_step_left_are_not_sent_with_a_later_one(run, memory, monkeypatch):
    seen = {}
    monkeypatch.setattr(Memory, "send", lambda self, step: seen.update({step.step: step.rollouts["train"]}))
    with begun(run) as writer:
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
    responses = {step: [row["response"] for row in rows] for step, rows in seen.items()}
    assert responses == {1: ["r1"] * 3, 2: ["r2"] * 3, 3: ["r2"] * 3}


def test_a_service_that_fails_is_tried_again_while_the_run_goes_on(run, memory, monkeypatch, caplog):
    pauses = []
    monkeypatch.setattr(Memory, "send", lambda self, step: 1 / 0)
    with begun(run) as writer:
        log(writer, 1, 1.0)

        def pause(seconds):
            pauses.append(seconds)
            if len(pauses) == 8:
                writer.finish("finished")

        with pytest.raises(UserError, match=r"sending to .* fails \(division by zero\)"):
            tail.follow(RunFolder(run), "memory", until_over=True, pause=pause)
    assert pauses == [2, 4, 8, 16, 30, 30, 30, 30]
    assert caplog.text.count("Memory: ZeroDivisionError") == 9
    assert caplog.text.count("Traceback") == 1, "only the first attempt's, since a network may fail for hours"


def test_only_a_tail_that_gets_further_than_all_before_ends_a_row_of_failures(run, memory, monkeypatch):
    write(run, 0, 5)
    fails_at, pauses = [3, 3, 4, 4, 4, 4], iter([2, 4, 2, 4, 8])  # every tail sends from step 0
    monkeypatch.setattr(Memory, "open", lambda self, run, noted: -1)
    monkeypatch.setattr(Memory, "send", lambda self, step: 1 / (step.step - fails_at[0]))

    def pause(seconds):
        assert seconds == next(pauses)
        del fails_at[0]

    with pytest.raises(UserError, match=r"fails \(division by zero\)"):
        tail.follow(RunFolder(run), "memory", until_over=True, pause=pause)
    assert len(fails_at) == 1


def test_values_that_are_no_figures_and_damaged_lines_are_passed_over(run, memory, monkeypatch):
    write(run, 0, 0)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 1, "x": 1.5, "a": null, "b": "text", "c": NaN}\n{"x": 2}\n["step"]\nnonsense\n')
    seen = []
    monkeypatch.setattr(Memory, "send", lambda self, step: seen.append(step.metrics))
    send(run, "memory")
    assert len(seen) == 2
    assert seen[1].keys() == {"x", "c"} and seen[1]["x"] == 1.5 and math.isnan(seen[1]["c"])


def test_a_call_that_hangs_ends_the_exporter(run, memory, monkeypatch, caplog):
    write(run, 0, 0)
    codes, ended = [], threading.Event()

    def short_calls_from_now_on(self, run, noted):
        monkeypatch.setattr(tail, "CALL_SECONDS", 0.2)
        return -1

    def end(code):
        codes.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(Memory, "open", short_calls_from_now_on)
    monkeypatch.setattr(Memory, "send", lambda self, step: ended.wait(forks.BOUND_S))
    send(run, "memory")
    assert codes[0] == 1
    assert "sending to Memory takes more than 0.2 s: given up" in caplog.text


def test_a_missing_package_is_one_sentence_and_the_run_goes_on(run, monkeypatch, caplog):
    monkeypatch.setattr(services, "find_spec", lambda package: None)
    write(run, 0, 1)
    with pytest.raises(UserError, match=r"MLflow needs the package mlflow, .* installed \(`pip install"):
        send(run, "mlflow")
    assert not (run / "exporters").exists()
    with closing(process.Exporters()) as exporters:
        exporters.start(run, ["wandb"])
    assert f"nothing is sent; `aligner log {run} --to wandb` does so later" in caplog.text


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("nowhere:Csv", "ModuleNotFoundError"),
        ("csv:Csv", "AttributeError"),
        ("collections.abc:Sized", "TypeError"),
    ],
)
def test_a_place_without_a_complete_class_is_refused_with_the_place(run, monkeypatch, place, error):
    write(run, 0, 1)
    monkeypatch.setitem(SERVICES, "csv", services.ServiceEntry("CSV", "csv", "csv", place))
    with pytest.raises(UserError, match=rf"can't be made from {place}, its place in SERVICES \({error}: "):
        send(run, "csv")


def test_exporters_without_a_service_or_a_run_and_beside_another_one_are_refused(
    run, memory, tmp_path, monkeypatch
):
    with pytest.raises(UserError, match=r"has no run\.json"):
        send(tmp_path, "tensorboard")
    write(run, 0, 1)
    with pytest.raises(UserError, match="sends to 'neptune'; the services are tensorboard, wandb, mlflow, t"):
        send(run, "neptune")
    monkeypatch.setattr(Memory, "send", lambda self, step: send(run, "memory"))
    with pytest.raises(UserError, match=f"process {os.getpid()} is already sending .* to Memory"):
        send(run, "memory")
