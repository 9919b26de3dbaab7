"""Every participant of a workshop at a glance: where they are, what went wrong, which exercises they have done."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import traitlets

from aligner_lib.run_folder.jsonl import JsonlReader
from aligner_lib.run_folder.reader import RunFolder, find_runs
from widgets.frontend.table import Table, Tabled
from widgets.frontend.widget import Widget, script
from widgets.frontend.wire import finite
from widgets.runs import waiting

POLL_SECONDS = 1.0
SEARCH_SECONDS = (
    20.0  # between two searches of a seat's whole folder; runs beside known ones are seen at each poll
)
QUIET_SECONDS = 300.0  # a seat without news for so long may be stuck
SHOWN_ALARMS = 3
PARTICIPANT = "participant.json"  # {"name": …}, which a participant writes, or nobody
PREFLIGHT = "preflight.json"
PROGRESS = "progress.jsonl"
TROUBLE = ("failed", "lost")


@dataclass
class Seat:
    """One participant's folder, followed with small reads.

    A poll opens run.json of the newest run, and the ends of its alarms and of progress.jsonl: opened, not looked at with
    `stat`, for a network file system answers that one from a memory that is seconds old.
    """

    folder: Path
    number: int
    searched: float = float("-inf")
    run: RunFolder | None = None
    seen: set[Path] = field(default_factory=set)  # run folders
    alarms: dict[str, dict] = field(default_factory=dict)
    done: dict[str, bool] = field(default_factory=dict)  # exercise → whether any attempt passed
    right: dict[str, dict[str, bool]] = field(default_factory=dict)  # quiz → question → whether ever right
    last: float = 0.0  # unix seconds of the last news
    name: str = ""
    preflight: str = ""  # no preflight was run; ok, or what was found
    _created: float = 0.0
    _alarms: JsonlReader | None = None
    _progress: dict[Path, JsonlReader] = field(default_factory=dict)

    def __post_init__(self):
        # the file is followed before it exists, so that the first exercise shows at once
        self._follow_progress(self.folder / PROGRESS)

    def poll(self, now: float) -> dict:
        """What the table shows of this seat; `now`: seconds of a clock that only goes on."""
        if now - self.searched > SEARCH_SECONDS:
            self.searched = now
            self._search()
        else:
            self._look_beside()
        info = self.run.info if self.run else {}
        heartbeat = info.get("heartbeat") or {}
        self.last = max(self.last, heartbeat.get("time") or 0.0)
        self._read_alarms()
        self._read_progress()
        status = self.run.status if self.run else ""
        return finite(
            {
                "seat": self.folder.name if self.folder.name.startswith("seat-") else f"seat {self.number}",
                "name": self.name,
                "run": self.run.name if self.run else "",
                "status": status,
                "message": (info.get("message") or "")[:200] if status in TROUBLE else "",
                "step": heartbeat.get("step"),
                "max_steps": info.get("max_steps"),
                "alarms": [f"{alarm['title']} (step {alarm['step']})" for alarm in self.alarms.values()][
                    -SHOWN_ALARMS:
                ],
                "exercises": sum(self.done.values()),
                "tried": [name for name, passed in self.done.items() if not passed][-1:],
                "right": sum(sum(questions.values()) for questions in self.right.values()),
                "answered": sum(map(len, self.right.values())),
                "last": self.last or None,
                "preflight": self.preflight,
            }
        )

    # -- what there is --------------------------------------------------------------------------------------------

    def _search(self) -> None:
        for run in find_runs(self.folder):
            self._consider(run.path)
        for path in self.folder.glob(f"*/{PROGRESS}"):
            self._follow_progress(path)
        self.name = str(_read(self.folder / PARTICIPANT).get("name") or "")[:60]
        findings = _read(self.folder / PREFLIGHT)
        failed = ", ".join(map(str, findings.get("failed", ())))
        self.preflight = "" if not findings else "ok" if findings.get("ready") else failed or "not ready"

    def _follow_progress(self, path: Path) -> None:
        self._progress.setdefault(path, JsonlReader(path))

    def _look_beside(self) -> None:
        """New runs where this seat has runs already: a listing of one folder."""
        for parent in {path.parent for path in self.seen} or {self.folder / "runs"}:
            try:
                with os.scandir(parent) as entries:
                    paths = [Path(entry.path) for entry in entries]
            except OSError:
                continue
            for path in paths:
                if path not in self.seen and (path / "run.json").exists():
                    self._consider(path)

    def _consider(self, path: Path) -> None:
        self.seen.add(path)
        created = RunFolder(path).info.get("created") or 0.0
        if self.run is None or created > self._created:
            self.run, self._created = RunFolder(path), created
            self.alarms, self._alarms = {}, JsonlReader(path / "alarms.jsonl")

    def _read_alarms(self) -> None:
        for record in self._alarms.poll() if self._alarms else ():
            if {"name", "title", "step"} <= record.keys():
                self.alarms[record["name"]] = record

    def _read_progress(self) -> None:
        for reader in self._progress.values():
            for record in reader.poll():
                self._take(record)

    def _take(self, record: dict) -> None:
        self.last = max(self.last, record.get("time") or 0.0)
        if record.get("what") == "exercise" and not record.get("solved"):
            name = str(record.get("name"))
            self.done[name] = self.done.get(name, False) or record.get("passed") is True
        elif record.get("what") == "answer":
            questions = self.right.setdefault(str(record.get("quiz")), {})
            question = str(record.get("question"))
            questions[question] = questions.get(question, False) or record.get("right") is True


class Followed:
    """The seats of a workshop's folder: every sub-folder in which somebody has begun."""

    def __init__(self, folder: str | Path, pattern: str = "*"):
        self.folder, self.pattern = Path(folder).expanduser(), pattern
        self.seats: dict[Path, Seat] = {}
        self.rows: list[dict] = []
        self.seconds = 0.0  # that the last poll took

    def poll(self) -> list[dict]:
        """A row for each seat, in the order of their folders. One that can't be read keeps its last row, and says so."""
        began = time.monotonic()
        earlier = {row["folder"]: row for row in self.rows}
        self.rows = [self._row(seat, earlier, began) for seat in self._seats()]
        self.seconds = time.monotonic() - began
        return self.rows

    def _row(self, seat: Seat, earlier: dict, now: float) -> dict:
        folder = str(seat.folder)
        try:
            return seat.poll(now) | {"folder": folder, "unread": ""}
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ) as error:  # one seat must not hide the others
            before = earlier.get(folder) or {"seat": f"seat {seat.number}", "folder": folder}
            return before | {"unread": f"{type(error).__name__}: {error}"[:200]}

    def _seats(self) -> Iterator[Seat]:
        try:
            folders = sorted(path for path in self.folder.glob(self.pattern) if path.is_dir())
        except OSError:
            folders = []
        for path in folders:
            if path.name.startswith("."):
                continue
            if path not in self.seats:
                self.seats[path] = Seat(path, len(self.seats) + 1)
            yield self.seats[path]


class Classroom(Tabled, Widget):
    """Every participant's run, step, alarms, exercises and quizzes, once a second, from a shared folder.

    folder: the folder that holds each participant's workspace (`out` of the notebooks, or its parent). pattern: which of
    its sub-folders, such as `*/lab` below /home. It only reads. A participant is `seat-…`, or a number, and has a name
    only where they have given one: `aligner workshop preflight --name`.
    """

    _esm = script("dom", "format", "lost", "classroom")
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, folder: str | Path, pattern: str = "*"):
        self._followed = Followed(folder, pattern)
        self._lock = threading.RLock()
        super().__init__()
        self.refresh()
        self._closed = threading.Event()
        threading.Thread(target=self._follow, name="Classroom", daemon=True).start()

    @property
    def rows(self) -> list[dict]:
        """What is known of each seat."""
        return self._followed.rows

    def refresh(self) -> None:
        """Look at every seat now; this also happens every second."""
        with self._lock:
            rows = [
                {key: value for key, value in row.items() if key != "folder"} for row in self._followed.poll()
            ]
            # seconds since the last news are the page's to count: a number that changes each second would be sent each time
            self.view = {
                "rows": rows,
                "quiet_seconds": QUIET_SECONDS,
                "poll_ms": _rounded(self._followed.seconds),
            }

    def table(self) -> Table:
        """The seats as a static table."""
        rows = [
            [
                row.get("name") or row["seat"],
                row.get("run", ""),
                row.get("status", ""),
                _steps(row),
                "\n".join(row.get("alarms", ())),
                str(row.get("exercises", 0)),
            ]
            for row in self.rows
        ]
        return Table(f"{len(rows)} seats", ["seat", "run", "status", "step", "alarms", "exercises"], rows)

    def _follow(self) -> None:
        waiting.keep_looking(self._closed, POLL_SECONDS, self.refresh)

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        super().close()

    def __repr__(self) -> str:
        return f"Classroom of {len(self.rows)} seats in {self._followed.folder}"


def _rounded(seconds: float) -> int:
    """Milliseconds as 1, 2, 5, 10, …: near enough, and seldom another number to send."""
    return next(
        (step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if seconds * 1000 <= step),
        10_000,
    )


def _steps(row: dict) -> str:
    step, of = row.get("step"), row.get("max_steps")
    return "" if step is None else f"{step}/{of}" if of else str(step)


def _read(path: Path) -> dict:
    """A small JSON object; empty without one, and while it is being written."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
