"""`aligner share`: one page of runs, whose content is that of the run folders without what is private."""

import base64
import getpass
import gzip
import json
import os
import re
import socket
from pathlib import Path

import pytest
from run_folders import write_run
from typer.testing import CliRunner

from aligner_lib.cli.main import app
from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import RunFolder
from widgets.frontend.wire import unpack
from widgets.recordings.replay import Recording
from widgets.runs.series import AXES
from widgets.share.page import write_page

MARKUP = "</script><img src=x onerror=alert(1)> & <b>bold</b>"


def a_run(
    folder: Path, response: str = "Cats purr.", status: str = "finished", split: str = "train", **info
) -> Path:
    """A run folder of two steps with two responses each."""
    config = {"trainer": {"precision": "32"}, "exp_manager": {"explicit_log_dir": str(folder)}}
    about = {"name": "mine", "kind": "ppo", "status": status, "host": socket.gethostname(), "config": config}
    rollouts = [
        {"step": step, "split": split, "prompt": f"User: Why {number}?\n\nAssistant:", "length": 2}
        | {"response": response, "reward": float(number), "finished": True, "tokens": ["a", "b"]}
        | {"token_kl": [0.123456789, -1.0]}
        for step in (1, 2)
        for number in (0, 1)
    ]
    return write_run(folder, {"train_rollouts/rewards": [0.5, 1.0]}, rollouts, **about | info)


DATA = re.compile(r'<script type="text/plain" id="content">([\w+/=]*)</script>')


def content_of(page: Path) -> dict:
    packed = base64.b64decode(DATA.search(page.read_text(encoding="utf-8"))[1])
    return json.loads(gzip.decompress(packed))


def test_the_page_has_figures_responses_and_settings_of_the_run(tmp_path):
    page = write_page(a_run(tmp_path / "run"), tmp_path / "out" / "run.html")
    content = content_of(page)
    assert set(content["axes"]) == set(AXES)
    head, points = unpack(base64.b64decode(content["axes"]["step"]))
    assert [run["name"] for run in head["runs"]] == ["mine"]
    reward = next(p for line, p in zip(head["lines"], points) if line["key"] == "0/0/0")
    assert reward[:, :2].tolist() == [[1.0, 0.5], [2.0, 1.0]]
    [rows] = content["rows"]
    assert [row["train_rollouts/rewards"] for row in rows["rows"]] == [0.5, 1.0]
    [texts] = content["texts"]
    assert [prompt["turns"][-1]["text"] for prompt in texts["prompts"]] == ["Why 0?", "Why 1?"]
    places = [(record["step"], record["prompt"], record["first"]) for record in texts["records"]]
    assert places == [(1, 0, 0), (1, 1, 1), (2, 0, 0), (2, 1, 1)]
    assert texts["records"][0]["token_kl"] == [0.1235, -1.0]
    assert "<th>trainer.precision</th><td>32</td>" in page.read_text()


def test_a_page_without_some_of_the_responses_says_so(tmp_path, monkeypatch):
    run = a_run(tmp_path / "run")
    for responses, note in (
        (2, ""),
        (1, "This page has 2 of the run's 4 responses: the first of each step."),
    ):
        monkeypatch.setattr("widgets.share.page.RESPONSES_A_STEP", responses)
        [texts] = content_of(write_page(run, tmp_path / "run.html"))["texts"]
        assert texts["note"] == note


@pytest.mark.parametrize("opened", [Path, Recording])
def test_nothing_private_is_in_the_page(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/Jane Doe")
    home = Path.home()
    message = f"ValueError: {tmp_path}/data/mine.jsonl:3 is empty; see '{home}/notes' and https://a.org/b/c"
    message += f" in {home}, file://{home}/notes, {home.as_uri()}"
    message += f", sqlite:///{tmp_path}/a.db or file://machine-7/srv/mine"
    message += (
        f"; the critic at gpu-17.corp:5567 lost {socket.gethostname()}, and http://judge-3:8000/v1 is silent"
    )
    message += ", as are http://[fd00::7]:8000 and http://judge-4:8000, judge-5, judge-8 and judge-6.corp:8000, and [fd00::8]"
    urls = ["http://[fd00::7]:8000/v1", "http://judge-4:8000", "http://Jane:pa/ss@judge-8/v1"]
    message += "; gpu1 read file.jsonl for llama3 on cuda, and http://Jane:pass@Jane@judge-3:8000/v1 refused"
    kept = ["qwen:7b", "12:30", "cuda:0", "llama3:8", "file.jsonl:3", "more.jsonl:32"]
    config = {
        "critic": {"ip": "gpu-17.corp", "port": 5567},
        "args": {"url": "http://judge-3:8000/v1", "urls": urls, "host": "judge-6.corp"},
        "judges": ["judge-5:8000", "[fd00::8]:8000", *kept],
        "pool": {"all": "judge-6:8000,judge-7:8000", "hosts": ["gpu1", "gpu2"]},
    }
    page = write_page(opened(a_run(tmp_path / "run", message=message, config=config)), tmp_path / "run.html")
    shown = DATA.sub("", page.read_text()) + json.dumps(content_of(page), ensure_ascii=False)
    assert "…/mine.jsonl:3 is empty" in shown and "https://a.org/b/c" in shown
    of_machine = (str(tmp_path), socket.gethostname(), f"/{getpass.getuser()}/")
    assert "the critic at …:5567 lost …, and http://…:8000/v1 is silent" in shown
    for private in ("Jane", "machine-7", "srv", "gpu-17", "gpu1", "gpu2", "judge-", "fd00", *of_machine):
        assert private not in shown, private
    for public in ("… read file.jsonl for llama3 on cuda, and http://…:8000/v1 refused", *kept):
        assert public in shown, public


def test_half_of_a_surrogate_pair_in_a_text_is_shared(tmp_path):
    run = a_run(tmp_path / "run", "Great \ud83d", message="Bad \ud83d")
    page = write_page(run, tmp_path / "run.html")
    assert r"Bad \ud83d" in page.read_text(encoding="utf-8")
    assert content_of(page)["texts"][0]["records"][0]["response"] == "Great \ud83d"


def test_texts_are_texts_and_never_markup(tmp_path):
    page = write_page(a_run(tmp_path / "run", MARKUP, message=MARKUP), tmp_path / "run.html")
    assert "<img" not in page.read_text() and page.read_text().count("</script>") == 2
    assert content_of(page)["texts"][0]["records"][0]["response"] == MARKUP


def test_a_run_that_goes_on_is_shown_as_it_was(tmp_path):
    run = a_run(tmp_path / "run", status="running", pid=os.getpid())
    page = write_page(run, tmp_path / "run.html")
    head, _ = unpack(base64.b64decode(content_of(page)["axes"]["step"]))
    assert head["runs"][0]["status"] == "stopped" and not head["can_stop"] and not head["players"]
    shown = page.read_text()
    assert "<th>status</th><td>stopped</td>" in shown and "the run was not over when it was recorded" in shown


def test_an_evaluation_has_a_page(tmp_path):
    page = write_page(a_run(tmp_path / "run", split="evaluation", kind="evaluate"), tmp_path / "run.html")
    assert {record["split"] for record in content_of(page)["texts"][0]["records"]} == {"evaluation"}


def test_a_page_of_two_runs_of_the_tutorial_is_small_and_loads_nothing_from_elsewhere(tmp_path):
    page = write_page([Recording("hunt-01"), Recording("hunt-02")], tmp_path / "runs.html")
    assert page.stat().st_size < 5e5
    assert not re.search(r'(?:src|href)="|url\((?!#)|@import|fetch\(', page.read_text())


def test_runs_of_one_name_are_numbered_and_their_folders_hidden(tmp_path):
    page = write_page([a_run(tmp_path / seat) for seat in ("ada", "grace")], tmp_path / "runs.html")
    assert [text["name"] for text in content_of(page)["texts"]] == ["mine 1", "mine 2"]
    assert "<h1>mine 1, mine 2</h1>" in page.read_text() and "grace" not in page.read_text()


def test_the_command_writes_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["share", str(a_run(tmp_path / "run")), "--out", "page.html"])
    assert done.exit_code == 0 and "page.html" in done.output
    assert content_of(tmp_path / "page.html")["texts"][0]["name"] == "mine"


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no run yet"):
        write_page(RunFolder(tmp_path / "nothing"), tmp_path / "run.html")
