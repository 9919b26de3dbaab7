"""The monitor's form for a branch: the branch continues the run from one of its steps with a changed setting."""

from __future__ import annotations

import json
from collections.abc import Callable

from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import RunFolder, flatten
from widgets.runs.series import as_run

FIRST_NAMED = (
    "model.optim.lr",
    "trainer.ppo.initial_policy_kl_penalty",
    "trainer.grpo.initial_policy_kl_penalty",
)


class Branching:
    """The content of the branch form, and the result of the last request."""

    def __init__(self, run, start: Callable | None):
        """start: Workspace.branch, or a function (RunFolder, at=step, **settings) that returns a job with the run folder `run`;
        None: show no form."""
        self.run, self._start = run, start
        self._answer = ""

    def execute(self, content: dict):
        """Start a branch. content: the form's message {step, setting, value}.

        Returns the branch's job, or None after an error, which `view` then contains.
        """
        setting, value = str(content["setting"]).strip(), _parsed(str(content["value"]).strip())
        # a recording is no run folder, and `start` says so
        parent = self.run if isinstance(self.run, RunFolder) else self.run.name
        try:
            step = int(content["step"])
            job = self._start(parent, at=step, **{setting: value})
        # a button has no cell that could show the error; TypeError: the setting is an argument of `start`, such as `at`
        except (UserError, ValueError, OSError, RuntimeError, TypeError) as error:
            self._answer = str(error)
            return None
        self._answer = (
            f"{as_run(job.run).name} goes on after step {step}, with {setting} = {content['value']}."
        )
        return job

    def view(self) -> dict | None:
        """The form's content: {steps: the run's last step, settings: {name: current value}, said: the last result}.

        None while the run is running, and without `start`.
        """
        if self._start is None or not self.run.is_over:
            return None
        step = (self.run.info.get("heartbeat") or {}).get("step", 0)
        return {"steps": step, "settings": _settings(self.run.info.get("config") or {}), "said": self._answer}


def _settings(config: dict) -> dict[str, str]:
    """The settings with a single value. The settings of FIRST_NAMED come first."""
    values = {
        name: value for name, value in flatten(config).items() if isinstance(value, bool | int | float | str)
    }
    names = sorted(values, key=lambda name: name not in FIRST_NAMED)
    return {
        name: json.dumps(values[name]).strip('"') for name in names if not name.startswith("exp_manager.")
    }


def _parsed(text: str) -> object:
    """Parse a JSON value. Any other input remains text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
