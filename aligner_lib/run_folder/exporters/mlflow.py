"""MLflow: a tracking server, or files beside the run folder. MLflow can't remove steps, so a run that went back is sent
again."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from aligner_lib.run_folder.exporters.base import LoggedStep, RunRecord, Service, as_columns
from aligner_lib.run_folder.reader import flatten

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
_MOST_METRICS, _MOST_PARAMETERS, _LONGEST = 1000, 100, 6000  # MLflow's limits for a request, and for a value


class MLflow(Service):
    """Metrics with their history, settings as parameters, rollouts as a file for each step and split."""

    def __init__(self):
        self._client: MlflowClient | None = None
        self._run_id: str | None = None

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
        self._last = {
            name: max(point.step for point in self._client.get_metric_history(self._run_id, name))
            for name in (runs[0].data.metrics if runs else ())
        }
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
            if self._last.get(name, -1) < step.step
        ]
        for begin in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[begin : begin + _MOST_METRICS])

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
        for begin in range(0, max(len(new), len(changed)), _MOST_PARAMETERS):
            some = slice(begin, begin + _MOST_PARAMETERS)
            self._client.log_batch(self._run_id, params=new[some], tags=changed[some])


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
    """A name with the codes of the characters that MLflow refuses. A user's metric may have any name."""
    return re.sub(r"[^\w\-. /:]", lambda refused: f"_{ord(refused[0]):x}", name)
