"""The tools of the course: the notebooks import them, the library does not.

    workspace     starts the notebooks' jobs and stores their results
    exercises     the functions that a learner writes
    checking      compares a learner's function with the reference
    mistakes      recorded runs of the exercises' planted mistakes
    quiz          the quiz questions
    hunt          the bug hunt and its planted faults
    comparison    metrics of policies and of preference pairs, with intervals
    tool_use      problems in words and scripted policies for notebook 14
    displays      figures and tables inside a cell
    report        the report, the portfolio and the table of progress
    site          the notebooks and documents as web pages
    workshop      the bundle for a workshop without a network
    execution     runs the notebooks in order

A name is imported at its first use, because some of the modules import torch.
"""

from importlib import import_module

_HOMES = {
    "Diagram": "displays.diagram",
    "ProgressTable": "report.progress_table",
    "Workspace": "workspace.workspace",
    "check": "checking.check",
    "compare_policies": "comparison.policies",
    "require_count": "workspace.parameters",
    "require_one_of": "workspace.parameters",
    "show_mask": "displays.show_mask",
    "show_source": "displays.show_source",
    "write_portfolio": "report.portfolio",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
