"""What one registration gives a kind of job: a command, checked settings, a run, its alarms, a chart, a glossary entry."""

import sys
from pathlib import Path

import forks
import pytest

from aligner_lib.config import glossary
from aligner_lib.config.compose import compose, notices
from aligner_lib.config.kinds import kinds
from aligner_lib.errors import ConfigError
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial import Workspace
from cluster import Resources
from widgets.runs.feed import open_feed

HERE = Path(__file__).parent
NO_EXPORTER = "exp_manager.create_tensorboard_logger=False"


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setenv("ALIGNER_KINDS", "toy_kind")
    monkeypatch.syspath_prepend(HERE)


def run_command(words: list[str]) -> None:
    from aligner_lib.__main__ import run

    sys.argv = ["aligner", *words]
    run()


def aligner(log: Path, *words: object, kinds: str = "toy_kind") -> tuple[int, str]:
    """Exit code and output of a command."""
    environment = {"ALIGNER_KINDS": kinds}
    process = forks.start(run_command, [str(word) for word in words], log=log, environment=environment)
    process.join(forks.BOUND_S)
    return process.exitcode, log.read_text()


def test_from_its_command_to_the_monitor_s_chart_and_on_to_its_own_alarm(tmp_path):
    log, command = tmp_path / "log", ("toy", "--run", tmp_path / "run", NO_EXPORTER)
    code, output = aligner(log, *command, "trainer.toy.max_steps=3")
    assert code == 0, output
    run = RunFolder(tmp_path / "run")
    assert (run.kind, run.status) == ("toy", "finished")
    assert run.series("toy/distance") == ([1, 2, 3], [0.5, 0.25, 0.125])
    logged = {name for record in run.metrics() for name in record} - {"step", "time"}
    assert logged == kinds()["toy"].metric_names()
    (chart,) = open_feed(run, None, "step", None, 0).charts
    assert (chart.title, chart.unit, chart.hint) == ("How far", "miles", "Halves with every step.")
    code, output = aligner(log, *command, "trainer.toy.max_steps=4")
    assert code == 0, output
    assert run.series("toy/distance")[1][-1] == 0.0625, "the run goes on"
    assert run.alarms() == []
    slow = tmp_path / "slow"
    code, output = aligner(log, "toy", "--run", slow, NO_EXPORTER, "trainer.toy.pull=0.01")
    assert code == 0, output
    assert RunFolder(slow).series("toy/distance")[0] == [*range(1, 11)], "the kind's own number of steps"
    assert [(alarm["name"], alarm["step"]) for alarm in RunFolder(slow).alarms()] == [("stuck", 3)]


def test_its_settings_are_composed_and_checked():
    assert compose("toy", ["trainer.toy.pull=1"]).trainer.toy.pull == 1
    with pytest.raises(ConfigError, match=r"trainer\.toy\.pull=2.*: the value must be between 0 and 1"):
        compose("toy", ["trainer.toy.pull=2"])
    with pytest.raises(ConfigError, match=r"did you mean trainer\.toy\.pull"):
        compose("toy", ["trainer.toy.pulll=1"])
    (notice,) = notices("toy", compose("toy", profile="smoke"), "smoke")
    assert notice == "profile smoke has no section for toy, so the settings keep the kind's own defaults."


def test_help_workspace_and_glossary_know_it(tmp_path):
    assert "A number that is pulled to 1." in aligner(tmp_path / "log", "--help")[1]
    printed, two = Workspace(tmp_path, "smoke", where="print"), Resources(nodes=2, tasks_per_node=2)
    plan = printed.submit("toy", resources=two)
    assert " toy " in plan.text and "trainer.num_nodes=2" in plan.text
    assert "## Toy\nOf `toy`." in glossary.glossary()


def test_two_registrations_of_one_name_are_told(monkeypatch):
    monkeypatch.setenv("ALIGNER_KINDS", "toy_kind,toy_kind")
    with pytest.raises(ConfigError, match="two kinds of job have the name 'toy': rename either"):
        kinds()


def test_a_registration_that_is_none_ends_the_command_with_a_sentence(tmp_path):
    code, output = aligner(tmp_path / "log", "runs", kinds="nowhere")
    assert code == 2
    assert output.startswith("error: ALIGNER_KINDS names nowhere, which gives no kind of job")
