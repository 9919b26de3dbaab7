"""The job panel: a job's state, the end of its log, and its controls."""

from __future__ import annotations

import threading
import time

import traitlets

from aligner_lib.run_folder.set_aside import way_back
from widgets.frontend.widget import script
from widgets.frontend.wire import finite
from widgets.runs import control, waiting
from widgets.runs.following import Following
from widgets.runs.series import Series, as_run

POLL_SECONDS = 1.0
JOB_SECONDS = 3.0  # between two requests to the scheduler, which are expensive
LOG_LINES = 15


class JobPanel(Following):
    """State, queue reason, nodes and log of a job, with buttons to stop, checkpoint, cancel, and change values.

    run: a run folder. job: the job's handle (cluster.Job, or an object with state, reason, nodes, tail() and cancel()); None:
    show only the content of the run folder. The panel then cannot cancel the job.
    """

    _esm = script("dom", "format", "lost", "controls", "panel")
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, run, job=None):
        self.run, self.job = as_run(run), job
        self._series = Series(self.run)
        self._steering = control.Steering(self.run)
        self._resubmission = waiting.Resubmission(job)
        self._answer = ""  # the result of the Cancel button, which the run folder does not contain
        self._lock = threading.RLock()
        self._job_view = {"state": "unknown", "reason": "", "nodes": "", "start": "", "log": ""}
        self._job_seen = float("-inf")
        super().__init__()
        self.refresh()
        self.on_msg(self._on_message)
        self.follow(POLL_SECONDS, self.refresh)

    def refresh(self) -> None:
        """Read the state now. The panel also calls `refresh` every second."""
        with self._lock:  # the background thread and the buttons' messages both call `refresh`
            self._look()

    def _look(self) -> None:
        self._series.poll()
        info, status = self.run.info, self.run.status
        message = "" if status == "finished" else info.get("message") or ""
        advice, answer = way_back(self.run), self._answer
        steering = self._steering.view(self._series)
        if self._resubmission.awaits(self.run):
            status, message, advice, answer = "waiting", "", "", answer or waiting.SUBMITTED_AGAIN
            steering["undo"] = ""
        self.view = finite(
            {
                "name": info.get("name") or self.run.name,
                "status": status,
                "message": message,
                "way_back": advice,
                "step": (info.get("heartbeat") or {}).get("step"),
                "host": info.get("host", ""),
                "checkpoint": getattr(self.run.latest_checkpoint(), "name", None),
                "steering": steering,
                "said": answer,
                **self._look_at_job(),
            }
        )

    def _look_at_job(self) -> dict:
        """The job's part of the view. The scheduler is asked at most every JOB_SECONDS.

        If the scheduler does not answer, the reason contains the error.
        """
        if self.job is None:
            return {"job": None}
        if time.monotonic() - self._job_seen > JOB_SECONDS:
            try:
                # a job with a scheduler answers state and reason in a single call
                status = getattr(self.job, "status", self.job)
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
        self._answer = ""
        if content.get("kind") == "cancel":
            self._answer = self._cancel()
        else:
            self._steering.execute(content)
        self.refresh()
        self.send({"kind": "answer"})  # without an answer, the page reports a lost connection to the kernel

    def _cancel(self) -> str:
        try:
            self.job.cancel()
        except Exception as error:  # a button has no cell that could show the error
            return str(error)
        self._job_seen = float("-inf")
        return "Cancelled, without a checkpoint."

    def __repr__(self) -> str:
        return f"JobPanel of {self.run.name} ({self.run.status})"
