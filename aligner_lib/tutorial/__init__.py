"""The learner's side: what the notebooks use beside the library. Nothing in the library imports it.

    workspace     what the notebooks start and keep
    exercises     the functions that a learner writes; checking: whether they are right
    quiz          the questions
    hunt          the bug hunt, and the faults that were planted for it
    comparison    what is measured of policies and of preference pairs
    displays      what a notebook shows inside a cell
    report        the report, the portfolio, and the table of progress
    workshop      the bundle for a workshop without a network
    execution     running the notebooks in order

Each name is imported at its first use, since some import torch.
"""

from importlib import import_module

_HOMES = {
    "Diagram": "displays.diagram",
    "ProgressTable": "report.progress_table",
    "Workspace": "workspace.workspace",
    "check": "checking.check",
    "compare_policies": "comparison.policies",
    "show_mask": "displays.show_mask",
    "show_source": "displays.show_source",
    "write_portfolio": "report.portfolio",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
