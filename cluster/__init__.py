"""Runs a command on this machine, on Slurm or with another scheduler, or only prints the batch script.

`submit` starts a command for a run folder and returns a `Job`; `Job.attach` finds the job again later.
"""

from importlib import import_module

_HOME = {
    "Job": "job",
    "JobFailed": "job",
    "JobNotFound": "record",
    "Resources": "resources",
    "RunBusy": "submission",
    "Scheduler": "scheduler",
    "State": "states",
    "Submission": "scheduler",
    "SubmissionRefused": "scheduler",
    "Sweep": "sweep",
    "check": "schedulers",
    "load_resources": "resources",
    "submit": "submission",
    "submit_sweep": "sweep",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    # Imports are lazy, so that `import cluster` costs nothing before the first submission. No module here may have the name of
    # a function in `_HOME`, because importing the module would replace the function.
    if name in _HOME:
        return getattr(import_module(f"cluster.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cluster' has no attribute {name!r}, only {', '.join(__all__)}")
