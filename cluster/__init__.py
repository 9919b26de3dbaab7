"""Runs a command on this machine or on Slurm, or prints the batch script without submitting it.

`submit` starts a command for a run folder and returns a `Job`; `Job.attach` finds it again later.
"""

from importlib import import_module

_HOME = {
    "Job": "job",
    "JobFailed": "job",
    "JobNotFound": "record",
    "Resources": "resources",
    "RunBusy": "submission",
    "State": "states",
    "check": "checks",
    "load_resources": "resources",
    "submit": "submission",
    "submit_sweep": "sweep",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    # Lazy, so that `import cluster` costs nothing before the first submission. No module here may be named
    # like one of these functions: importing it would put the module in the function's place.
    if name in _HOME:
        return getattr(import_module(f"cluster.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cluster' has no attribute {name!r}; it has {', '.join(__all__)}")
