"""Starts a branch of a run for a reader of the monitor: the run goes on from one of its steps, with a setting changed."""

from __future__ import annotations

import json
from collections.abc import Callable

from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import flatten
from widgets.runs.series import as_run

FIRST_NAMED = (
    "model.optim.lr",
    "trainer.ppo.initial_policy_kl_penalty",
    "trainer.grpo.initial_policy_kl_penalty",
)


class Branching:
    """The branch form of a monitor: what it offers, and what became of the last request."""

    def __init__(self, run, start: Callable | None):
        """start: Workspace.branch, or any function (run's name, at=step, **settings) → a job with `run`, its folder; None: no
        form is shown."""
        self.run, self._start = run, start
        self._answer = ""

    def execute(self, content: dict):
        """A form's message {step, setting, value} → the job of the branch; None where the job refuses, which `view` then says."""
        setting, value = str(content["setting"]).strip(), _parsed(str(content["value"]).strip())
        try:
            job = self._start(self.run.name, at=int(content["step"]), **{setting: value})
        except (UserError, ValueError, OSError) as error:  # a button has no cell to raise in
            self._answer = str(error)
            return None
        self._answer = f"{as_run(job.run).name} goes on after step {content['step']}, with {setting} = {content['value']}."
        return job

    def view(self) -> dict | None:
        """{steps: the run's last step, settings: {name: present value}, said}; None while the run goes on or without `start`."""
        if self._start is None or not self.run.is_over:
            return None
        step = (self.run.info.get("heartbeat") or {}).get("step", 0)
        return {"steps": step, "settings": _settings(self.run.info.get("config") or {}), "said": self._answer}


def _settings(config: dict) -> dict[str, str]:
    """The settings that have a single value, the most used first."""
    values = {
        name: value for name, value in flatten(config).items() if isinstance(value, bool | int | float | str)
    }
    names = sorted(values, key=lambda name: name not in FIRST_NAMED)
    return {
        name: json.dumps(values[name]).strip('"') for name in names if not name.startswith("exp_manager.")
    }


def _parsed(text: str) -> object:
    """A number, true, false or null as in JSON; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
