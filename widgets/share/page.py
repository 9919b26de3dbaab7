"""A single HTML file with the charts, completions, alarms and settings of runs, drawn by the monitor's script.

The file opens without a kernel, a server or a network. The page contains the data that the monitor normally requests from the
kernel, and still.js answers the requests.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import tempfile
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import flatten
from aligner_lib.run_folder.turns import turns_of
from aligner_lib.tutorial.hunt import bug_hunt
from aligner_lib.tutorial.quiz.quiz_file import QuizFile
from aligner_lib.tutorial.report.html_page import html_page
from widgets.completions.completions import CompletionPages
from widgets.frontend.widget import Widget, text_of
from widgets.frontend.wire import finite, pack, unpack
from widgets.monitor.monitor import Monitor
from widgets.quiz.quiz import Quiz
from widgets.recordings.recording_file import record, shipped
from widgets.recordings.replay import Recording
from widgets.runs.feed import open_feed
from widgets.runs.rollouts import RunRollouts
from widgets.runs.series import AXES, as_runs, distinct_names

RESPONSES_A_STEP = 16
VALIDATION_RESPONSES = 128
DIGITS = 4  # significant digits of a token's weight, more than a colour can show
FACTS = ("kind", "status", "message", "seed", "precision", "max_steps", "versions")
EXPORT = "export default "
NO_KERNEL = {"players": [], "steering": None, "branching": None, "can_stop": False, "metrics": []}
"""The parts of the monitor that need a kernel: the player, the buttons that change a run, and charts of other metrics."""

STYLE = """
:root { --jp-ui-font-color1: var(--ink); --jp-layout-color0: var(--paper); --jp-layout-color1: var(--raised); --jp-border-color2: var(--edge); }
main.alone { max-width: 70rem; }
.lab-monitor .lab-add { display: none; }
details { margin: .5rem 0; }
.framed main.alone { padding: 0 .5rem; max-width: none; }
.framed h1 { display: none; }
"""


def write_page(runs, out: Path, metrics: list | None = None) -> Path:
    """Write the page of a run, and return its path. runs: a run folder, a Recording or its name, or a list of runs.

    metrics: the charts, as in Monitor; None: the charts of the kind of run.

    The page has the first RESPONSES_A_STEP responses of each step, and the first VALIDATION_RESPONSES of each validation. Like
    a recording, the page has no host name, user name or paths. Raises ValueError for an empty list, UserError for a folder
    without a run.
    """
    with tempfile.TemporaryDirectory(prefix="aligner-share-") as tmp_dir:
        given = runs if isinstance(runs, list) else [runs]
        named = [Recording(run) if run in shipped() else run for run in given]
        stills = [_still(run, Path(tmp_dir) / str(place)) for place, run in enumerate(as_runs(named))]
        names = ", ".join(distinct_names(stills))
        body = (
            f"<main class='alone'><h1>{html.escape(names)}</h1><div id='widget'></div>{_facts(stills)}</main>"
        )
        body += _data("content", _content(stills, metrics)) + _module(Monitor)
    out.parent.mkdir(parents=True, exist_ok=True)
    page = html_page(names, body, STYLE)
    out.write_text(page, encoding="utf-8", errors="backslashreplace")  # as JsonlWriter
    return out


def write_quiz(name: str, out: Path) -> Path:
    """Write the page of the quiz `Quiz(name)`, and return its path. The page forgets the answers when it is closed.

    name: the name of a quiz, or of a run of the bug hunt, whose three questions the page then has.
    """
    quiz = Quiz(_questions_of_hunted_run(name) if name in bug_hunt.HUNTED else name)
    content = {"title": quiz.title, "questions": quiz.questions, "answers": {}}
    quiz.close()
    body = "<main class='alone'><div id='widget'></div></main>" + _data("content", content) + _module(Quiz)
    out.write_text(html_page(f"Quiz {name}", body, STYLE), encoding="utf-8")
    return out


def _questions_of_hunted_run(name: str) -> QuizFile:
    records = [Recording(run, speed=float("inf")).metrics() for run in (name, *bug_hunt.HEALTHY)]
    return bug_hunt.questions(name, *records)


def _still(run, path: Path) -> Recording:
    """The run as a Recording that shows the final state immediately."""
    if isinstance(run, Recording) and run.path.is_file():  # a folder still has its paths and host
        return Recording(run.path, speed=float("inf"))
    if not run.info:
        raise UserError(f"{run.path} holds no run yet: run.json, which a job writes at its start, is missing")
    packed = record(run, path, None, RESPONSES_A_STEP, VALIDATION_RESPONSES)
    return Recording(packed, speed=float("inf"))


# ---- data that the kernel would send ---------------------------------------------------------------------------------


def _content(runs: list[Recording], metrics: list | None) -> dict:
    """The page's data. axes: the charts' messages by axis; rows: each run's table of numbers; texts: each run's responses."""
    feed = open_feed(runs, metrics)
    axes = {}
    for axis in AXES:
        feed.axis = axis
        axes[axis] = base64.b64encode(_without_kernel(feed.snapshot())).decode()
    return {
        "axes": axes,
        "rows": [feed.rows(run, 0, len(series)) for run, series in enumerate(feed.series)],
        "texts": list(map(_texts, runs, distinct_names(runs))),
    }


def _without_kernel(snapshot: bytes) -> bytes:
    head, points = unpack(snapshot)
    return pack(head | NO_KERNEL, points)


def _texts(run: Recording, name: str) -> dict:
    """A run's responses. Each prompt is stored once."""
    rollouts = RunRollouts(run)
    rollouts.poll()
    prompts = list(dict.fromkeys(record["prompt"] for record in rollouts.records))
    place_of = {prompt: place for place, prompt in enumerate(prompts)}
    records = []
    for light in rollouts.records:
        tokens = {
            name: [_short(value) for value in values] if name != "tokens" else values
            for name, values in rollouts.tokens(light["id"]).items()
        }
        places = {
            "prompt": place_of[light["prompt"]],
            "first": rollouts.first_of(light),
            "members": [member["id"] for member in rollouts.group_of(light)],
        }
        records.append({"split": "", **light, **tokens, **places})
    return {
        "name": name,
        "note": _note(run, len(records)),
        "verdicts": rollouts.verdicts,
        "splits_with_groups": sorted(rollouts.splits_with_groups),
        "environments": list(dict.fromkeys(r["environment"] for r in records if "environment" in r)),
        "prompts": [{"text": prompt, "turns": turns_of(prompt)} for prompt in prompts],
        "records": finite(records),
    }


def _note(run: Recording, records: int) -> str:
    """The reason why responses are missing from the page; "" if it has all of them."""
    written = run.info.get("responses", records)
    if not records:
        return CompletionPages(run).find({})["note"]
    if written > records:
        return f"This page has {records} of the run's {written} responses: the first of each step."
    return ""


def _short(value):
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


# ---- the page --------------------------------------------------------------------------------------------------------


def _facts(runs: list[Recording]) -> str:
    """A section about each run: important facts and all settings."""
    return "".join(_about(name, run.info) for name, run in zip(distinct_names(runs), runs))


def _about(name: str, info: dict) -> str:
    facts = {fact: info[fact] for fact in FACTS if info.get(fact)}
    return (
        f"<section><h2>About {html.escape(name)}</h2>{_table(facts)}"
        f"<details><summary>All settings</summary>{_table(flatten(info.get('config', {})))}</details></section>"
    )


def _table(values: dict) -> str:
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(_as_text(value))}</td></tr>"
        for name, value in values.items()
    )
    return f"<div class='wide'><table>{cells}</table></div>"


def _as_text(value) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _data(name: str, value) -> str:
    """The page's data for share.js: JSON, compressed to less than a third, in base 64."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    data = text.encode(errors="backslashreplace")  # as JsonlWriter
    packed = base64.b64encode(gzip.compress(data, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{packed}</script>'


def _module(widget: type[Widget]) -> str:
    """The page's script: the widget, still.js to answer the widget's requests, and share.js to mount the widget."""
    before, export, after = widget._esm.rpartition(EXPORT)
    assert export and EXPORT not in before, f"the script of {widget.__name__} exports one widget"
    return f'<script type="module">{before}const WIDGET = {after}\n{text_of("still.js")}\n{text_of("share.js")}</script>'
