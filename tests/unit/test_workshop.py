"""For instructors: the check of a seat, and slides."""

import json
import re
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import nbformat
import pytest
from typer.testing import CliRunner

from aligner_lib.cli import preflight
from aligner_lib.cli.main import app
from aligner_lib.errors import UserError
from aligner_lib.models.fetch import fetch
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.tutorial import Workspace
from cluster.findings import Finding
from cluster.processes import user_name
from widgets.classroom.classroom import Followed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def quick(monkeypatch):
    """Without a kernel and a training: the trials that take seconds."""
    monkeypatch.setattr(preflight, "_kernel", lambda: "starts")
    monkeypatch.setattr(preflight, "_train", lambda: "2 steps")
    enough = [Finding("memory", True, "8 GiB"), Finding("Slurm", False, "none", needed=False)]
    monkeypatch.setattr(preflight.doctor, "examine", lambda hub: iter(enough))


def test_a_seat_that_is_ready_is_one_line_that_the_classroom_shows(quick, smoke, tmp_path):
    result = preflight.preflight("smoke", tmp_path, name="Ada")
    line = preflight.as_line(result)
    assert "\n" not in line and json.loads(line) == result
    assert result["ready"] and result["failed"] == [] and "Slurm" not in result["checks"]
    (row,) = Followed(tmp_path).poll()
    assert (row["seat"], row["name"], row["preflight"]) == (result["seat"], "Ada", "ok")
    assert row["last"] == pytest.approx(result["time"], abs=2)
    assert re.fullmatch("seat-[0-9a-f]{6}", row["seat"])


def test_a_seat_has_a_name_where_the_system_knows_no_name_of_the_user(monkeypatch):
    monkeypatch.setattr("getpass.getuser", Mock(side_effect=KeyError("getpwuid(): uid not found: 12345")))
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert user_name() == "12345" and re.fullmatch("seat-[0-9a-f]{6}", preflight.seat_name())


def test_missing_parts_are_named(quick, tmp_path, monkeypatch):
    def fails() -> str:
        raise RuntimeError("no such kernel\nand a traceback")

    disk = Finding("disk", False, "1 GiB", needed=False)
    monkeypatch.setattr(preflight, "_kernel", fails)
    monkeypatch.setattr(preflight.doctor, "examine", lambda hub: iter([disk]))
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path / "empty"))
    result = preflight.preflight("smoke", tmp_path, seat="seat-7")
    assert result["failed"] == ["disk", "kernel", "model"] and not result["ready"]
    assert result["checks"]["kernel"] == "RuntimeError: no such kernel"
    assert "--bundle" in result["checks"]["model"]
    (row,) = Followed(tmp_path).poll()
    assert (row["seat"], row["name"], row["preflight"]) == ("seat-7", "", "disk, kernel, model")


def test_a_model_that_the_training_makes_is_not_missing(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path))
    monkeypatch.setattr(preflight, "_train", lambda: str(fetch("smoke")))
    assert preflight.preflight("smoke")["ready"]


@pytest.mark.parametrize("name", ["file", "not mounted"])
def test_a_shared_folder_that_is_none_is_named_and_never_made(quick, smoke, tmp_path, name):
    (tmp_path / "file").touch()
    result = preflight.preflight("smoke", tmp_path / name)
    assert result["failed"] == ["shared folder"] and "mount the room's" in result["checks"]["shared folder"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_seat_takes_the_place_of_another(quick, smoke, tmp_path, monkeypatch):
    for number in "12":  # two laptops of one image
        (tmp_path / number).write_text(number)
        monkeypatch.setattr(preflight, "MACHINE_ID", tmp_path / number)
        assert preflight.preflight("smoke", tmp_path, name="Ada")["ready"]
    seats = list(tmp_path.glob("seat-*"))
    assert len(seats) == 2
    result = preflight.preflight("smoke", tmp_path, seat=seats[0].name, name="Grace")
    assert result["failed"] == ["shared folder"] and "belongs to Ada" in result["checks"]["shared folder"]
    assert json.loads((seats[0] / "participant.json").read_text()) == {"name": "Ada"}
    with pytest.raises(UserError, match="without a slash"):
        preflight.preflight("smoke", tmp_path, seat=f"../{seats[0].name}")


@pytest.mark.parametrize(("seconds", "note"), [(0, ""), (180, "180 s ahead of"), (-180, "180 s behind")])
def test_a_clock_that_differs_from_the_shared_folder_s_is_named(tmp_path, monkeypatch, seconds, note):
    now = time.time
    monkeypatch.setattr(preflight.time, "time", lambda: now() + seconds)
    finding = preflight._shared(tmp_path, "seat-1", None)
    assert ("clock is" in finding) == bool(note) and note in finding


def test_the_printed_command_links_the_default_workspace_to_the_seat_again_and_again(
    quick, smoke, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for room in ("the morning's", "the evening's"):
        (tmp_path / room).mkdir()
        arguments = ["workshop", "preflight", "--profile", "smoke", "--shared", room, "--seat", "seat-1"]
        output = CliRunner().invoke(app, arguments).output
        subprocess.run(output.partition("for the room's table: ")[2], shell=True, check=True)
        assert Path("runs/tutorial").resolve() == tmp_path / room / "seat-1"
    assert "for the room's table" not in CliRunner().invoke(app, arguments).output


def test_a_kernel_starts_for_real():
    assert "has the widgets" in preflight._kernel()


def test_the_trial_training_tells_the_steps_of_its_run(smoke, monkeypatch):
    """Without the training, which tests/jobs show."""

    def submit(lab, kind, **settings):
        with RunWriter(lab.run(kind).path, kind=kind, config={}, seed=1, hashes={}, max_steps=2) as run:
            run.start(0)
            run.log(settings["trainer.sft.max_steps"], {"train/loss": 1.0})
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(Workspace, "submit", submit)
    assert preflight._train() == "2 steps of smoke's SFT"


def test_each_heading_begins_a_slide_of_nbconvert():
    from nbconvert import SlidesExporter

    notebook = ROOT / "notebooks" / "03_sft.ipynb"
    cells = nbformat.read(notebook, as_version=4).cells
    headings = [cell for cell in cells if cell.cell_type == "markdown" and cell.source.startswith("#")]
    page, _ = SlidesExporter(exclude_input=True).from_filename(str(notebook))
    assert len(headings) > 5
    assert page.count("<section><section>") == len(headings)


def test_the_cards_have_the_recorded_run_times():
    page = (ROOT / "docs" / "workshop.md").read_text()
    recorded = json.loads((ROOT / "notebooks" / "recorded.json").read_text())["laptop"]["seconds"]
    cards = dict(re.findall(r"^\| (\d\d\w?) [\w ]+ \| (\d+) s \|", page, re.MULTILINE))
    assert cards == {name.partition("_")[0]: f"{seconds:.0f}" for name, seconds in recorded.items()}
