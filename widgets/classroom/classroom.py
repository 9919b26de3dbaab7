"""An overview of all participants of a workshop: their runs, alarms and exercises."""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import traitlets

from aligner_lib.run_folder.files import UnreadableFileError, read_object
from aligner_lib.run_folder.jsonl import JsonlReader
from aligner_lib.run_folder.reader import STALE_SECONDS, DamagedRunError, RunFolder, find_runs
from widgets.frontend.table import Table, Tabled
from widgets.frontend.widget import script
from widgets.frontend.wire import finite
from widgets.recordings.recording_file import without_places
from widgets.runs.following import Following

POLL_SECONDS = 1.0
BYTES_OF_A_POLL = 4 << 20
"""The most that a poll reads of a file with records. The next polls read the rest of a larger file. No line is longer."""
SEARCH_SECONDS = 20.0
"""Between two searches of a seat's whole folder. Every poll sees new runs next to known runs."""
NOW_SECONDS = 10.0  # the page compares its clock with the kernel's so often
QUIET_SECONDS = 300.0  # a participant without news for longer may be stuck
SHOWN_ALARMS = 3
PARTICIPANT = "participant.json"  # {"name": …}, optional, written by the participant
PREFLIGHT = "preflight.json"
PROGRESS = "progress.jsonl"
TROUBLE = ("failed", "lost")
NO_SEATS = ("lost+found",)


@dataclass
class Pulse:
    """The heartbeats of a run on another machine, whose clock may be wrong: the run is alive while its heartbeat changes."""

    beat: float
    """The newest heartbeat, on the other machine's clock."""
    seen: float
    """The time at which this machine first saw the newest heartbeat, on a monotonic clock."""
    changed: bool = False
    """Whether this machine has seen the heartbeat change."""

    def take(self, beat: float, now: float) -> bool:
        """Take the heartbeat of now. Returns whether the heartbeat has changed."""
        if is_news := beat != self.beat:
            self.beat, self.seen, self.changed = beat, now, True
        return is_news

    def status(self, by_the_clocks: str, now: float) -> str:
        """The status of an unended run. by_the_clocks: the status while this machine has not yet seen enough of the heartbeats."""
        if now - self.seen >= STALE_SECONDS:
            return "lost"
        return "running" if self.changed else by_the_clocks


@dataclass
class Seat:
    """A participant's folder. Each poll reads only little data.

    A poll opens run.json of the seat's current run, and reads the new lines of alarms.jsonl and progress.jsonl. The files are opened
    without a preceding `stat`, because a network file system answers `stat` from a cache that may be seconds old.
    """

    folder: Path
    number: int
    searched: float = float("-inf")
    """The time of the last search of the whole folder, on a monotonic clock."""
    run: RunFolder | None = None
    """The current run: the newest running run, or else the run with the latest heartbeat."""
    info: dict = field(default_factory=dict)
    """The content of the current run's run.json, as last read."""
    status: str = ""
    """The current run's status, as last read."""
    seen: set[Path] = field(default_factory=set)
    """The known run folders."""
    alarms: dict[str, dict] = field(default_factory=dict)
    """Name → record of the current run's alarms."""
    done: dict[str, bool] = field(default_factory=dict)
    """Exercise → whether any attempt passed, in the order of the latest attempts."""
    right: dict[str, dict[str, bool]] = field(default_factory=dict)
    """Quiz → question → whether any answer was right."""
    attack: str = ""
    """The newest attack on the seat's own judge in notebook 12, or "" without an attack."""
    last: float = 0.0
    """Unix seconds of the last news, on this machine's clock as far as this machine has seen the news arrive."""
    now: float = 0.0
    """The time of the current poll, on a monotonic clock."""
    name: str = ""
    """The participant's name, if given."""
    faults: list[str] = field(default_factory=list)
    """The damaged files found since the last search of the whole folder began, a sentence for each."""
    preflight: str = ""
    """The result of the preflight: "ok", the names of the failed checks, or "" without a preflight."""
    pulses: dict[Path, Pulse] = field(default_factory=dict)
    """By the path of a known run."""
    _place: tuple[bool, float] = (False, 0.0)
    """The current run's place in the order of `_place_of`."""
    _alarms: JsonlReader | None = None
    _progress: dict[Path, JsonlReader] = field(default_factory=dict)

    def __post_init__(self):
        # follow the file before it exists, so that the first exercise appears immediately
        self._follow_progress(self.folder / PROGRESS)

    @property
    def label(self) -> str:
        """The seat's name without the participant's: `seat-…`, or a hash of the folder, because its name may be an account's."""
        if self.folder.name.startswith("seat-"):
            return self.folder.name
        folder = str(self.folder.absolute()).encode(errors="surrogateescape")
        return f"seat {hashlib.blake2b(folder, digest_size=3).hexdigest()}"

    @property
    def is_empty(self) -> bool:
        """Whether the folder has had no file of a participant so far, like a folder with handouts."""
        has_progress = any(reader.offset for reader in self._progress.values())
        return not (self.seen or self.name or self.preflight or has_progress)

    def poll(self, now: float) -> dict:
        """Read news, and return the seat's row of the table. now: seconds of a monotonic clock."""
        self.now, look = now, self._look_beside
        if now - self.searched > SEARCH_SECONDS:
            self.searched, self.faults, look = now, [], self._search
        errors = []
        for read in (look, self._read_run, self._read_alarms, self._read_progress):
            try:
                read()
            except Exception as error:  # a damaged file must not hide the others
                errors.append(f"{type(error).__name__}: {error}")
        heartbeat = self.info.get("heartbeat") or {}
        message = str(self.info.get("message") or "") if self.status in TROUBLE else ""
        return finite(
            {
                "seat": self.label,
                "name": self.name,
                "run": self.run.name if self.run else "",
                "status": self.status,
                "message": self.anonymous(message),
                "step": heartbeat.get("step"),
                "max_steps": self.info.get("max_steps"),
                "alarms": [f"{alarm['title']} (step {alarm['step']})" for alarm in self.alarms.values()][
                    -SHOWN_ALARMS:
                ],
                "exercises": sum(self.done.values()),
                "tried": [name for name, passed in self.done.items() if not passed][-1:],
                "right": sum(sum(questions.values()) for questions in self.right.values()),
                "answered": sum(map(len, self.right.values())),
                "attack": self.attack,
                "last": self.last or None,
                "preflight": self.preflight,
                "unread": self.anonymous("; ".join(dict.fromkeys(self.faults + errors))),
            }
        )

    def anonymous(self, message: str) -> str:
        """A message for the table: without the folders of its paths, which have the names of accounts, and not too long."""
        return without_places(message, self.folder / PROGRESS)[:200]

    # -- reading the folder ---------------------------------------------------------------------------------------

    def _search(self) -> None:
        if self.run and not self.run.path.exists():  # the current run was removed
            self.seen.discard(self.run.path)
            self.run, self.alarms, self._alarms = None, {}, None
            self.info, self.status = {}, ""
        for run in find_runs(self.folder, self.faults.append):
            self._consider(run.path)
        for path in self.folder.glob(f"*/{PROGRESS}"):
            self._follow_progress(path)
        self.name = str(self._read(PARTICIPANT).get("name") or "")[:60]
        findings = self._read(PREFLIGHT)
        if isinstance(checked := findings.get("time"), int | float):
            self._note_news(checked)
        failed = findings.get("failed")
        names = ", ".join(map(str, failed)) if isinstance(failed, list) else ""
        self.preflight = "" if not findings else "ok" if findings.get("ready") else names or "not ready"

    def _read(self, name: str) -> dict:
        """A JSON object in the seat's folder; {} for a missing file, and for a damaged file, which is a fault."""
        try:
            return read_object(self.folder / name)
        except FileNotFoundError:
            pass
        except (OSError, UnreadableFileError) as error:
            self.faults.append(str(error))
        return {}

    def _follow_progress(self, path: Path) -> None:
        self._progress.setdefault(path, _reader(path))

    def _look_beside(self) -> None:
        """Look for new runs in the folders of known runs, by listing each folder once."""
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
        run = RunFolder(path)
        try:
            status, info = self._status_and_info(run)
        except (DamagedRunError, OSError) as error:
            self.faults.append(f"{error}; the run is left out")
            return
        place = _place_of(status, info)
        if self.run is None or (path != self.run.path and place > self._place):
            self.run, self.status, self.info, self._place = run, status, info, place
            self.alarms, self._alarms = {}, _reader(path / "alarms.jsonl")

    def _read_run(self) -> None:
        if self.run is None:
            return
        self.status, self.info = self._status_and_info(self.run)
        self._place = _place_of(self.status, self.info)

    def _status_and_info(self, run: RunFolder) -> tuple[str, dict]:
        """A run's status, on another machine by the changes of its heartbeat, and the content of run.json."""
        status, info = run.status, run.info
        beat = (info.get("heartbeat") or {}).get("time") or 0.0
        if (pulse := self.pulses.get(run.path)) is None:
            pulse = self.pulses[run.path] = Pulse(beat, self.now)
            self._note_news(max(beat, _placed(info)))
        elif pulse.take(beat, self.now):
            self._note_news()
        if info.get("status") == "running" and info.get("host") != os.uname().nodename:
            status = pulse.status(status, self.now)
        return status, info

    def _note_news(self, at: float = math.inf) -> None:
        """Note news. at: its time by the seat's clock, which may be ahead of this machine's; without this time: now."""
        self.last = max(self.last, min(at, time.time()))

    def _read_alarms(self) -> None:
        if self._alarms is None:
            return
        restarts = self._alarms.restarts
        records = self._alarms.poll(BYTES_OF_A_POLL)
        if self._alarms.restarts != restarts:  # a resumed run cuts off the alarms of later steps
            self.alarms = {}
        for record in records:
            if isinstance(record.get("name"), str) and {"title", "step"} <= record.keys():
                self.alarms[record["name"]] = record

    def _read_progress(self) -> None:
        readers = self._progress.values()
        there = [reader.path for reader in readers if not reader.offset or reader.path.exists()]
        restarts, errors = [reader.restarts for reader in readers], self._take_news()
        if len(there) < len(readers) or [reader.restarts for reader in readers] != restarts:
            # a workspace was removed, or begun anew
            self.done, self.right, self.attack = {}, {}, ""
            self._progress = {path: _reader(path) for path in there}
            errors = self._take_news()
        if errors:
            raise errors[0]

    def _take_news(self) -> list[Exception]:
        """Take the new records of every file of progress. Returns the errors of the files that can't be read now."""
        errors = []
        for reader in self._progress.values():
            is_known = reader.offset > 0
            try:
                records = reader.poll(BYTES_OF_A_POLL)
            except (OSError, UnreadableFileError) as error:
                errors.append(error)
                continue
            for record in records:
                # a damaged record must not hide the others
                with suppress(AttributeError, KeyError, TypeError, ValueError, OverflowError):
                    self._take(record)
            if records and is_known:
                self._note_news()
        return errors

    def _take(self, record: dict) -> None:
        self._note_news(record.get("time") or 0.0)
        if record.get("what") == "exercise" and not record.get("solved"):
            name = str(record.get("name"))
            # pop: the exercises are in the order of their latest attempts
            self.done[name] = self.done.pop(name, False) or record.get("passed") is True
        elif record.get("what") == "answer":
            questions = self.right.setdefault(str(record.get("quiz")), {})
            question = str(record.get("question"))
            questions[question] = questions.get(question, False) or record.get("right") is True
        elif record.get("what") == "attack" and not record.get("solved"):
            count, first = int(record["hacks"]), record.get("first_minutes")
            self.attack = f"{count} hacks" + (
                "" if first is None else f", first after {float(first):.1f} min"
            )


class Followed:
    """The seats of a workshop: all matching sub-folders of the workshop's folder."""

    def __init__(self, folder: str | Path, pattern: str = "*"):
        self.folder, self.pattern = Path(folder).expanduser(), pattern
        self.seats: dict[Path, Seat] = {}
        self.rows: list[dict] = []
        self.seconds = 0.0  # duration of the last poll

    def poll(self) -> list[dict]:
        """A row for each seat with a file, in the order of the folders.

        `unread` names damaged files. An unreadable seat keeps its last row.
        """
        began = time.monotonic()
        earlier = {row["folder"]: row for row in self.rows}
        rows = [(seat, self._row(seat, earlier, began)) for seat in self._seats()]
        self.rows = [row for seat, row in rows if row["unread"] or not seat.is_empty]
        self.seconds = time.monotonic() - began
        return self.rows

    def _row(self, seat: Seat, earlier: dict, now: float) -> dict:
        place = {"folder": str(seat.folder), "number": seat.number}
        try:
            row = seat.poll(now)
        except Exception as error:  # one seat must not hide the others
            before = earlier.get(place["folder"]) or {"seat": seat.label}
            row = before | {"unread": seat.anonymous(f"{type(error).__name__}: {error}")}
        return _as_utf8(row) | place

    def _seats(self) -> Iterator[Seat]:
        try:
            folders = sorted(filter(_may_be_folder, self.folder.glob(self.pattern)))
        except OSError:
            folders = []
        for path in folders:
            if path.name.startswith(".") or path.name in NO_SEATS:
                continue
            if path not in self.seats:
                self.seats[path] = Seat(path, len(self.seats) + 1)
            yield self.seats[path]


class Classroom(Tabled, Following):
    """All participants' runs, steps, alarms, exercises and quizzes, read from a shared folder every second.

    folder: the folder with the workspaces of all participants (`out` of the notebooks, or the parent folder of `out`).
    pattern: a glob for the sub-folders, such as `*/lab` for folder="/home". The widget writes no files. A participant is shown
    as `seat-…` or by a hash of the folder, and by name only after `aligner workshop preflight --name`.
    """

    _esm = script("dom", "format", "lost", "classroom")
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, folder: str | Path, pattern: str = "*"):
        self._followed = Followed(folder, pattern)
        self._lock = threading.RLock()
        super().__init__()
        self.refresh()
        self.follow(POLL_SECONDS, self.refresh)

    @property
    def rows(self) -> list[dict]:
        """The current row of each seat."""
        return self._followed.rows

    def refresh(self) -> None:
        """Read every seat now. The widget also calls `refresh` every second."""
        with self._lock:
            rows = [
                {key: value for key, value in row.items() if key != "folder"} for row in self._followed.poll()
            ]
            # The page counts the seconds since the last news. If they were part of `view`, every refresh would send a message.
            # `now` changes rarely for the same reason.
            self.view = {
                "rows": rows,
                "missing": "" if _may_be_folder(self._followed.folder) else str(self._followed.folder),
                "now": time.time() // NOW_SECONDS * NOW_SECONDS,
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
                row.get("attack", ""),
            ]
            for row in self.rows
        ]
        return Table(
            f"{len(rows)} seats", ["seat", "run", "status", "step", "alarms", "exercises", "attack"], rows
        )

    def __repr__(self) -> str:
        return f"Classroom of {len(self.rows)} seats in {self._followed.folder}"


def _place_of(status: str, info: dict) -> tuple[bool, float]:
    """A sort key of a seat's runs: first the runs that are over, by their last heartbeat, then the running ones, by their
    creation. `created` alone would hide a resumed run behind a newer run that is over. A recorded run, whose heartbeat is old,
    counts from the time at which the run was placed."""
    created = info.get("created") or 0.0
    if status == "running":
        return True, created
    return False, _placed(info) or (info.get("heartbeat") or {}).get("time") or created


def _placed(info: dict) -> float:
    """The unix time at which a recorded run was placed; 0 for other runs."""
    recorded = info.get("recorded")
    placed = recorded.get("placed") if isinstance(recorded, dict) else None
    return placed if isinstance(placed, int | float) else 0.0


def _reader(path: Path) -> JsonlReader:
    return JsonlReader(path, longest_line=BYTES_OF_A_POLL)


def _rounded(seconds: float) -> int:
    """Milliseconds, rounded up to 1, 2, 5, 10, … A rounded value changes rarely, so fewer messages are sent."""
    return next(
        (step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if seconds * 1000 <= step),
        10_000,
    )


def _as_utf8(row: dict) -> dict:
    """A row without halves of surrogate pairs. Jupyter can't send them, so that one of them would end the whole table."""
    return json.loads(json.dumps(row, ensure_ascii=False).encode(errors="replace"))


def _may_be_folder(path: Path) -> bool:
    """Whether a path is a folder. True also for an unreadable path, so that the table shows the seat and the error."""
    try:
        return path.is_dir()
    except OSError:
        return True


def _steps(row: dict) -> str:
    step, of = row.get("step"), row.get("max_steps")
    return "" if step is None else f"{step}/{of}" if of else str(step)
