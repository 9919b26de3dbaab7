"""start="recorded": a bundle's run stands for the one that a notebook would start, and for no other."""

import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from aligner_lib.config.compose import compose, save
from aligner_lib.config.function_hashes import hashes_of_functions
from aligner_lib.config.functions import source_of
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import UserError
from aligner_lib.models.hash import file_hash, model_hash, text_hash
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.tutorial import Workspace
from aligner_lib.tutorial.workspace import earlier_runs, recorded_runs


def record_run(lab: Workspace, kind: str, **settings) -> RunFolder:
    """A finished run as its job would have left it, without the training; its model is the downloaded one."""
    inputs = lab._inputs_of(kind, settings)
    texts = [
        f"{key}={json.dumps(str(value)) if isinstance(value, Path) else value}"
        for key, value in inputs.items()
        if "data_prefix" not in key
    ]
    lists = [value if isinstance(value, list) else [value] for value in inputs.values()]
    files = [path for paths in lists for path in paths if isinstance(path, Path) and path.is_file()]
    hashes = {"model": model_hash(lab.model())} | {file.name: file_hash(file) for file in files}
    config = save(compose(kind, texts, lab.profile))
    config["model"]["data"]["chat_template"] = "plain"  # as the job chooses it
    details = {"kind": kind, "config": config, "seed": 1, "hashes": hashes, "profile": lab.profile}
    with RunWriter(lab.run(kind).path, max_steps=2, **details) as run:
        run.start(0)
        for step in (1, 2):
            run.log(step, {"train/loss": 2.0 - step, "validation/loss": 2.0 - step})
        run.finish("finished", "2 steps")
    records = [record | {"time": 100.0 * record["step"]} for record in lab.run(kind).metrics()]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    checkpoint = run.path / "checkpoints" / "step_000002"
    shutil.copytree(lab.model(), checkpoint)
    (checkpoint / "optimizer").mkdir()
    (checkpoint / "optimizer" / "rank.safetensors").write_bytes(b"moments")
    return lab.run(kind)


def put_into_cache(run: RunFolder, profile: str) -> None:
    """What `./lab setup --bundle` does with a run."""
    into = recorded_runs.recorded_root(profile) / run.name
    contents = {name: path.read_bytes() for name, path in recorded_runs.files_of(run)}
    infos = recorded_runs.infos_to_pack(run).items()
    contents |= {name: recorded_runs.as_json(info).encode() for name, info in infos}
    for name, content in contents.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_bytes(content)


@pytest.fixture
def own_cache(smoke, tmp_path, monkeypatch):
    """A cache of the test's own, with the smoke model."""
    cache = tmp_path / "cache"
    (cache / "models").mkdir(parents=True)
    (cache / "models" / "smoke").symlink_to(smoke)
    monkeypatch.setenv("ALIGNER_CACHE", str(cache))
    return cache


@pytest.fixture
def recorded(own_cache, tmp_path):
    """A recorded SFT run in the cache; gives the run that it was packed from."""
    run = record_run(Workspace(tmp_path / "instructor", "smoke"), "sft")
    put_into_cache(run, "smoke")
    return run


@pytest.fixture
def started(monkeypatch):
    """The run folders of jobs that were started for real."""
    folders = []
    monkeypatch.setattr("cluster.submit", lambda commands, run, *_: folders.append(run.name))
    return folders


@pytest.fixture
def seat(recorded, started, tmp_path, capsys) -> Workspace:
    """A learner's workspace on a machine that has the recording."""
    return Workspace(tmp_path / "seat", "smoke", start="recorded")


def test_a_recorded_run_takes_the_place_of_the_training(recorded, started, seat, tmp_path, capsys):
    job = seat.submit("sft", **{"trainer.precision": "auto"})  # the recording says what the machine chose
    assert started == [] and job.wait() == "FINISHED"
    run = seat.run("sft")
    assert run.status == "finished" and run.series("train/loss") == recorded.series("train/loss")
    assert seat.policy() == run.path
    assert model_hash(run.latest_checkpoint()) == model_hash(recorded.latest_checkpoint())
    assert not (run.latest_checkpoint() / "optimizer").exists()
    assert "sft: recorded" in capsys.readouterr().out
    Workspace(seat.out, "smoke", where="print").submit("sft", **{"model.optim.lr": 1e-2})
    assert run.latest_checkpoint(), "a printed script removes nothing"
    assert not {"host", "pid", "identity"} & run.info.keys()
    assert time.time() - 60 < run.info["recorded"]["placed"] <= time.time()
    assert str(tmp_path) not in (run.path / "run.json").read_text()


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("sft", {"model.seed": 7}, "the recording has model.seed=1234, and this run 7"),
        ("sft", None, "the recording used another train.jsonl"),
        ("sft", {"model.data.train_ds.file_path": __file__}, "used another test_recorded_runs.py"),
        ("sft-2", {}, "has no run sft-2"),
    ],
)
def test_a_run_with_other_settings_data_or_name_is_trained(started, seat, capsys, name, settings, why):
    if settings is None:
        with open(seat.sft_data() / "train.jsonl", "a") as file:
            file.write('{"input": "a", "output": "b"}\n')
    seat.submit("sft", name, **settings or {})
    assert started == [name] and why in capsys.readouterr().out


def losses(logprobs):
    return -logprobs


def test_a_learner_s_own_code_is_trained_unless_it_is_the_recorded_one(started, seat, capsys):
    seat.submit("sft", loss=losses)
    assert started == ["sft"]
    assert "the recording was trained with another functions.loss than yours" in capsys.readouterr().out
    path = recorded_runs.recorded_root("smoke") / "sft" / "run.json"
    info = json.loads(path.read_text())
    info["hashes"]["functions.loss"] = text_hash(source_of(losses, "loss", kind_of("sft").functions["loss"]))
    path.write_text(json.dumps(info))
    seat.submit("sft", loss=losses)
    assert started == ["sft"] and "this cell trains nothing" in capsys.readouterr().out
    seat.submit("sft")  # without code of the learner's, the library's function would give the same figures
    assert started == ["sft"]


def test_a_late_notebook_finds_the_recorded_policy_without_the_earlier_ones(seat, tmp_path, capsys):
    assert seat.policy() == seat.run("sft").path and "this cell trains nothing" in capsys.readouterr().out
    fresh = Workspace(tmp_path / "other", "smoke")
    assert fresh.policy() == fresh.model() and "there is no SFT run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"lora": True}, "model.peft.peft_scheme=None, and this workspace lora"),
        ({"dataset": "forms"}, "another train.jsonl"),
    ],
)
def test_a_late_notebook_takes_no_recorded_policy_of_other_data_or_adapters(
    recorded, tmp_path, capsys, other, why
):
    late = Workspace(tmp_path / "late", "smoke", start="recorded", **other)
    assert late.policy() == late.model() and why in capsys.readouterr().out


@pytest.mark.parametrize("start", ["recorded", "fresh"])
def test_a_learner_s_own_files_are_kept_when_a_run_takes_their_place(started, seat, capsys, start):
    own = seat.run("sft").path
    if start == "recorded":  # an hour's training of the learner's own
        (own / "checkpoints" / "step_000009").mkdir(parents=True)
        (own / "run.json").write_text(json.dumps({"name": "sft", "kind": "sft", "status": "finished"}))
    else:  # notes beside a recording
        seat.submit("sft")
        (own / "checkpoints" / "step_000009").mkdir()
    (own / "notes.txt").write_text("kept")
    Workspace(seat.out, "smoke", start=start).submit("sft")
    kept = own.with_name("sft-kept-1")
    assert (kept / "notes.txt").read_text() == "kept" and (kept / "checkpoints" / "step_000009").is_dir()
    assert str(kept) in capsys.readouterr().out
    assert started == ([] if start == "recorded" else ["sft"])
    assert recorded_runs.recorded("smoke", "sft").latest_checkpoint()


def test_an_evaluation_of_several_policies_is_recorded_with_its_parts(own_cache, started, tmp_path, capsys):
    instructor = Workspace(tmp_path / "instructor", "smoke")
    policies = dict.fromkeys(("before", "after"), instructor.model())
    prompts = "model.environments.sums.args.prompts"
    settings = {
        "pretrained_checkpoint.restore_from_path": instructor.model(),
        "critic.pretrained_checkpoint.restore_from_path": None,
        "model.environments.sums.use": "sums",
        prompts: instructor.preference_data() / "test_prompts.jsonl",
        "evaluation.policies": policies,
    }
    config = earlier_runs._composed("evaluate", "smoke", settings)
    hashes = {f"policies.{name}": model_hash(folder) for name, folder in policies.items()}
    details = {"kind": "evaluate", "seed": 1, "hashes": hashes | hashes_of_functions(config), "max_steps": 0}
    folders = {"evaluate": save(config), **{f"evaluate/{name}": {} for name in policies}}
    for number, (folder, config) in enumerate(folders.items()):
        with RunWriter(instructor.run(folder).path, config=config, **details) as run:
            run.start(0)
            run.log(0, {"evaluation/rewards": number})
            run.finish("finished", "evaluated")
    assert [run.name for run in recorded_runs.packable(instructor.out)] == ["evaluate"]
    put_into_cache(instructor.run("evaluate"), "smoke")
    seat = Workspace(tmp_path / "seat", "smoke", start="recorded")
    for others, why in (
        ({"evaluation.policies": policies | {"third": seat.model()}}, "no policy third"),
        ({"model.environments.sums.args.digits": 3}, "args.digits=None, and this run 3"),
        ({prompts: seat.sft_data() / "train.jsonl"}, f"another file in {prompts}"),
    ):
        seat.submit("evaluate", **settings | others)
        assert started.pop() == "evaluate" and why in capsys.readouterr().out
    seat.submit("evaluate", **settings)
    assert started == []
    for number, folder in enumerate(folders):
        assert seat.run(folder).series("evaluation/rewards") == ([0], [number])
        assert recorded_runs.is_recorded(seat.run(folder)) and str(tmp_path) not in str(seat.run(folder).info)
    recorded_runs.make_way(seat.run("evaluate").path)
    assert not seat.run("evaluate").path.exists()


ANEW = "exp_manager.resume_if_exists=false"


def begins_anew(lab: Workspace, kind: str, **settings) -> bool:
    return ANEW in lab.commands(kind, **settings)["main"]


def test_a_finished_run_with_other_settings_begins_anew(own_cache, tmp_path, capsys):
    lab = Workspace(tmp_path / "lab", "smoke")
    record_run(lab, "sft")
    for settings in ({}, {"trainer.precision": "auto"}, {"trainer.sft.max_steps": 999, "model.seed": 7}):
        assert not begins_anew(lab, "sft", **settings)  # nothing else, or more steps
    path = lab.run("sft").path / "run.json"
    info = json.loads(path.read_text())
    info["config"]["trainer"]["devices"] = 4  # chosen by the resources
    path.write_text(json.dumps(info))
    assert not begins_anew(lab, "sft")
    for settings in ({"model.seed": 7}, {"trainer.sft.max_steps": 1}, {"model.optim.sched.max_steps": 50}):
        assert begins_anew(lab, "sft", **settings)
    words = "sft was finished with other settings (model.seed 1234 → 7): training begins anew"
    assert words in capsys.readouterr().out
    words = "runs/sft is a run of kind sft: choose another name for a run of kind rm"
    with pytest.raises(UserError, match=words):
        lab.commands("rm", "sft")


def test_an_unfinished_run_goes_on_with_other_settings_and_says_so_but_not_with_another_seed_or_other_data(
    own_cache, tmp_path, capsys
):
    lab = Workspace(tmp_path / "lab", "smoke")
    path = record_run(lab, "sft").path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "stopped"}))
    assert not begins_anew(lab, "sft") and "goes on" not in capsys.readouterr().out
    rate, resume = {"model.optim.lr": 0.5, "trainer.sft.max_steps": 999}, {ANEW.partition("=")[0]: False}
    assert not begins_anew(lab, "sft", **rate)
    assert re.search(
        r"sft goes on from step 2 with other .*lr \S+ → 0\.5, .*max_steps \d+ → 999\)",
        capsys.readouterr().out,
    )
    assert begins_anew(lab, "sft", **rate, **resume) and "goes on" not in capsys.readouterr().out
    assert begins_anew(lab, "sft", **{"model.seed": 7})
    assert (
        "sft was begun with another seed (model.seed 1234 → 7): training begins anew"
        in capsys.readouterr().out
    )
    with open(lab.sft_data() / "train.jsonl", "a") as file:
        file.write("\n")
    assert begins_anew(lab, "sft") and "from other inputs (train.jsonl)" in capsys.readouterr().out


def test_a_finished_run_with_other_inputs_or_without_an_environment_begins_anew(own_cache, tmp_path, capsys):
    lab = Workspace(tmp_path / "lab", "smoke")
    record_run(lab, "rm")
    more = {"trainer.rm.max_steps": 999}  # with another model, the job would refuse them
    (tmp_path / "test.jsonl").write_text("{}\n")
    unread = {"model.data.data_prefix.test": [str(tmp_path / "test.jsonl")]}
    assert not any(begins_anew(lab, "rm", **settings) for settings in ({}, more, unread))
    record_run(lab, "sft")
    changed = lab.run("sft").latest_checkpoint() / "tokenizer_config.json"
    changed.write_text(changed.read_text() + " ")
    assert begins_anew(lab, "rm") and begins_anew(lab, "rm", **more)
    with open(lab.preference_data() / "train_comparisons.jsonl", "a") as file:
        file.write("\n")
    assert begins_anew(lab, "rm")
    names = "model, train_comparisons.jsonl"
    assert f"rm was trained from other inputs ({names}): training begins anew" in capsys.readouterr().out
    environments = {f"model.environments.{name}.use": "sums" for name in ("sums", "more")}
    environments["model.environments.sums.args.digits"] = 3
    record_run(lab, "grpo", **environments)
    unread = {"model.data.data_prefix.train": [str(tmp_path / "test.jsonl")]}
    assert not any(begins_anew(lab, "grpo", **environments, **more) for more in ({}, unread))
    for key, change in (("sums.args.digits", "3 → None"), ("more.use", "sums → None")):
        name = f"model.environments.{key}"
        fewer = {other: value for other, value in environments.items() if other != name}
        assert begins_anew(lab, "grpo", **fewer)
        assert f"{name} {change}" in capsys.readouterr().out


RUBRIC = [["It is true.", 2], ["It is short.", 1]]
HERE = {"url": "http://127.0.0.1:5000", "model": "Qwen/small"}


def judged_by(judge: dict[str, object], rubric: object = RUBRIC) -> dict[str, object]:
    return {"model": {"environments": {"judged": {"use": "judge", "args": judge | {"rubric": rubric}}}}}


@pytest.mark.parametrize(
    ("earlier", "later", "differ"),
    [
        (judged_by(HERE), judged_by(HERE | {"url": "http://127.0.0.1:6000"}), []),
        (
            judged_by(HERE),
            judged_by(HERE | {"url": "https://judge/v1", "model": "Qwen/large"}),
            ["url", "model"],
        ),
        (judged_by(HERE, dict(RUBRIC)), judged_by(HERE), []),  # an early release's form
        (judged_by(HERE), judged_by(HERE, RUBRIC[:1]), ["rubric"]),
        (judged_by({"url": None, "model": None}), judged_by(HERE), []),  # a recording, without paths
    ],
)
def test_a_run_with_another_judge_is_another_run(earlier, later, differ):
    before, now = earlier_runs._settings(earlier), earlier_runs._settings(later)
    keys = list(earlier_runs._unequal(before, now, before.keys() | now.keys()))
    assert sorted(keys) == sorted(f"model.environments.judged.args.{name}" for name in differ)


def test_only_finished_runs_that_left_a_model_are_packed(recorded):
    tutorial = recorded.path.parents[1]
    assert [run.name for run in recorded_runs.packable(tutorial)] == ["sft"]
    shutil.rmtree(recorded.path / "checkpoints")
    assert recorded_runs.packable(tutorial) == []


def test_a_monitor_plays_a_recorded_run_and_waits_for_its_end(seat, monkeypatch):
    from widgets import Monitor
    from widgets.recordings.replay import PLAYED_SECONDS

    job, clock = seat.submit("sft"), [0.0]
    monkeypatch.setattr("widgets.recordings.replay.time.monotonic", lambda: clock[0])
    monitor = Monitor(seat.run("sft"), job=job)
    try:
        (player,) = monitor.runs
        assert player.name == "sft (recorded)" and monitor.job is None
        assert player.speed == 100.0 / PLAYED_SECONDS
        assert (player.status, len(player.metrics())) == ("running", 1)
        clock[0] = PLAYED_SECONDS + 1
        assert (player.status, len(player.metrics())) == ("finished", 2)
    finally:
        monitor.close()


@pytest.mark.parametrize(
    "before, now, is_longer, differs",
    [
        ((60, None), (60, 2), False, True),  # a bound that may only shorten the run
        ((60, None), (90, None), True, False),
        ((60, None), (12, None), False, False),
        ((60, 1), (60, None), False, False),  # an earlier version's default, which had no effect
        ((-1, 1), (-1, None), False, False),
        ((-1, 3), (-1, None), False, True),
        ((-1, 1), (-1, 3), True, True),
        ((60, None), (-1, 9), False, True),
    ],
)
def test_a_run_goes_on_only_if_its_bounds_may_lengthen_the_run(before, now, is_longer, differs):
    earlier, later = (
        compose(
            "sft",
            [
                f"trainer.sft.max_steps={steps}",
                *([f"trainer.sft.max_epochs={epochs}"] * (epochs is not None)),
            ],
        )
        for steps, epochs in (before, now)
    )
    run = SimpleNamespace(kind="sft", info={"config": save(earlier)})
    assert earlier_runs._adds_steps(run, later) == is_longer
    changes = earlier_runs._changes(save(earlier), save(later))
    assert any("max_epochs" in change for change in changes) == differs
