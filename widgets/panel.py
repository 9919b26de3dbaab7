"""The job panel: a job's state, the end of its log, and its controls."""

from __future__ import annotations

import threading
import time

import anywidget
import traitlets

from widgets import control, frontend, waiting
from widgets.series import Series, as_run
from widgets.wire import finite

POLL_SECONDS = 1.0
JOB_SECONDS = 3.0  # polling a scheduler is expensive
LOG_LINES = 15


class JobPanel(anywidget.AnyWidget):
    """State, queue reason, nodes and log of a job; stop, checkpoint, cancel, and the values it can change.

    run: a run folder. job: its handle (cluster.Job, or anything with state, reason, nodes, tail() and
    cancel()). Without it the panel shows only what the run folder says, and cannot cancel.
    """

    _esm = frontend.script("dom", "format", "panel")
    _css = frontend.style("base", "cards")
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, run, job=None):
        self.run, self.job = as_run(run), job
        self._series = Series(self.run)
        self._said = ""
        self._lock = threading.RLock()
        self._job_view = {"state": "unknown", "reason": "", "nodes": "", "start": "", "log": ""}
        self._job_seen = float("-inf")
        super().__init__()
        self.refresh()
        self.on_msg(self._on_message)
        self._closed = threading.Event()
        threading.Thread(target=self._follow, name="JobPanel", daemon=True).start()

    def refresh(self) -> None:
        """Read the state now; this also happens every second."""
        with self._lock:  # the reader's buttons look, too
            self._look()

    def _look(self) -> None:
        self._series.poll()
        info = self.run.info
        self.view = finite(
            {
                "name": info.get("name") or self.run.name,
                "status": self.run.status,
                "message": info.get("message") or "",
                "step": (info.get("heartbeat") or {}).get("step"),
                "host": info.get("host", ""),
                "checkpoint": getattr(self.run.latest_checkpoint(), "name", None),
                "obeys": control.obeys(self.run),
                "pending": control.pending(self.run),
                "controls": {name: self._series.latest(metric) for name, metric in control.CONTROLS.items()},
                "over": self.run.is_over,
                "said": self._said,
                **self._look_at_job(),
            }
        )

    def _look_at_job(self) -> dict:
        """The job's part of the view, asked at most every JOB_SECONDS.

        If the scheduler does not answer, the error is shown as the reason.
        """
        if self.job is None:
            return {"job": None}
        if time.monotonic() - self._job_seen > JOB_SECONDS:
            try:
                status = getattr(
                    self.job, "status", self.job
                )  # one question to the scheduler, where there is one
                self._job_view = {
                    "state": str(getattr(status, "state", "")),
                    "reason": str(getattr(status, "reason", "") or ""),
                    "nodes": ", ".join(getattr(status, "nodes", ()) or ()),
                    "start": str(getattr(status, "start", "") or ""),
                    "log": self.job.tail(LOG_LINES),
                }
            except Exception as error:
                self._job_view |= {"reason": f"{type(error).__name__}: {error}"}
            self._job_seen = time.monotonic()
        return {"job": dict(self._job_view)}

    def _on_message(self, _, content: dict, buffers) -> None:
        try:
            self._said = self._obey(content)
        except Exception as error:  # a button has no cell to raise in
            self._said = str(error)
        self.refresh()

    def _obey(self, content: dict) -> str:
        kind = content.get("kind")
        if kind == "stop":
            self.run.request_stop()
            return "It ends after this step, with a checkpoint."
        if kind == "checkpoint":
            control.request_checkpoint(self.run)
            return "It saves a checkpoint after this step."
        if kind == "cancel":
            self.job.cancel()
            self._job_seen = float("-inf")
            return "Cancelled, without a checkpoint."
        assert kind == "set", f"no control {kind!r}"
        name, value = str(content["name"]), float(content["value"])
        control.request_change(self.run, **{name: value})
        return f"It goes on with {name} = {value:g} from its next step."

    def _follow(self) -> None:
        waiting.keep_looking(self._closed, POLL_SECONDS, self.refresh)

    def close(self) -> None:
        """Stop polling; the job continues."""
        self._closed.set()
        super().close()

    def __repr__(self) -> str:
        return f"JobPanel of {self.run.name} ({self.run.status})"
