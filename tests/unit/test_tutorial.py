"""The tutorial's runner on notebooks made here: parameters, results, failures, and a report that opens offline."""

import errno
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from pages import external_references

from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.trainers.loop import stop_signals
from aligner_lib.tutorial.execution import run_notebooks
from aligner_lib.tutorial.report.summary import summary_section
from cluster import State
from cluster.record import write_json

PARAMETERS = 'profile = "laptop"\nout = "."\nsteps = 3\nseed = 7\nbreaks = False\njudge_token = ""'
TOKEN = "of-a-judge"
ENDS = """
import atexit, pathlib, weakref
atexit.register(pathlib.Path(out, 'ended').touch)
left = pathlib.Path(out, 'left')
left.touch()
owner = lambda: None
weakref.finalize(owner, left.unlink)
file = pathlib.Path(out, 'open').open('w')
_ = file.write('written')
"""
RESULT = "import json, pathlib\n(pathlib.Path(out) / 'results' / '{}.json').write_text(json.dumps({}))"


def write_notebook(path: Path, *cells) -> None:
    parameters = new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    notebook = new_notebook(cells=[cells[0], parameters, *cells[1:]])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("notebooks")
    text = "# Start\nThe ratio $r_\\theta$ and\n\n$$L = -\\log\\sigma(r_c - r_r)$$\n\n[next](01_next.ipynb)"
    write_notebook(
        folder / "00_start.ipynb",
        new_markdown_cell(text),
        new_code_cell("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()"),
        new_code_cell("import plotly.graph_objects as go\ngo.Figure(go.Scatter(y=[1, 2, 3]))"),
        new_code_cell("import ipywidgets\nipywidgets.IntSlider(value=41)"),
        new_code_cell(ENDS),
        new_code_cell(RESULT.format("00", "{'sft': {'before': 3.5, 'steps': steps, 'profile': profile}}")),
    )
    write_notebook(
        folder / "01_next.ipynb",
        new_markdown_cell("# Next"),
        new_code_cell(RESULT.format("01", "{'sft': {'after': 2.5}}")),
        new_code_cell("if breaks:\n    raise RuntimeError('the dam has broken')"),
        new_code_cell("import os\nsecret = judge_token or os.environ['JUDGE_KEY']"),
        new_code_cell(
            "executed = open(os.path.join(out, 'notebooks', '01_next.ipynb')).read()\n"
            + RESULT.format("01", "{'ended': len(secret) == 10 and secret not in executed}")
        ),
    )
    write_notebook(folder / "02_last.ipynb", new_markdown_cell("# Last"), new_code_cell("last = 1"))
    return folder


@pytest.fixture(scope="module")
def finished(notebooks, tmp_path_factory) -> Path:
    """The output of the first two notebooks, beside two runs, one of them with figures."""
    out = tmp_path_factory.mktemp("out")
    for name, records in (("sft", '{"step": 1, "time": 1.0, "train/loss": 2.0}\n'), ("waiting", "")):
        run = out / "runs" / name
        run.mkdir(parents=True)
        (run / "run.json").write_text(f'{{"name": "{name}", "kind": "sft", "status": "finished"}}')
        (run / "metrics.jsonl").write_text(records)

    def write_page(run, path):
        path.parent.mkdir(exist_ok=True)
        path.write_text(run.name)

    chosen = run_notebooks.choose(notebooks, "00,1")
    given = run_notebooks.parse_parameters(["steps=5", f"judge_token={TOKEN}"])
    assert run_notebooks.run(chosen, "smoke", out, given, write_page)
    return out


@pytest.mark.notebooks
def test_summary_and_report_have_what_the_notebooks_measured_and_showed(finished, notebooks):
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["sft"] == {"before": 3.5, "steps": 5, "profile": "smoke"} and summary["ended"] is True
    assert summary["profile"] == "smoke" and "failed" not in summary
    parameters = {"steps": 5, "seed": 7, "breaks": False}
    assert summary["parameters"] == {"00_start": parameters, "01_next": parameters}
    assert set(summary["seconds"]) == set(summary["memory_gib"]) == {"00_start", "01_next"}
    files = [path.read_text() for path in finished.rglob("*") if path.is_file()]
    assert not any(TOKEN in text for text in files), "people share the folder"
    assert min(summary["memory_gib"].values()) > 0.02  # a kernel's, a process below this one
    page = (finished / "report.html").read_text()
    assert external_references(page) == []
    parts = ["data:image/png;base64,", "Plotly.newPlot", "plotly.js v", "IntSlider(value=41", "#01_next"]
    assert [part for part in (*parts, 'id="01_next"', "profile smoke · seed 7 · ") if part not in page] == []
    assert [file.read_text() for file in (finished / "pages").iterdir()] == ["sft"]
    assert '<a href="pages/sft.html">sft</a>' in page
    assert page.count("<math") == 2 and "$$" not in page.split("</script>")[-1]
    executed = nbformat.read(finished / "notebooks" / "00_start.ipynb", as_version=4)
    source = nbformat.read(notebooks / "00_start.ipynb", as_version=4)
    assert (finished / "ended").exists() and not (finished / "left").exists(), "a kernel's exit functions run"
    assert (finished / "open").read_text() == "written"
    has_outputs = [any(cell.get("outputs") for cell in notebook.cells) for notebook in (executed, source)]
    assert has_outputs == [True, False], "the executed notebook is kept, and its source is not touched"


@pytest.mark.notebooks
def test_a_failing_cell_ends_it_with_one_message_and_a_report_of_what_ran(
    notebooks, tmp_path, capsys, monkeypatch
):
    chosen = run_notebooks.choose(notebooks, "01,02")
    assert not run_notebooks.run(chosen, "smoke", tmp_path, {"breaks": True})
    output = capsys.readouterr().out
    [line] = [line for line in output.splitlines() if "stopped in" in line]
    assert "01_next" in line and "RuntimeError: the dam has broken" in line and "if breaks:" in line
    assert "Traceback" not in output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["sft"] == {"after": 2.5} and "dam" in summary["failed"]
    assert set(summary["seconds"]) == {"01_next"}  # 02 did not start
    assert "the dam has broken" in (tmp_path / "report.html").read_text()
    # put right, it goes on in the same folder, without the figures of the first attempt
    monkeypatch.setattr("papermill.execute_notebook", lambda *_, **__: None)
    assert run_notebooks.run(chosen[:1], "smoke", tmp_path, {"breaks": False})
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert "failed" not in summary and "sft" not in summary


DIED, SILENT = "Kernel died before replying to kernel_info", "Kernel didn't respond in 120 seconds"


@pytest.mark.parametrize(
    ("message", "deaths", "starts"),
    [(DIED, 1, 2), (SILENT, 1, 2), (DIED, 2, 2), ("Kernel died", 1, 1)],
)
def test_a_kernel_that_dies_at_its_start_is_started_once_more(
    tmp_path, monkeypatch, capsys, message, deaths, starts
):
    """Its port may be taken. A kernel that dies later is a failure like any other."""
    started = []

    def execute(*_, **__):
        started.append(None)
        if len(started) <= deaths:
            raise RuntimeError(message)

    monkeypatch.setattr("papermill.execute_notebook", execute)
    write_notebook(tmp_path / "01_one.ipynb", new_code_cell("1"))
    passes = run_notebooks.run(run_notebooks.choose(tmp_path), "smoke", tmp_path / "out", {})
    assert passes is (deaths < starts) and len(started) == starts
    assert passes or f"stopped in notebook 01_one: RuntimeError: {message}" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").exists()


def test_after_a_failure_jobs_without_a_run_are_cancelled_and_other_unfinished_jobs_stop(
    tmp_path, monkeypatch
):
    states = {"starts": State.RUNNING, "queues/again": State.PENDING, "ended": State.FINISHED}
    cancelled = []

    def latest_job(run):
        name = run.path.relative_to(tmp_path / "runs").as_posix()
        return SimpleNamespace(state=states[name], cancel=lambda: cancelled.append(name))

    monkeypatch.setattr(RunFolder, "latest_job", latest_job)
    for name in states:
        (tmp_path / "runs" / name / "job").mkdir(parents=True)
        write_json(tmp_path / "runs" / name / "job" / "job.json", {})
    for name in ("queues/again", "ended"):
        write_json(tmp_path / "runs" / name / "run.json", {"status": "stopped"})
    run_notebooks._stop_runs(tmp_path)
    assert cancelled == ["starts"]
    assert [path.parts[-4:-2] for path in tmp_path.glob("runs/**/control/stop")] == [("queues", "again")]


def test_notebooks_are_chosen_by_number(tmp_path):
    for name in ("04_one", "04b_between", "06_last", "09_beside", "10_two_digits"):
        (tmp_path / f"{name}.ipynb").touch()
    for numbers, names in (
        ((), ["04_one", "04b_between", "06_last"]),
        (("4b, 10",), ["04b_between", "10_two_digits"]),
        (("9",), ["09_beside"]),
    ):
        assert [notebook.name for notebook in run_notebooks.choose(tmp_path, *numbers)] == names
    for numbers, words in (("07", "04, 04b, 06"), ("", "--only '' names no notebook: choose from 04")):
        with pytest.raises(UserError, match=words):
            run_notebooks.choose(tmp_path, numbers)


def test_an_unknown_parameter_is_refused_with_the_nearest(notebooks, tmp_path):
    for wrong, words in (({"stpes": 3}, "steps"), ({"profile": "gpu"}, "--profile")):
        with pytest.raises(UserError, match=words):
            run_notebooks.run(run_notebooks.choose(notebooks), "smoke", tmp_path / "o", wrong)
    assert not (tmp_path / "o").exists()


def test_a_folder_that_cannot_be_written_names_the_option(notebooks, tmp_path, monkeypatch):
    read_only = Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))
    monkeypatch.setattr(Path, "mkdir", read_only)
    words = r"/o can't be written \(Read-only file system\): choose another: --out DIR"
    with pytest.raises(UserError, match=words):
        run_notebooks.run(run_notebooks.choose(notebooks), "smoke", tmp_path / "o", {})


def test_a_folder_of_another_profile_or_seed_is_refused_before_anything_is_written(notebooks, tmp_path):
    earlier = {"00_start": {"seed": 7}, "01_next": {"seed": 8}}
    of_profile = r"--profile smoke: .* has results with the profile laptop, .* another folder with --out"
    of_seed = (
        r"01_next would run with seed=5, but .* has results of 00_start with seed=7, .* give -p seed=7, or"
    )
    for file, content, words in (
        ("a/runs/sft/run.json", {"profile": "laptop"}, of_profile),
        ("b/summary.json", {"profile": "laptop", "parameters": earlier}, of_profile),
        ("c/summary.json", {"profile": "smoke", "parameters": earlier}, of_seed),
    ):
        (tmp_path / file).parent.mkdir(parents=True)
        write_json(tmp_path / file, content)
        with pytest.raises(UserError, match=words):
            run_notebooks.run(run_notebooks.choose(notebooks, "01"), "smoke", tmp_path / file[0], {"seed": 5})
    assert {path.name for path in tmp_path.glob("?/*")} == {"runs", "summary.json"}


@pytest.mark.parametrize("end", ["error", "SIGTERM", ""])
def test_an_earlier_result_stays_unless_its_notebook_runs_to_the_end(notebooks, tmp_path, monkeypatch, end):
    result = tmp_path / "results" / "01.json"
    result.parent.mkdir()
    write_json(result, {"ended": "before"})

    def execute(*_, **__):
        write_json(result, {"ended": "now"})
        if end == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        elif end:
            raise RuntimeError(end)

    monkeypatch.setattr("papermill.execute_notebook", execute)
    with stop_signals():  # pytest itself outlives the signal
        finished = run_notebooks.run(run_notebooks.choose(notebooks, "01"), "smoke", tmp_path, {})
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert finished is (not end) and summary["ended"] == ("before" if end else "now")
    assert end != "SIGTERM" or summary["failed"] == "notebook 01_next: interrupted"
    assert [path.name for path in result.parent.iterdir()] == ["01.json"]


def test_parameter_values_have_types():
    texts = ["a=3", "b=1e-4", "c=true", "d=False", "e=null", "f=dolly", "g=b=c", "h=", "i=[1, 2]"]
    values = [3, 1e-4, True, False, None, "dolly", "b=c", "", [1, 2]]
    assert run_notebooks.parse_parameters(texts) == dict(zip("abcdefghi", values))
    assert run_notebooks.parse_parameters(["judge_token=1e5"]) == {"judge_token": "1e5"}, (
        "a secret is no number"
    )


def test_a_whole_tutorial_gets_a_new_folder_and_a_part_continues_in_the_newest(tmp_path):
    assert run_notebooks.default_output(tmp_path, "smoke", partial=True).parent == tmp_path
    for day in (1, 2):
        (tmp_path / f"tutorial-smoke-2025010{day}-000000").mkdir()
    newest = run_notebooks.default_output(tmp_path, "smoke", partial=True)
    assert newest.name == "tutorial-smoke-20250102-000000"
    assert not run_notebooks.default_output(tmp_path, "smoke").exists()


def write_summary(out: Path, peaks: dict[str, float], echo=print) -> dict:
    by_notebook = {"seconds": {"04_reward_model": 2.0}, "memory_gib": peaks}
    run_notebooks._write_summary(out, "smoke", by_notebook, None, echo)
    return json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize("torn", ['{"profile": "smoke", "seco', "[]", None], ids=["cut", "a list", "a pipe"])
@pytest.mark.parametrize("name", ["summary.json", "results/03.json"])
def test_a_torn_record_is_named_and_left_out(tmp_path, name, torn):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "04.json").write_text('{"rm": {"accuracy": 0.9}}')
    os.mkfifo(tmp_path / name) if torn is None else (tmp_path / name).write_text(torn)
    messages, peaks = [], {"04_reward_model": 1.5}
    figures = {"seconds": {"04_reward_model": 2.0}, "memory_gib": peaks, "peak_memory_gib": 1.5}
    expected = {"profile": "smoke", "rm": {"accuracy": 0.9}} | figures
    assert write_summary(tmp_path, peaks, messages.append) == expected
    cure = "is damaged, so the summary leaves it out; run its notebooks again"
    assert messages == [f"{tmp_path / name} {cure}"]


def test_the_summary_is_replaced_and_keeps_the_figures_of_other_notebooks(tmp_path):
    (tmp_path / "summary.json").write_text('{"seconds": {"03_sft": 1.0}}')
    os.link(tmp_path / "summary.json", tmp_path / "before")
    write_summary(tmp_path, {"04_reward_model": 7.6, "05_ppo": 2.0})
    assert (tmp_path / "before").read_text() == '{"seconds": {"03_sft": 1.0}}'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "summary.json"]
    summary = write_summary(tmp_path, {"04_reward_model": 5.7})
    assert summary["seconds"] == {"03_sft": 1.0, "04_reward_model": 2.0}
    assert summary["memory_gib"] == {"04_reward_model": 5.7, "05_ppo": 2.0}
    assert summary["peak_memory_gib"] == 5.7
    assert "largest process 5.7 GiB" in summary_section(summary, tmp_path / "runs")
