"""The live monitor: charts of a run, or of several runs for comparison, during or after training."""

from __future__ import annotations

import asyncio
import threading
import time

import traitlets

from widgets.completions.completions import CompletionPages
from widgets.frontend.widget import script
from widgets.frontend.wire import finite
from widgets.recordings.replay import as_recorded
from widgets.runs import waiting
from widgets.runs.branching import Branching
from widgets.runs.control import not_written
from widgets.runs.feed import open_feed
from widgets.runs.following import Following
from widgets.runs.series import AXES, as_run, as_runs

UPDATE_SECONDS = 0.5
ATTACH_SECONDS = 0.8  # time for reading at the start; the background thread reads the rest
PICTURE_SECONDS = 60.0
ALIVE_SECONDS = 5.0  # a live run sends a message at least this often; after four times as long, the page warns (frontend/lost.js)


class Monitor(Following):
    """Live charts of runs: reward, KL, length, loss and so on, with progress and time.

    `await monitor` waits until the runs end. The monitor only reads folders. You can close the monitor, restart the kernel or
    open another monitor without affecting the runs.

    runs: a run folder (path or RunFolder), a Recording, or a list of both, drawn in the same charts. The folder of a recorded
    run (docs/workshop.md) is played like a Recording.
    metrics: metric names, lists of names for a common chart, or a `chart(…)`; None: the default charts of the kind of run.
    limits: aligner_lib.run_folder.alarms.Thresholds instead of the alarms' defaults. job: the job's handle (cluster.Job), with
    which the monitor notices a job that dies before its run begins. branch: Workspace.branch; the monitor of a single finished
    run then has a form that starts a branch of the run and adds the branch to the charts.
    """

    _esm = script(
        *(
            "dom",
            "wire",
            "format",
            "pens",
            "smooth",
            "lost",
            "chart",
            "heading",
            "bars",
            "comparison",
            "numbers",
        ),
        *("controls", "branch", "textbox", "turns", "paged", "completions", "texts", "monitor"),
    )
    data = traitlets.Bytes().tag(sync=True)
    axis = traitlets.Enum(AXES, default_value="step").tag(sync=True)
    texts_query = traitlets.Dict().tag(sync=True)
    """{run, step, …}: the query for completions after a click on a point."""
    texts = traitlets.Dict().tag(sync=True)
    """The page of completions."""

    def __init__(
        self, runs, metrics: list | None = None, *, axis: str = "step", job=None, limits=None, branch=None
    ):
        given = as_runs(runs)
        played = [as_recorded(run) for run in given]
        self._feed = open_feed(played, metrics, axis, limits, ATTACH_SECONDS)
        self.runs = self._feed.runs
        self.job = job if played == given else None  # a recorded run's job is over before the playback ends
        self._feed.resubmission = waiting.Resubmission(self.job)
        self._jobs = [(list(self.runs), self.job)]  # (runs, their job), with an entry for each branch
        if len(given) == 1 and played == given:
            self._feed.branching = Branching(self.runs[0], branch)
        self._lock = threading.RLock()
        super().__init__(axis=axis)
        self._picture, self._drawn_at = None, float("-inf")
        self._pages: dict[int, CompletionPages] = {}
        self._said_at = time.monotonic()
        self.on_msg(self._on_message)
        self.observe(self._change_axis, "axis")
        self.observe(lambda _: self._show_texts(), "texts_query")
        self.follow(UPDATE_SECONDS, self._look)

    # -- to the browser -------------------------------------------------------------------------------------------

    def get_state(self, key=None, drop_defaults=False):
        """The state for a new page, with a new snapshot of the data. Open pages receive only updates."""
        if key is None or "data" in ([key] if isinstance(key, str) else key):
            with self._lock:
                # set without a notification, because the caller sends the state
                self._trait_values["data"] = self._feed.snapshot()
        return super().get_state(key=key, drop_defaults=drop_defaults)

    def refresh(self) -> None:
        """Read and send new metrics now. The monitor also calls `refresh` twice a second."""
        with self._lock:
            self._feed.poll(budget_seconds=UPDATE_SECONDS)
            update = self._feed.update()
        if update is not None:
            self._say({"kind": "update"}, [update])
        elif time.monotonic() - self._said_at > ALIVE_SECONDS and any(map(self._goes_on, self.runs)):
            self._say({"kind": "alive"}, [])

    def _say(self, content: dict, buffers: list[bytes]) -> None:
        self._said_at = time.monotonic()
        self.send(content, buffers=buffers)

    def _look(self) -> None:
        self.refresh()
        self._refresh_texts()
        due = self._picture is not None and time.monotonic() - self._drawn_at > PICTURE_SECONDS
        if due and self._picture.draw():
            self._drawn_at = time.monotonic()

    # -- from the browser -----------------------------------------------------------------------------------------

    def _on_message(self, _, content: dict, buffers) -> None:
        """Handle a message of the page, and send an answer. Without an answer, the page reports a lost connection."""
        self._handle(content)
        # the page asks for details by itself, and the answer would hide a lost button
        if content.get("kind") != "detail":
            self.send({"kind": "answer"})

    def _handle(self, content: dict) -> None:
        kind = content.get("kind")
        if kind == "resync":
            self.send_state("data")
        elif kind == "detail":
            with self._lock:
                detail = self._feed.detail(*map(float, content["view"]))
            self.send({"kind": "detail"}, buffers=[detail])
        elif kind == "rows":
            self._send_rows(int(content["start"]), int(content["stop"]), int(content["run"]))
        elif kind == "add":
            self._change_feed(lambda: self._feed.add(str(content["metric"])))
        elif kind == "remove":
            self._change_feed(lambda: self._feed.remove(str(content["metric"])))
        elif kind in ("set", "checkpoint", "undo"):
            self._change_feed(lambda: self._feed.steer(content))
        elif kind == "branch":
            self._change_feed(lambda: self._branch(content))
        elif kind == "stop":
            self._stop()
        elif kind == "play":
            self._play(content)

    def _branch(self, content: dict) -> None:
        """Handle the Branch button: start the branch's job, and add the branch's run to the charts."""
        job = self._feed.branching.execute(content)
        known = [run.path for run in self.runs]
        if job is not None and job.run not in known:
            run = as_run(job.run)
            self._feed.follow(run)
            self._jobs.append(([run], job))

    def _stop(self) -> None:
        """Handle the Stop button. The page shows errors below the buttons."""
        refused = []
        for run in self._unfinished():
            try:
                run.request_stop()
            except OSError as error:
                refused.append(not_written(run, error))
        self.refresh()
        self.send({"kind": "stop", "said": " ".join(refused)})

    def _unfinished(self) -> list:
        return [run for run in self.runs if self._goes_on(run) and hasattr(run, "request_stop")]

    def _goes_on(self, run) -> bool:
        """Whether a run is not over, or its job was submitted again."""
        return not run.is_over or self._feed.resubmission.awaits(run)

    def _send_rows(self, start: int, stop: int, run: int) -> None:
        with self._lock:
            rows = self._feed.rows(run, start, min(stop, start + 500))
        self.send({"kind": "rows", "run": run, "start": start, **rows})

    def _change_feed(self, change) -> None:
        with self._lock:
            change()
        self.refresh()

    def _show_texts(self) -> None:
        """Answer `texts_query` with a page of completions."""
        with self._lock:
            pages = self._texts_of(int(self.texts_query.get("run", 0)))
            pages.poll()
            self.texts = finite(pages.find(self.texts_query))

    def _refresh_texts(self) -> None:
        """Send new completions if the page shows completions."""
        with self._lock:
            if self.texts_query.get("open") and self._texts_of(int(self.texts_query.get("run", 0))).poll():
                self._show_texts()

    def _texts_of(self, run: int) -> CompletionPages:
        if run not in self._pages:
            self._pages[run] = CompletionPages(self.runs[run])
        return self._pages[run]

    def _change_axis(self, change) -> None:
        with self._lock:
            self._feed.axis = change["new"]
        self.send_state("data")

    def request_stop(self) -> None:
        """Ask every unfinished run to save a checkpoint and end after its current step."""
        for run in self._unfinished():
            run.request_stop()

    def _play(self, content: dict) -> None:
        for run in self.runs:
            if hasattr(run, "restart"):
                run.speed = float(content["speed"])
                if content.get("restart"):
                    run.restart()
        self.refresh()

    # -- waiting --------------------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> None:
        """Block until the runs are over, then show their final curves. Prefer `await monitor`.

        timeout: seconds. Raises RunFailed with the run's message, RunLost if a run's process is gone, TimeoutError after the
        timeout.
        """
        for runs, job in self._jobs:
            for pause in waiting.until_over(runs, job, timeout):
                time.sleep(pause)
        self._conclude()
        for runs, job in self._jobs:
            for run in runs:
                print(waiting.verdict(run, job))

    async def wait_async(self, timeout: float | None = None) -> None:
        """Like `wait`, but without blocking the kernel, so that buttons work. `await monitor` calls this method."""
        for runs, job in self._jobs:
            async for pause in waiting.until_over_async(runs, job, timeout):
                await asyncio.sleep(pause)
        self._conclude()
        for runs, job in self._jobs:
            for run in runs:
                print(await asyncio.to_thread(waiting.verdict, run, job))

    def __await__(self):
        return self.wait_async().__await__()

    def _conclude(self) -> None:
        with self._lock:
            self._feed.poll()
        self.send_state("data")
        if self._picture is None:
            self._show_picture()
        self._picture.draw()

    # -- display --------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Monitor of {', '.join(f'{run.name} ({run.status})' for run in self.runs)}"

    def _repr_mimebundle_(self, **kwargs):
        self._show_picture()
        return super()._repr_mimebundle_(**kwargs)

    def _show_picture(self) -> None:
        """Show the static picture as a separate output before the widget.

        A live widget hides the picture. The picture is visible without a kernel, and on pages without widgets.
        """
        from widgets.figures.static_figure import LivePicture

        if self._picture is None:
            self._picture = LivePicture(self.runs, self._feed, self._lock)
        self._picture.show()
