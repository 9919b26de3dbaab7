"""What one registration gives a kind of job: a command, checked settings, a run, its alarms, a chart, a glossary entry."""

import os
import subprocess
import sys
from pathlib import Path

import forks
import pytest
from smoke_jobs import UNEXPORTED, run_known

from aligner_lib.config import glossary
from aligner_lib.config.compose import compose
from aligner_lib.config.kinds import kinds
from aligner_lib.errors import ConfigError
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial import Workspace
from cluster import Resources
from widgets.runs.feed import open_feed

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setenv("ALIGNER_KINDS", "toy_kind")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parents[1])]))
    monkeypatch.syspath_prepend(HERE)


def aligner(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "aligner_lib", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_from_its_command_to_the_monitor_s_chart(tmp_path):
    done = aligner("toy", "--run", tmp_path / "run", "trainer.toy.max_steps=4")
    assert done.returncode == 0, done.stderr
    run = RunFolder(tmp_path / "run")
    assert (run.kind, run.status) == ("toy", "finished")
    assert run.series("toy/distance") == ([1, 2, 3, 4], [0.5, 0.25, 0.125, 0.0625])
    logged = {name for record in run.metrics() for name in record} - {"step", "time"}
    assert logged == kinds()["toy"].metric_names()
    (chart,) = open_feed(run, None, "step", None, 0).charts
    assert (chart.title, chart.unit, chart.hint) == ("How far", "miles", "Halves with every step.")


def test_a_run_goes_on_and_its_own_alarm_sounds(tmp_path):
    settings = UNEXPORTED | {
        "exp_manager.explicit_log_dir": f"'{tmp_path / 'run'}'",
        "trainer.toy.pull": 0.01,
    }
    for steps in (2, 5):
        whole = settings | {"trainer.toy.max_steps": steps}
        overrides = [f"{key}={value}" for key, value in whole.items()]
        forks.run(run_known, "toy", overrides, "toy_kind", log=tmp_path / "log")
    run = RunFolder(tmp_path / "run")
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3, 4, 5]
    assert [(alarm["name"], alarm["step"]) for alarm in run.alarms()] == [("stuck", 3)]


def test_its_settings_are_composed_and_checked():
    assert compose("toy", ["trainer.toy.pull=1"]).trainer.toy.pull == 1
    with pytest.raises(ConfigError, match=r"trainer\.toy\.pull=2.*: the value must be between 0 and 1"):
        compose("toy", ["trainer.toy.pull=2"])
    with pytest.raises(ConfigError, match=r"did you mean trainer\.toy\.pull"):
        compose("toy", ["trainer.toy.pulll=1"])


def test_help_workspace_and_glossary_know_it(tmp_path):
    assert "A number that is pulled to 1." in aligner("--help").stdout
    printed, two = Workspace(tmp_path, "smoke", where="print"), Resources(nodes=2, tasks_per_node=2)
    plan = printed.submit("toy", resources=two)
    assert " toy " in plan.text and "trainer.num_nodes=2" in plan.text
    assert "## Toy\nOf `toy`." in glossary.glossary()


def test_two_registrations_of_one_name_are_told(monkeypatch):
    monkeypatch.setenv("ALIGNER_KINDS", "toy_kind,toy_kind")
    with pytest.raises(ConfigError, match="two kinds of job have the name 'toy': rename either"):
        kinds()


def test_a_registration_that_is_none_ends_the_command_with_a_sentence():
    command = [sys.executable, "-m", "aligner_lib", "runs"]
    done = subprocess.run(
        command, env=os.environ | {"ALIGNER_KINDS": "nowhere"}, capture_output=True, text=True
    )
    words = "error: ALIGNER_KINDS names nowhere, which gives no kind of job"
    assert done.returncode == 2 and done.stderr.startswith(words)
    assert "Traceback" not in done.stderr
