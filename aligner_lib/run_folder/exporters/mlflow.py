"""MLflow: a tracking server, or files beside the run folder. MLflow can't remove steps, so a run that went back is sent
again."""

from __future__ import annotations

import logging
import os
import re
import zlib
from pathlib import Path

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from aligner_lib.run_folder.exporters.base import LoggedStep, RunRecord, Service, as_columns
from aligner_lib.run_folder.reader import flatten

logger = logging.getLogger(__name__)

EXPERIMENT = "aligner-lab"
ID = "aligner_lab.id"
CHANGED = "changed."
"""The beginning of the tag of a setting that a resume changed. MLflow's parameters cannot change."""
# the user's environment takes precedence
DEFAULTS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # without this variable, MLflow refuses files and requires a database
    # MLflow's own limits are 120 s and 7 retries. The exporter retries by itself, and knows when the run is over.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED", "lost": "FAILED"}
# MLflow's limits for a request, a value and a name (250 with CHANGED)
_MOST = {"metrics": 1000, "params": 100, "tags": 100}
_LONGEST, _LONGEST_NAME = 6000, 242
# in MLflow's answers to a name; MLflow's files can't have the metric a beside the metric a/b
_REFUSALS = ("Invalid value", "maximum length", "Not a directory", "Is a directory")


class MLflow(Service):
    """Metrics with their history, settings as parameters, rollouts as a file for each step and split."""

    def __init__(self):
        self._client: MlflowClient | None = None
        self._run_id: str | None = None
        self._last: dict[str, int] = {}  # each metric's last step
        self._refused: set[str] = set()

    def open(self, run: RunRecord, noted: list[int]) -> int:
        """Find the run by its id, or create the run. An incomplete last step is completed."""
        uri = run.options.get("tracking_uri") or os.environ.get("MLFLOW_TRACKING_URI") or _files(run.path)
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        self._client = MlflowClient(uri)
        experiment = _experiment(self._client, run.options.get("experiment_name") or EXPERIMENT)
        runs = self._client.search_runs([experiment], f"tags.`{ID}` = '{run.id}'")
        tags = {ID: run.id}
        stored = runs[0] if runs else self._client.create_run(experiment, tags=tags, run_name=run.name)
        self._run_id = stored.info.run_id
        self._describe(stored, run.config)
        self._client.update_run(self._run_id, status="RUNNING")
        self._last = self._last_steps()
        return max(self._last.values(), default=0) - 1

    def send(self, step: LoggedStep) -> None:
        """Send the tables first and the metrics last, because `open` recognizes a complete step by its metrics."""
        for split, rows in step.rollouts.items():
            columns, data = as_columns(rows)
            path = f"rollouts/{split}/step_{step.step:06d}.json"
            self._client.log_dict(self._run_id, {"columns": columns, "data": data}, path)
        metrics = [
            Metric(name, value, int(1000 * step.time), step.step)
            for name, value in ((_allowed(name), value) for name, value in step.metrics.items())
        ]
        self._log("metrics", metrics)

    def close(self, status: str) -> None:
        """Record the run's final status. A superseded run goes to MLflow's trash, from which a user can restore the run."""
        if self._run_id is None:
            return
        if status in STATUS:
            self._client.set_terminated(self._run_id, STATUS[status])
        elif status == "superseded":
            self._client.delete_run(self._run_id)

    def _describe(self, stored, config: dict) -> None:
        """Log the settings as parameters, and settings that differ from the logged ones as tags."""
        settings = {_allowed(name): str(value)[:_LONGEST] for name, value in flatten(config).items()}
        logged, tags = stored.data.params, stored.data.tags
        new = [Param(name, value) for name, value in settings.items() if name not in logged]
        changed = [
            RunTag(CHANGED + name, value)
            for name, value in settings.items()
            if name in logged and tags.get(CHANGED + name, logged[name]) != value
        ]
        self._log("params", new)
        self._log("tags", changed)

    def _last_steps(self) -> dict[str, int]:
        return {
            name: max(point.step for point in self._client.get_metric_history(self._run_id, name))
            for name in self._client.get_run(self._run_id).data.metrics
        }

    def _log(self, kind: str, entries: list, most: int | None = None) -> None:
        """Log entries that are not stored yet, at most `most` in a request. An entry whose name MLflow refuses is left out, with a
        warning."""
        new = [entry for entry in entries if entry.key not in self._refused and not self._has(entry)]
        most = most or _MOST[kind]
        for begin in range(0, len(new), most):
            some = new[begin : begin + most]
            try:
                self._client.log_batch(self._run_id, **{kind: some})
            except MlflowException as error:
                if not any(words in str(error) for words in _REFUSALS):
                    raise
                if most == 1:
                    self._refused.add(some[0].key)
                    logger.warning("%s is left out, because MLflow refuses the name: %s", some[0].key, error)
                else:
                    self._last = self._last_steps()  # entries before the refused name may be stored
                    self._log(kind, some, most=1)

    def _has(self, entry: Metric | Param | RunTag) -> bool:
        return isinstance(entry, Metric) and self._last.get(entry.key, -1) >= entry.step


def _files(run: Path) -> str:
    return (run.absolute().parent / "mlruns").as_uri()


def _experiment(client: MlflowClient, name: str) -> str:
    """The id of an experiment. Another run may create the experiment at the same time."""
    if (experiment := client.get_experiment_by_name(name)) is None:
        try:
            return client.create_experiment(name)
        except MlflowException:
            if (experiment := client.get_experiment_by_name(name)) is None:
                raise
    return experiment.experiment_id


def _allowed(name: str) -> str:
    """A name with the codes of the characters that MLflow refuses, also in a path's empty part or in a part `.` or `..`; a long
    name ends in a checksum. A user's metric may have any name."""
    refused = r"[^\w\-. /:]|(?<![^/])/|/\Z|(?<![^/])\.{1,2}(?=/|\Z)"
    name = re.sub(refused, lambda part: "".join(f"_{ord(sign):x}" for sign in part[0]), name)
    whole = name.encode()  # a part of the name is also a file's name, of at most 255 bytes
    if len(whole) <= _LONGEST_NAME:
        return name
    return f"{whole[: _LONGEST_NAME - 9].decode(errors='ignore')}_{zlib.crc32(whole):08x}"
