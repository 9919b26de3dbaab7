"""`aligner profile`: the trace and the table of a step of real jobs on the smoke model."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import forks
import pytest

from aligner_lib.cli.profile import check_trace, settings_of_profile, show_profile
from aligner_lib.config.kinds import kinds
from aligner_lib.errors import UserError

SPANS = {"forward", "forward_backward", "optimizer_step", "values", "rewards", "critic_train"}
"""Spans of engines and judges, inside of the trainers' timers."""
OF_THE_LOOP = {"timers/processor_wait", "timers/validation_time"}


def profile_smoke_step(kind: str, settings: list[str], out: Path) -> None:
    from aligner_lib.jobs.step_profile import profile_step

    config = settings_of_profile(kind, settings, "smoke", steps=2)
    profile = profile_step(kind, config, "smoke", warm_up=1, out=out)
    out.with_name("profile.json").write_text(json.dumps(asdict(profile)))
    sys.stdout.write("\n--- table ---\n")
    show_profile(kind, profile, out)


def test_a_profile_has_the_trainers_timers_and_the_spans_inside_them(jobs, tmp_path):
    settings, log = jobs.settings("ppo", "profile", exp_manager__explicit_log_dir="null"), tmp_path / "log"
    (tmp_path / "temporary").mkdir()
    environment = {"TMPDIR": str(tmp_path / "temporary")}
    trace = tmp_path / "trace.json"
    job = forks.start(profile_smoke_step, "ppo", settings, trace, log=log, environment=environment)
    forks.finish(job, log)
    profile = json.loads((tmp_path / "profile.json").read_text())
    left = [path.name for path in (tmp_path / "temporary").iterdir()]
    assert not [name for name in left if name.startswith("aligner-profile")], "the run folder"
    assert_rows_are_the_timers(profile)
    assert_every_pass_has_its_bare_pass(profile["stages"])
    assert_the_trace_has_the_stages(json.loads(trace.read_text()), profile["stages"])
    assert_the_table_has_all(profile, log.read_text().partition("--- table ---")[2])


def assert_rows_are_the_timers(profile: dict) -> None:
    rows = {stage["name"] for stage in profile["stages"]}
    declared = {name for group in kinds()["ppo"].metrics for metric in group.metrics for name in metric.names}
    timers = {name for name in declared if name.startswith("timers/")} - OF_THE_LOOP
    assert {f"timers/{name}" for name in rows - SPANS - {"rest"}} == timers
    step, *stages = profile["stages"]
    assert (step["name"], step["depth"], profile["step"]) == ("step_time", 0, 2)
    whole = sum(stage["seconds"] for stage in stages if stage["depth"] == 1)  # the rest is one of them
    assert whole == pytest.approx(step["seconds"])
    assert all(stage["seconds"] >= 0 for stage in stages)


def assert_every_pass_has_its_bare_pass(stages: list[dict]) -> None:
    tokens = {stage["name"]: stage["tokens"] for stage in stages if stage["bare_seconds"] is not None}
    assert all(stage["bare_seconds"] > 0 for stage in stages if stage["name"] in tokens)
    assert all(count > 0 for count in tokens.values())
    of_rollout = {"rollout_time", "generate", "values", "rewards", "forward", "logprobs", "init_logprobs"}
    of_training = {"train_time", "critic_train", "forward_backward"}
    assert tokens.keys() == {"step_time"} | of_rollout | of_training
    assert tokens["logprobs"] == tokens["init_logprobs"]  # of the same responses


def assert_the_trace_has_the_stages(trace: dict, stages: list[dict]) -> None:
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert complete and all({"name", "ts", "dur", "pid", "tid"} <= event.keys() for event in complete)
    [step] = [event for event in complete if event["name"] == "step_time"]
    names = {stage["name"] for stage in stages} - {"step_time", "rest"}
    spans = [e for e in complete if e["name"] in names and e.get("cat") == "user_annotation"]
    assert {event["name"] for event in spans} == names
    for event in spans:
        assert event["tid"] == step["tid"]
        assert step["ts"] <= event["ts"] and event["ts"] + event["dur"] <= step["ts"] + step["dur"]
    of_step = {stage["name"] for stage in stages if stage["depth"] == 1}
    assert 0 < sum(event["dur"] for event in spans if event["name"] in of_step) <= step["dur"]


def assert_the_table_has_all(profile: dict, table: str) -> None:
    assert "ppo, step 2" in table and "ui.perfetto.dev" in table
    assert all(stage["name"] in table for stage in profile["stages"])
    operators = profile["operators"]
    assert len(operators) == 10
    assert operators == sorted(operators, key=lambda operator: -operator["seconds"])
    assert 0 < sum(operator["share"] for operator in operators) <= 1


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_a_folder_with_a_run_is_refused_and_stays_as_it_is(tmp_path):
    from aligner_lib.jobs.step_profile import profile_step

    (tmp_path / "run.json").write_text("{}")
    config = settings_of_profile("sft", [f"exp_manager.explicit_log_dir='{tmp_path}'"], "smoke", steps=2)
    with pytest.raises(UserError, match=r"already holds a run.*name another folder with --run"):
        profile_step("sft", config, "smoke", warm_up=1, out=tmp_path / "trace.json")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_several_processes_and_a_trace_that_no_viewer_would_open_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"trainer\.devices=2: a profile records a single process"):
        two = ["trainer.devices=2", "model.tensor_model_parallel_size=2"]
        settings_of_profile("sft", two, "smoke", steps=2)
    with pytest.raises(UserError, match=r"must end in \.json or \.json\.gz"):
        check_trace(tmp_path / "trace.txt")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        check_trace(tmp_path / "folder.json")
