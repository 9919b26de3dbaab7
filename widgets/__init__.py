"""Widgets for notebooks that show training. They read run folders and need no torch.

    Monitor                                 live charts of one or several runs, running or recorded
    Completions, Pairs, Chat                responses of a run, preference pairs, and a chat with checkpoints
    BeforeAfter                             answers before and after training, from a recorded run
    SideBySide                              answers of several policies to the same prompts, with a program's verdict
    Classroom                               all participants of a workshop: step, alarms, exercises
    JobPanel                                state, log and controls of a job
    curves                                  a static figure of finished runs
    explore                                 the same charts with hover and zoom
    chart                                   your own chart, for metrics= of Monitor, curves and explore
    show_completions, compare_completions   static tables of responses
    compare_runs                            last values and settings of several runs, as a static table
    show_server                             live status of PPO's critic, if the critic is a separate job
    Quiz                                    a notebook's questions, with an explanation for each choice
    Recording                               a recorded run, played at any speed

A name is imported at its first use, so `import widgets` is fast.
"""

from importlib import import_module

_HOMES = {
    "BeforeAfter": "completions.before_after",
    "SideBySide": "completions.side_by_side",
    "Monitor": "monitor.monitor",
    "RunFailed": "runs.waiting",
    "RunLost": "runs.waiting",
    "Classroom": "classroom.classroom",
    "Completions": "completions.completions",
    "JobPanel": "monitor.panel",
    "Pairs": "completions.pairs",
    "Chat": "completions.chat",
    "Quiz": "quiz.quiz",
    "Recording": "recordings.replay",
    "chart": "runs.charts",
    "curves": "figures.static_figure",
    "explore": "figures.explorer",
    "show_completions": "completions.tables",
    "compare_completions": "completions.tables",
    "compare_runs": "figures.comparison_table",
    "show_server": "monitor.server",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"widgets has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"widgets.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
