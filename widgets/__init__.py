"""What a notebook shows while training runs. Reads run folders, and nothing else of the project; imports no torch.

    Monitor                                 charts that follow one run, or compare several, live or recorded
    Completions, Pairs, Chat                read what the model wrote, what people preferred, what it says now
    JobPanel                                state, log and controls of a job
    curves                                  a static figure of finished runs
    explore                                 the same to hover over and zoom into
    chart                                   a chart of your own, for the metrics= of these three
    show_completions, compare_completions   static tables
    show_server                             what PPO's critic does in its own job, live
    Recording                               a recorded run, played at any speed

Everything is imported at its first use, so `import widgets` costs nothing.
"""

from importlib import import_module

_HOMES = {
    "Monitor": "monitor",
    "RunFailed": "waiting",
    "RunLost": "waiting",
    "Completions": "completions",
    "JobPanel": "panel",
    "Pairs": "pairs",
    "Chat": "chat",
    "Recording": "replay",
    "chart": "charts",
    "curves": "static_figure",
    "explore": "explorer",
    "show_completions": "tables",
    "compare_completions": "tables",
    "show_server": "server",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"widgets has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"widgets.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
